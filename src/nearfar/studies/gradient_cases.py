"""The losses, states and targets of the Circle paper's figures."""

from dataclasses import dataclass

from nearfar.report.boundaries import Boundary, boundary
from nearfar.training.config import LossConfig
from nearfar.training.options import loss_info

STATES = {"A": (0.1, 0.1), "B": (0.9, 0.9), "C": (0.5, 0.5)}
"""(s_n, s_p) of the paper's states: A needs its positive nearer, B its negative further, C both."""
TARGETS = {"T": (0.2, 0.5), "T′": (0.4, 0.7)}
"""Both have s_p - s_n = 0.3: a boundary parallel to the diagonal takes the one for as good as the other."""
TARGET_MARGIN = 0.3
PAPER = ("Triplet", "AM-Softmax", "Circle")


@dataclass(frozen=True)
class Case:
    """A loss with a margin. Slopes are shown over its `scale`, so that losses of different scales compare."""

    name: str
    m: float | None
    loss: LossConfig
    scale: float

    @property
    def title(self) -> str:
        """Above its panel."""
        return self.name if self.m is None else f"{self.name}, m = {self.m:g}"

    @property
    def boundary(self) -> Boundary | None:
        """Where the loss draws the line."""
        return boundary(self.loss.name, {**loss_info(self.loss.name).arguments, **self.loss.arguments})


def paper_case(name: str, m: float, gamma: float) -> Case:
    """Triplet, AM-Softmax or Circle with a margin."""
    loss = {
        "Triplet": LossConfig("TripletMarginLoss", {"margin": m, "distance": "cosine"}),
        "AM-Softmax": LossConfig("AMSoftmaxLoss", {"margin": m, "scale": gamma}),
        "Circle": LossConfig("CircleLoss", {"m": m, "gamma": gamma}),
    }[name]
    return Case(name, m, loss, 1.0 if name == "Triplet" else gamma)
