"""Which hyper-parameters of which loss are searched, and where.

The first setting that is tried of every loss is its default, which is mostly its paper's. A loss that is not in the
table is searched over its learning rates alone.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nearfar.training.config import LossConfig
from nearfar.training.options import ConfigError, loss_info

CLASS_FORM = "/class"  # of losses that come in both forms
# The most promising first, and one of each kind before its relatives: a budget leaves out from the end.
LOSSES = (
    "CircleLoss",
    "ProxyAnchorLoss",
    "CosFaceLoss",
    "MultiSimilarityLoss",
    "SupConLoss",
    "ArcFaceLoss",
    "SoftTripleLoss",
    "ProxyNCALoss",
    "CircleLoss/class",
    "NormFaceLoss",
    "TripletMarginLoss",
    "ContrastiveLoss",
)


@dataclass(frozen=True)
class Range:
    """From low to high, evenly or (`log`) evenly in the logarithm; `start` is tried first."""

    low: float
    high: float
    log: bool = False
    start: float | None = None

    def __post_init__(self) -> None:
        if not self.low < self.high or (self.log and self.low <= 0):
            raise ValueError(f"{self} is no range")

    @property
    def middle(self) -> float:
        """Where the search starts."""
        if self.start is not None:
            return self.start
        return math.sqrt(self.low * self.high) if self.log else (self.low + self.high) / 2


# The embedding is normalised, so the loss's arguments are in units of cosines, distances on the sphere, or radians.
SCALE = Range(8, 128, log=True)
TEMPERATURE = Range(0.01, 0.5, log=True)
SPACES: Mapping[str, Mapping[str, Range]] = {
    "AMSoftmaxLoss": {"margin": Range(0, 0.5), "scale": SCALE},
    "AdaFaceLoss": {"margin": Range(0, 0.6), "scale": SCALE},
    "AngularLoss": {"alpha": Range(math.radians(30), math.radians(55))},
    "ArcFaceLoss": {"margin": Range(0, 0.7), "scale": SCALE},
    "CircleLoss": {"m": Range(0, 0.6), "gamma": Range(16, 512, log=True)},
    "ContrastiveLoss": {"pos_margin": Range(0, 0.6), "neg_margin": Range(0.6, 1.4)},
    "CosFaceLoss": {"margin": Range(0, 0.5), "scale": SCALE},
    "CurricularFaceLoss": {"margin": Range(0, 0.7), "scale": SCALE},
    "GeneralizedLiftedStructureLoss": {"neg_margin": Range(0.5, 2), "pos_margin": Range(0, 0.6)},
    "InstanceLoss": {"gamma": SCALE},
    "LiftedStructureLoss": {"neg_margin": Range(0.5, 2), "pos_margin": Range(0, 0.6)},
    "MarginLoss": {"margin": Range(0.05, 0.5), "beta": Range(0.6, 1.4)},
    "MultiSimilarityLoss": {
        "alpha": Range(0.5, 16, log=True),
        "beta": Range(10, 100, log=True),
        "base": Range(0, 1),
    },
    "NCALoss": {"softmax_scale": Range(1, 64, log=True)},
    "NTXentLoss": {"temperature": TEMPERATURE},
    "NormFaceLoss": {"scale": SCALE},
    "NormalizedSoftmaxLoss": {"temperature": TEMPERATURE},
    "ProxyAnchorLoss": {"margin": Range(0, 0.5), "alpha": Range(8, 128, log=True)},
    "ProxyNCALoss": {"softmax_scale": Range(1, 64, log=True)},
    "RankedListLoss": {"margin": Range(0.1, 0.8), "Tn": Range(1, 30, log=True)},
    "SmoothAPLoss": {"temperature": Range(0.003, 0.1, log=True)},
    "SoftTripleLoss": {
        "la": Range(5, 80, log=True),
        "gamma": Range(0.02, 0.5, log=True),
        "margin": Range(0, 0.2),
    },
    "SubCenterArcFaceLoss": {"margin": Range(0, 0.7), "scale": SCALE},
    "SupConLoss": {"temperature": TEMPERATURE},
    "TripletMarginLoss": {"margin": Range(0.02, 0.8)},
    "TupletMarginLoss": {"margin": Range(0, 0.3), "scale": SCALE},
    "UnifiedLoss": {"m": Range(0, 0.6), "gamma": Range(16, 512, log=True)},
}

# Of the head on cached features: as it starts at principal components it is good already, and a fast one overfits.
FROZEN_RATE = Range(3e-6, 3e-3, log=True, start=1e-4)
PRETRAINED_RATE = Range(1e-5, 1e-3, log=True, start=1e-4)
RANDOM_RATE = Range(3e-4, 1e-2, log=True, start=3e-3)
PROXY_RATE = Range(1, 1000, log=True, start=100)  # of class vectors and proxies, times the rate


def read_contestant(word: str) -> LossConfig:
    """The loss of a name such as CircleLoss, or CircleLoss/class for the class-level form.

    >>> read_contestant("CircleLoss/class").class_level
    True
    """
    name, slash, form = word.partition("/")
    info = loss_info(name)
    if slash and f"/{form}" != CLASS_FORM:
        raise ConfigError(f"{word}: losses have no form {form}; {name}{CLASS_FORM} compares with class weights")
    if slash and info.level != "pair or class":
        raise ConfigError(f"{word}: {name} has one form alone, write {name}")
    if info.level == "penalty":
        raise ConfigError(f"{name} is a penalty of binary codes, to be added to a loss: it is none to compare")
    if info.level == "towers":
        raise ConfigError(
            f"{name} compares two views of the same samples, without labels: it cannot be compared on labelled images; "
            "SupConLoss and NTXentLoss are its relatives with labels"
        )
    return LossConfig(name, class_level=bool(slash))


def has_proxies(loss: LossConfig) -> bool:
    """Whether the loss learns vectors of its own, which need a rate of their own."""
    return loss.class_level or loss_info(loss.name).level in ("class", "proxy")


def space_of(loss: LossConfig, rate: Range) -> dict[str, Range]:
    """Everything that is searched for a loss: its rates, "lr" and "proxies", and its arguments "loss.NAME"."""
    defaults: Mapping[str, Any] = loss_info(loss.name).arguments
    space = {"lr": rate}
    if has_proxies(loss):
        space["proxies"] = PROXY_RATE
    for name, own in SPACES.get(loss.name, {}).items():
        space[f"loss.{name}"] = Range(own.low, own.high, own.log, start=float(defaults[name]))
    return space
