"""The time that training would take."""

from dataclasses import dataclass, replace

import torch

from nearfar.data import Table
from nearfar.training.build import build_embedder
from nearfar.training.config import TrainConfig
from nearfar.training.defaults import resolve
from nearfar.training.splits import Parts, split
from nearfar.training.timing import Costs, Counts, counted, lacking_features, measured, training_time


@dataclass(frozen=True)
class Duration:
    """Times in seconds; None if not applicable.

    Attributes:
        image: embedding one image.
        features: computing all features that are not cached.
        full: training the whole network.
        frozen: training the head on cached features, with computing them.
    """

    image: float
    features: float
    full: float | None
    frozen: float | None


def duration(config: TrainConfig, table: Table) -> Duration:
    """Estimate the times for this configuration and these rows on this machine, assuming that it is otherwise idle."""
    parts, heads = (split(table, config.data, config.seed, frozen=frozen) for frozen in (False, True))
    costs, counts = measured(config, parts), counted(parts, heads)
    with torch.random.fork_rng(devices=[]):
        chosen = resolve(replace(config, model=replace(config.model, head_start="random")), parts.train)
        features = lacking_features(build_embedder(chosen), table) * costs.embed
    full = frozen = None
    if costs.everything is not None:
        full = features + _training(config, parts, "everything", counts.folds, costs, counts)
    if costs.head is not None:
        heads_only = replace(config, model=replace(config.model, freeze=True))
        frozen = features + _training(heads_only, heads, "head", counts.head_folds, costs, counts)
    return Duration(costs.embed, features, full, frozen)


def _training(config: TrainConfig, parts: Parts, way: str, folds: int, costs: Costs, counts: Counts) -> float:
    epochs = resolve(config, parts.train).epochs
    assert epochs is not None
    return training_time(way, epochs, folds, costs, counts)


def in_words(seconds: float) -> str:
    """Format a time with a precision that fits an estimate.

    >>> [in_words(seconds) for seconds in (20, 100, 1000, 10_000)]
    ['less than a minute', 'about 2 minutes', 'about 17 minutes', 'about 2.8 hours']
    """
    if seconds < 50:
        return "less than a minute"
    minutes = round(seconds / 60)
    if minutes < 90:
        return f"about {max(minutes, 1)} minute{'' if minutes <= 1 else 's'}"
    return f"about {seconds / 3600:.1f} hours" if seconds < 36_000 else f"about {seconds / 3600:,.0f} hours"
