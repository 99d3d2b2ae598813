"""How each loss is trained where the configuration does not say: one table, which `nearfar losses NAME` shows.

Chosen on validation classes of the glyphs, for networks that start at random, and of frozen features of CUB; never on
test classes. docs/LOG.md has what was tried. Rates of what a loss learns are absolute: under AdamW, whose steps do not
grow with the gradient, a rate is how far each number moves in a step, whatever the network's is.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import Any, Literal

from nearfar.training.config import LossConfig
from nearfar.training.options import loss_info

Start = Literal["scratch", "tuned", "frozen"]
STARTS: dict[Start, str] = {
    "scratch": "a network that starts at random",
    "tuned": "a pretrained network",
    "frozen": "a head on frozen features",
}
NOTHING: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True)
class LossDefaults:
    """Rates are AdamW's; under sgd, what a loss learns has the network's."""

    lr: float  # of the network
    classes: float  # of class vectors, proxies and their biases
    scale: float  # of temperatures and scales
    boundary: float
    warmup: float = 0.0  # in epochs
    head_scale: float = 1.0  # of a head that starts at random: how long embeddings are at first
    arguments: Mapping[str, Any] = field(default_factory=dict)  # other than the loss's own defaults
    why: str = ""


# At random, class vectors and network look for each other: both move fast, but not in the first steps, in which Adam
# does not know yet how large gradients are.
OF_ALL: dict[Start, LossDefaults] = {
    "scratch": LossDefaults(lr=3e-3, classes=3e-2, scale=1e-3, boundary=1e-3),
    "tuned": LossDefaults(lr=1e-4, classes=1e-2, scale=1e-3, boundary=1e-3),
    "frozen": LossDefaults(lr=3e-4, classes=3e-2, scale=1e-3, boundary=1e-3),
}
WARMUP = 1.0  # of losses with class vectors, where a network starts at random

# What a loss has of its own: from whatever it starts (""), or from one start.
OF_LOSS: dict[str, dict[Start | Literal[""], Mapping[str, Any]]] = {
    "CenterLoss": {"": {"arguments": {"loss_weight": 0.003}, "why": "the paper's weight beside a softmax"}},
    "NPairsLoss": {
        "scratch": {
            "head_scale": 0.3,
            "why": "dot products of long vectors hide how they differ",
        }
    },
    "SoftTripleLoss": {"scratch": {"classes": 1e-2}},
    "TripletMarginLoss": {
        "": {"arguments": {"mining": "all"}, "why": "the hardest triplets collapse a network from scratch"}
    },
}


def defaults_of(name: str, start: Start, class_level: bool = False) -> LossDefaults:
    """Of one loss."""
    own = OF_LOSS.get(f"{name}, class-level" if class_level else name, {})
    vectors = class_level or loss_info(name).level in ("class", "proxy")
    base = replace(OF_ALL[start], warmup=WARMUP if vectors and start == "scratch" else 0.0)
    return replace(base, **{**own.get("", NOTHING), **own.get(start, NOTHING)})


def defaults_of_all(losses: Sequence[LossConfig], start: Start) -> LossDefaults:
    """Of a sum: the lowest rates and the longest warm-up of its parts."""
    found = [defaults_of(loss.name, start, loss.class_level) for loss in losses]
    rates = {name: min(getattr(own, name) for own in found) for name in ("lr", "classes", "scale", "boundary")}
    return replace(found[0], **rates, warmup=max(own.warmup for own in found), arguments={})


def with_arguments(loss: LossConfig, start: Start) -> LossConfig:
    """The loss with the arguments that are chosen for training, where it has none of its own."""
    return replace(loss, arguments={**defaults_of(loss.name, start, loss.class_level).arguments, **loss.arguments})


def shown(name: str, class_level: bool = False) -> list[str]:
    """The table of one loss, as lines."""
    table = {start: defaults_of(name, start, class_level) for start in STARTS}
    names = [f.name for f in fields(LossDefaults) if f.name not in ("arguments", "why")]
    lines = [f"  {'':<34}" + "".join(f"{own:>12}" for own in names)]
    for start, own in table.items():
        lines.append(f"  {STARTS[start]:<34}" + "".join(f"{getattr(own, own_name):>12g}" for own_name in names))
    changed: dict[str, list[str]] = {}
    for start, own in table.items():
        for argument, value in own.arguments.items():
            changed.setdefault(f"--loss.{argument} {value}", []).append(STARTS[start])
    for words, starts in changed.items():
        lines.append(f"  {words}" + ("" if len(starts) == len(STARTS) else f", for {' and '.join(starts)}"))
    whys = dict.fromkeys(own.why for own in table.values() if own.why)
    return [*lines, *(f"  ({why})" for why in whys)]
