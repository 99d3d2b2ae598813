"""`PrecomputedFeatures`: the trunk of models that take features of text, sound or another network."""

from torch import Tensor, nn

from nearfar.errors import InputError


class PrecomputedFeatures(nn.Module):
    """The identity on features (N, dimension)."""

    def __init__(self, dimension: int):
        super().__init__()
        self.dimension = dimension

    def forward(self, features: Tensor) -> Tensor:
        if features.ndim != 2 or features.shape[1] != self.dimension:
            raise InputError(
                f"this model has no trunk: give features (N, {self.dimension}), not {tuple(features.shape)}"
            )
        return features
