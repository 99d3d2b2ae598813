"""Angular margins that rise from zero in the first steps.

The derivative of cos(θ + m) by cos θ is sin(θ + m) / sin θ: below 1 where θ is near 90°, as it is at random. So a step
of ArcFace lowers a sample's cosines to all classes more than it raises the one to its own, all samples turn away from
all classes, into a cone, and there the margin hardly costs anything. From zero, θ is small before the margin counts.
"""

from torch import nn

from nearfar.losses import ArcFaceLoss, CombinedMarginLoss, SubCenterArcFaceLoss

ANGULAR: dict[type[nn.Module], str] = {
    ArcFaceLoss: "margin",
    CombinedMarginLoss: "m2",
    SubCenterArcFaceLoss: "margin",
}


class RisingMargins:
    """The angular margins of a loss and of its parts, in proportion to the step until they are whole.

    Args:
        steps: in which they rise. Margins by class, which are tensors, stay as they are.
    """

    def __init__(self, loss: nn.Module, steps: int):
        self.steps = steps
        named = [(part, ANGULAR[type(part)]) for part in loss.modules() if type(part) in ANGULAR]
        values = [(part, name, getattr(part, name)) for part, name in named]
        self._margins = [(part, name, value) for part, name, value in values if isinstance(value, float)]

    def set(self, step: int) -> None:
        """Give the loss the margins of a step, which is counted from 0."""
        share = min(1.0, step / self.steps) if self.steps else 1.0
        for part, name, value in self._margins:
            setattr(part, name, share * value)
