"""The hyper-parameters that are searched for each loss, and their ranges.

The search starts at the defaults of `nearfar train`. A loss that compares with samples or with classes starts at those
of both forms, the second with its paper's settings. A loss outside the table is searched over its learning rates only.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from nearfar.training.config import LossConfig
from nearfar.training.loss_defaults import Start, defaults_of
from nearfar.training.options import ConfigError, loss_info

CLASS_FORM, PAIR_FORM = "/class", "/pair"  # suffixes of losses with both forms
USUAL = 3  # dimensions; a loss with more gets more settings
# The most promising first, and one of each kind before similar ones: a budget leaves out losses from the end.
LOSSES = (
    "CircleLoss",
    "ProxyAnchorLoss",
    "CosFaceLoss",
    "MultiSimilarityLoss",
    "SupConLoss",
    "ArcFaceLoss",
    "SoftTripleLoss",
    "ProxyNCALoss",
    "NormFaceLoss",
    "SmoothAPLoss",
    "TripletMarginLoss",
    "ContrastiveLoss",
)


@dataclass(frozen=True)
class Range:
    """A range to draw from uniformly or (`log`) uniformly in the logarithm; `start` is tried first."""

    low: float
    high: float
    log: bool = False
    start: float | None = None

    def __post_init__(self) -> None:
        if not self.low < self.high or (self.log and self.low <= 0):
            raise ValueError(f"{self} is not a range")

    @property
    def first(self) -> float:
        """Where the search starts."""
        if self.start is not None:
            return self.start
        return math.sqrt(self.low * self.high) if self.log else (self.low + self.high) / 2


@dataclass(frozen=True)
class Choice:
    """One of several values; `start` is tried first."""

    values: tuple[Any, ...]
    start: Any = None

    @property
    def first(self) -> Any:
        """Where the search starts."""
        return self.values[0] if self.start is None else self.start


Dimension = Range | Choice

# Embeddings are normalised: arguments are in units of cosines, distances on the sphere, or radians.
SCALE = Range(8, 128, log=True)
TEMPERATURE = Range(0.01, 0.5, log=True)
SPACES: Mapping[str, Mapping[str, Dimension]] = {
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
    "MarginLoss": {
        "margin": Range(0.05, 0.5),
        "beta": Range(0.6, 1.4),
        "sampling": Choice(("all", "distance_weighted")),
    },
    "MultiSimilarityLoss": {
        "alpha": Range(0.5, 16, log=True),
        "beta": Range(10, 100, log=True),
        "base": Range(0, 1),
        "epsilon": Choice((0.1, None)),
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
    "TripletMarginLoss": {
        "margin": Range(0.02, 0.8),
        "mining": Choice(("all", "batch_hard", "easy_positive", "semihard")),
    },
    "TupletMarginLoss": {"margin": Range(0, 0.3), "scale": SCALE},
    "UnifiedLoss": {"m": Range(0, 0.6), "gamma": Range(16, 512, log=True)},
}

# Starts of class-level forms that differ from the pair-level form: Sun et al. (2020), re-identification.
CLASS_STARTS: Mapping[str, Mapping[str, float]] = {"CircleLoss": {"m": 0.25, "gamma": 128.0}}

# Around the default rates of training. A head that starts from the principal components of cached features is good
# from the start, and overfits at high rates.
RATES: Mapping[Start, Range] = {
    "frozen": Range(3e-6, 3e-3, log=True),
    "tuned": Range(1e-5, 1e-3, log=True),
    "scratch": Range(3e-4, 1e-2, log=True),
}
CLASS_RATE = Range(1e-4, 0.3, log=True)  # of class vectors and proxies


def read_contestant(word: str) -> LossConfig:
    """The loss of a name such as CircleLoss, or CircleLoss/class for its class-level form.

    >>> read_contestant("CircleLoss/class").class_level
    True
    """
    name, slash, form = word.partition("/")
    info = loss_info(name)
    if slash and f"/{form}" not in (CLASS_FORM, PAIR_FORM):
        raise ConfigError(
            f"{word}: losses have no form {form}; {name}{CLASS_FORM} compares with class weights, {name}{PAIR_FORM} "
            "with samples"
        )
    if slash and info.level != "pair or class":
        raise ConfigError(f"{word}: {name} has only one form: write {name}")
    if info.level == "penalty":
        raise ConfigError(f"{name} is a penalty on binary codes, to be added to a loss: it cannot be compared")
    if info.level == "towers":
        raise ConfigError(
            f"{name} compares two views of the same samples, without labels: it cannot be compared on labelled images; "
            "SupConLoss and NTXentLoss are its relatives with labels"
        )
    return LossConfig(name, class_level=f"/{form}" == CLASS_FORM)


def forms(word: str) -> tuple[LossConfig, ...]:
    """The forms to search for a contestant: both, unless its name chooses one.

    >>> [loss.class_level for loss in forms("CircleLoss")]
    [False, True]
    """
    loss = read_contestant(word)
    if word != loss.name or loss_info(loss.name).level != "pair or class":
        return (loss,)
    return loss, replace(loss, class_level=True)


def has_proxies(loss: LossConfig) -> bool:
    """Whether the loss learns class vectors or proxies, which have their own rate."""
    return loss.class_level or loss_info(loss.name).level in ("class", "proxy")


def space_of(loss: LossConfig, start: Start) -> dict[str, Dimension]:
    """The dimensions of one form of a loss: its rates "lr" and "classes", and its arguments "loss.NAME"."""
    defaults = defaults_of(loss.name, start, loss.class_level)
    starts: dict[str, Any] = {**loss_info(loss.name).arguments, **defaults.arguments}
    if loss.class_level:
        starts |= CLASS_STARTS.get(loss.name, {})
    space: dict[str, Dimension] = {"lr": replace(RATES[start], start=defaults.lr)}
    if has_proxies(loss):
        space["classes"] = replace(CLASS_RATE, start=defaults.classes)
    for name, dimension in SPACES.get(loss.name, {}).items():
        start_value = float(starts[name]) if isinstance(dimension, Range) else starts[name]
        space[f"loss.{name}"] = replace(dimension, start=start_value)
    return space


def dimensions(word: str) -> int:
    """The number of dimensions of a contestant's space, its form included.

    >>> dimensions("SupConLoss"), dimensions("CircleLoss"), dimensions("CircleLoss/pair")
    (2, 5, 3)
    """
    both = forms(word)
    return max(len(space_of(loss, "frozen")) for loss in both) + (len(both) > 1)


def share(word: str, trials: int) -> int:
    """The number of settings of a contestant, in proportion to its dimensions; with three of them it is `trials`.

    >>> share("CircleLoss/pair", 10), share("SupConLoss", 10), share("CircleLoss", 10), share("CircleLoss", 1)
    (10, 7, 17, 1)
    """
    return max(1, round(trials * dimensions(word) / USUAL)) if trials > 1 else 1
