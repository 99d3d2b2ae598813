"""The losses, states and targets of the Circle paper's figures."""

import re
from dataclasses import dataclass

from nearfar.report.boundaries import Boundary, boundary
from nearfar.training.config import LossConfig
from nearfar.training.options import ConfigError, loss_info

Place = tuple[float, float]
"""(s_n, s_p)."""
STATES = "A=0.8,0.8; B=0.64,0.84; C=0.1,0.1"
"""(s_n, s_p) of the states: A of the paper's analysis, with a good positive and a bad negative; B, nearer the boundary;
C, with a good negative and a bad positive (A and C are in the paper's Section 1 and Fig. 1).
"""
TARGETS = {"T": (0.2, 0.5), "T′": (0.4, 0.7)}
"""Both have s_p - s_n = 0.3: for a boundary parallel to the diagonal, they are equally good."""
TARGET_MARGIN = 0.3
PAPER = ("Triplet", "AM-Softmax", "Circle")


def read_states(text: str) -> dict[str, Place]:
    """Parse states by name.

    >>> read_states("A=0.8,0.8; B=0.5,0.9")
    {'A': (0.8, 0.8), 'B': (0.5, 0.9)}
    """
    states: dict[str, Place] = {}
    for term in filter(None, (term.strip() for term in text.split(";"))):
        number = r"([+-]?\d*\.?\d+)"
        match = re.fullmatch(rf"(\w+)\s*=\s*{number}\s*,\s*{number}", term)
        if match is None:
            raise ConfigError(f"{term!r} is not a state: write its name, s_n and s_p, such as A=0.8,0.8; B=0.5,0.9")
        place = float(match[2]), float(match[3])
        if not all(-1 < s < 1 for s in place):
            raise ConfigError(f"state {match[1]}: similarities are between -1 and 1, not {place[0]:g} and {place[1]:g}")
        states[match[1]] = place
    if "A" not in states:
        raise ConfigError("states must include A, from which the observations start")
    return states


@dataclass(frozen=True)
class Case:
    """A loss with a margin. Slopes are shown divided by its `scale`, to compare losses of different scales."""

    name: str
    m: float | None
    loss: LossConfig
    scale: float

    @property
    def title(self) -> str:
        """The title of its panel."""
        return self.name if self.m is None else f"{self.name}, m = {self.m:g}"

    @property
    def boundary(self) -> Boundary | None:
        """The decision boundary of the loss, if known."""
        return boundary(self.loss.name, {**loss_info(self.loss.name).arguments, **self.loss.arguments})


def paper_case(name: str, m: float, gamma: float) -> Case:
    """Triplet, AM-Softmax or Circle with a margin."""
    loss = {
        "Triplet": LossConfig("TripletMarginLoss", {"margin": m, "distance": "cosine"}),
        "AM-Softmax": LossConfig("AMSoftmaxLoss", {"margin": m, "scale": gamma}),
        "Circle": LossConfig("CircleLoss", {"m": m, "gamma": gamma}),
    }[name]
    return Case(name, m, loss, 1.0 if name == "Triplet" else gamma)
