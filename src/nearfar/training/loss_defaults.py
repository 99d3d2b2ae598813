"""The training defaults of every loss for each kind of start, which `nearfar losses NAME` shows.

They were chosen on validation classes, never on test classes: of the glyphs for networks from scratch, of CUB for
frozen features. docs/LOG.md lists the experiments. The rates of a loss's parameters are absolute: AdamW's steps do not
grow with the gradient, so the rate is the distance of a step, independent of the network's rate.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import Any, Literal

from nearfar.training.config import LossConfig
from nearfar.training.options import loss_info

Start = Literal["scratch", "tuned", "frozen"]
STARTS: dict[Start, str] = {
    "scratch": "a randomly initialised network",
    "tuned": "a pretrained network",
    "frozen": "a head on frozen features",
}
CLASS_LEVEL = ", class-level"  # suffix for the class-level form of a loss with both forms
SMALLEST = ("lr", "classes", "scale", "boundary", "batch_size")  # for a sum of losses, the smallest of its parts
NOTHING: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True)
class LossDefaults:
    """The defaults of one loss for one kind of start. Rates are for AdamW; with sgd, the loss's parameters have the
    network's rate.
    """

    lr: float  # of the network
    classes: float  # of class vectors, proxies and their biases
    scale: float  # of temperatures and scales
    boundary: float
    warmup: float = 0.0  # epochs in which the rates rise
    margin_warmup: float = 0.0  # epochs in which an angular margin rises
    head_scale: float = 1.0  # factor of a random initial head: sets the initial norm of embeddings
    batch_size: int = 128
    arguments: Mapping[str, Any] = field(default_factory=dict)  # where they differ from the constructor's
    why: str = ""


# From random weights, class vectors and network both have far to move, so their rates are high, but not in the first
# steps, when Adam's estimates of the gradients' magnitude are poor.
COMMON: dict[Start, LossDefaults] = {
    "scratch": LossDefaults(lr=3e-3, classes=3e-2, scale=1e-3, boundary=1e-3),
    "tuned": LossDefaults(lr=1e-4, classes=1e-2, scale=1e-3, boundary=1e-3),
    "frozen": LossDefaults(lr=3e-4, classes=3e-2, scale=1e-3, boundary=1e-3, batch_size=512),
}
CLASS_WARMUP = 1.0  # epochs, for losses with class vectors from scratch

ANGULAR_MARGIN: Mapping[str, Any] = {
    "margin_warmup": 4.0,
    "why": "at 90°, the initial angle, an angular margin turns all samples away from all classes",
}
ANY_NORM: Mapping[str, Any] = {
    "arguments": {"normalize": False},
    "why": "as its authors train it; between unit vectors, exp(-d) hardly distinguishes near from far",
}
# Exceptions by loss: for any start, or for one.
EXCEPTIONS: dict[str, dict[Start | Literal["any"], Mapping[str, Any]]] = {
    "ArcFaceLoss": {"scratch": ANGULAR_MARGIN},
    "CenterLoss": {"any": {"arguments": {"loss_weight": 0.003}, "why": "the paper's weight beside a softmax"}},
    "CombinedMarginLoss": {"scratch": ANGULAR_MARGIN},
    "ContrastiveLoss": {
        "any": {"arguments": {"power": 1}, "why": "squares of small distances hardly push the nearest negatives away"}
    },
    "GeneralizedLiftedStructureLoss": {"any": ANY_NORM},
    "LiftedStructureLoss": {"any": ANY_NORM, "scratch": {"batch_size": 64}},
    "MarginLoss": {
        "any": {
            "arguments": {"sampling": "distance_weighted"},
            "why": "the paper's sampling of negatives; a mean over all pairs hardly moves the nearest ones",
        }
    },
    "NPairsLoss": {
        "scratch": {
            "warmup": 1.0,
            "head_scale": 0.5,
            "batch_size": 64,
            "why": "dot products of long vectors hide differences in direction",
        }
    },
    "ProxyNCALoss": {
        "any": {"arguments": {"softmax_scale": 9.0}, "why": "as Proxy-NCA++; a softmax of -d² <= 4 is nearly even"}
    },
    "SoftTripleLoss": {"scratch": {"classes": 1e-2}},
    "SubCenterArcFaceLoss": {"scratch": ANGULAR_MARGIN},
    "TripletMarginLoss": {
        "any": {"arguments": {"mining": "all"}, "why": "the hardest triplets collapse a network from scratch"}
    },
}


def defaults_of(name: str, start: Start, class_level: bool = False) -> LossDefaults:
    """The defaults of one loss."""
    exceptions = EXCEPTIONS.get(f"{name}{CLASS_LEVEL}" if class_level else name, {})
    has_vectors = class_level or loss_info(name).level in ("class", "proxy")
    common = replace(COMMON[start], warmup=CLASS_WARMUP if has_vectors and start == "scratch" else 0.0)
    return replace(common, **{**exceptions.get("any", NOTHING), **exceptions.get(start, NOTHING)})


def defaults_of_sum(losses: Sequence[LossConfig], start: Start) -> LossDefaults:
    """The defaults of a sum of losses: the lowest rates, the longest warm-ups and the smallest batch of its parts."""
    parts = [defaults_of(loss.name, start, loss.class_level) for loss in losses]
    smallest = {name: min(getattr(part, name) for part in parts) for name in SMALLEST}
    longest = {name: max(getattr(part, name) for part in parts) for name in ("warmup", "margin_warmup")}
    return replace(parts[0], **smallest, **longest, arguments={})


def with_arguments(loss: LossConfig, start: Start) -> LossConfig:
    """Add the default arguments for training that the configuration does not set."""
    return replace(loss, arguments={**defaults_of(loss.name, start, loss.class_level).arguments, **loss.arguments})


def described(name: str, class_level: bool = False) -> list[str]:
    """The defaults of a loss as lines of a table."""
    defaults = {start: defaults_of(name, start, class_level) for start in STARTS}
    columns = [f.name for f in fields(LossDefaults) if f.name not in ("arguments", "why")]
    lines = [f"  {'':<34}" + "".join(f"{column:>14}" for column in columns)]
    for start, values in defaults.items():
        lines.append(f"  {STARTS[start]:<34}" + "".join(f"{getattr(values, column):>14g}" for column in columns))
    options: dict[str, list[str]] = {}
    for start, values in defaults.items():
        for argument, value in values.arguments.items():
            options.setdefault(f"--loss.{argument} {str(value).lower()}", []).append(STARTS[start])
    for option, starts in options.items():
        lines.append(f"  {option}" + ("" if len(starts) == len(STARTS) else f", for {' and '.join(starts)}"))
    reasons = dict.fromkeys(values.why for values in defaults.values() if values.why)
    return [*lines, *(f"  ({reason})" for reason in reasons)]
