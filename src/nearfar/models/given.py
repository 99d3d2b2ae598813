"""`GivenFeatures`: no trunk at all, for features of text, of sound, or of a network that is not here."""

from torch import Tensor, nn

from nearfar.errors import InputError


class GivenFeatures(nn.Module):
    """What it is given, features (N, dimension)."""

    def __init__(self, dimension: int):
        super().__init__()
        self.dimension = dimension

    def forward(self, features: Tensor) -> Tensor:
        if features.ndim != 2 or features.shape[1] != self.dimension:
            raise InputError(
                f"this model has no trunk: it takes features (N, {self.dimension}), not {tuple(features.shape)}"
            )
        return features
