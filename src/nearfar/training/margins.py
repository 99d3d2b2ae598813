"""Warm-up of angular margins.

The derivative of cos(θ + m) by cos θ is sin(θ + m) / sin θ, which is below 1 for θ near 90°, the angle between random
vectors. So a step of ArcFace lowers a sample's cosines to all classes more than it raises the one to its own. All
samples turn away from all classes into a cone, where the margin costs little. With a margin that rises from zero, θ is
small before the margin takes effect.
"""

from torch import nn

from nearfar.losses import ArcFaceLoss, CombinedMarginLoss, SubCenterArcFaceLoss

ANGULAR: dict[type[nn.Module], str] = {
    ArcFaceLoss: "margin",
    CombinedMarginLoss: "m2",
    SubCenterArcFaceLoss: "margin",
}


class RisingMargins:
    """Raises the angular margins of a loss and of its parts linearly to their full values.

    Args:
        steps: number of steps of the warm-up. Per-class margins, which are tensors, do not change.
    """

    def __init__(self, loss: nn.Module, steps: int):
        self.steps = steps
        named = [(part, ANGULAR[type(part)]) for part in loss.modules() if type(part) in ANGULAR]
        values = [(part, name, getattr(part, name)) for part, name in named]
        self._margins = [(part, name, value) for part, name, value in values if isinstance(value, float)]

    def set(self, step: int) -> None:
        """Set the margins for a step, counted from 0."""
        share = min(1.0, step / self.steps) if self.steps else 1.0
        for part, name, value in self._margins:
            setattr(part, name, share * value)
