"""The candidates that a run may keep: the pretrained features, the initial model and the trained model.

Training can make a model worse, above all on little data. So all three are evaluated, held-out classes decide which
one is kept, and one sentence states what training gained.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nearfar.data import Table
from nearfar.evaluation.class_means import CONFIDENCE, class_mean, intervals
from nearfar.models import Embedder
from nearfar.training.build import build_embedder
from nearfar.training.config import ModelConfig, TrainConfig
from nearfar.training.defaults import is_pretrained
from nearfar.training.measure import Floats, measure
from nearfar.training.world import World

SURE = 0.9  # confidence of the interval over held-out classes; the gain over the features must be positive in it
CANDIDATES = {
    "features": "the pretrained features",
    "start": "the initial model",
    "trained": "the trained model",
}


def features_only(config: TrainConfig) -> Embedder | None:
    """The pretrained trunk without a head; None without pretrained weights, or if the model has no head anyway."""
    model = config.model
    if model.head == "none" or not (model.backbone == "features" or is_pretrained(model.backbone or "", model.weights)):
        return None
    return build_embedder(replace(config, model=without_head(model))).eval()


def without_head(model: ModelConfig) -> ModelConfig:
    """The configuration of the model's unchanged trunk."""
    return replace(
        model,
        head="none",
        dimension=None,
        hidden=None,
        head_start="random",
        freeze=True,
        freeze_to=None,
        lora=None,
        views=1,
    )


def on_cached_features(config: TrainConfig) -> TrainConfig:
    """The configuration that takes the features of an unchanged pretrained trunk from the cache."""
    pretrained = is_pretrained(config.model.backbone or "", config.model.weights)
    return replace(config, model=replace(config.model, freeze=True)) if pretrained else config


@dataclass(frozen=True, eq=False)
class Measured:
    """A candidate's metrics, in total and per query."""

    metrics: Mapping[str, Any]
    queries: Mapping[str, NDArray[np.float64]]
    labels: NDArray[np.int64]  # of the queries

    @classmethod
    def of(
        cls, embeddings: Floats, table: Table, config: TrainConfig, world: World | None = None, *, binary: bool
    ) -> "Measured":
        """Evaluate embeddings of a table's rows by its splits and cameras."""
        metrics = measure(embeddings, table, config.evaluation.ks, binary=binary, per_query=True, world=world)
        queries, labels = metrics.pop("per_query", {}), metrics.pop("query_labels", np.zeros(0, np.int64))
        numbers = {name: value for name, value in metrics.items() if isinstance(value, (int, float))}
        return cls(numbers, queries, labels)

    @classmethod
    def pooled(cls, parts: "list[Measured]") -> "Measured":
        """Pool the folds: metrics are means over the queries of all of them."""
        labels = np.concatenate([part.labels for part in parts])
        names = [name for name in parts[0].queries if all(name in part.queries for part in parts)]
        queries = {name: np.concatenate([part.queries[name] for part in parts]) for name in names}
        return cls({name: float(np.nanmean(values)) for name, values in queries.items()}, queries, labels)

    @property
    def classes(self) -> int:
        """The number of classes among the queries."""
        return len(np.unique(self.labels))

    def to_dict(self) -> dict[str, Any]:
        """The values stored in the run's metrics."""
        return {"metrics": dict(self.metrics), "intervals": self.intervals()}

    def intervals(self) -> dict[str, tuple[float, float]]:
        """The interval of every metric over classes: what another draw of as many classes would give."""
        return intervals(self.queries, self.labels)


def _interval(differences: NDArray[np.float64], labels: NDArray[np.int64], confidence: float) -> tuple[float, float]:
    used = ~np.isnan(differences)
    return class_mean(differences[used], labels[used]).interval(confidence, (-1.0, 1.0))


def best_of(values: Mapping[str, float]) -> str:
    """The name of the largest value; of equal ones, the first."""
    return max(values, key=lambda name: values[name])


def chosen(measured: Mapping[str, Measured], metric: str) -> str:
    """Choose the candidate to keep by the held-out rows: the trained model, if it beats the pretrained features by more
    than the choice of classes explains. Without such features, the better of the trained and the initial model.
    """
    if "features" not in measured:
        return best_of({name: candidate.metrics[metric] for name, candidate in measured.items()})
    features = measured["features"]
    difference = measured["trained"].queries[metric] - features.queries[metric]
    return "trained" if _interval(difference, features.labels, SURE)[0] > 0 else "features"


@dataclass(frozen=True)
class Gain:
    """The gain of a candidate over the baseline without training (`over`), on the same queries. The interval is over
    classes.
    """

    over: str
    value: float
    interval: tuple[float, float]


def gain(kept: str, measured: Mapping[str, Measured], metric: str) -> Gain | None:
    """The gain of the kept candidate over the pretrained features or, without them, over the initial model."""
    base = "features" if "features" in measured else "start"
    ours, theirs = (measured[name].queries.get(metric) if name in measured else None for name in (kept, base))
    if ours is None or theirs is None:
        return None
    return Gain(base, float(np.nanmean(ours - theirs)), _interval(ours - theirs, measured[base].labels, CONFIDENCE))


def verdict(kept: str, measured: Mapping[str, Measured], held_out: Mapping[str, float], metric: str, what: str) -> str:
    """State in one sentence what training gained.

    Args:
        kept: the kept candidate.
        measured: the candidates on the rows that the run is evaluated on.
        held_out: the metric of each on the held-out rows; empty if none were held out.
        metric: the metric to compare by.
        what: describes the evaluated rows, such as "12 unseen classes".
    """
    shown = ", ".join(f"{name} {held_out[key]:.1%}" for key, name in CANDIDATES.items() if key in held_out)
    chosen = f" ({metric} on held-out classes: {shown})" if shown else ""
    if kept != "trained":
        better = held_out.get("trained", 0.0) > held_out.get(kept, 0.0)
        what = "Held-out classes do not show whether training helped" if better else "Training did not help"
        return f"{what}: {CANDIDATES[kept]} {'are' if kept == 'features' else 'is'} kept{chosen}."
    improvement = gain(kept, measured, metric)
    if improvement is None:
        return f"The trained model is kept{chosen}."
    before, after = (measured[name].metrics[metric] for name in (improvement.over, kept))
    low, high = improvement.interval
    figures = (
        f"{metric} {before:.1%} to {after:.1%} on {what} ({100 * improvement.value:+.1f} points, "
        f"{CONFIDENCE:.0%} interval {100 * low:+.1f} to {100 * high:+.1f})"
    )
    if low > 0:
        return f"Training helped: {figures}."
    if high < 0:
        preferred = held_out and held_out.get(kept) == max(held_out.values())
        though = ", though held-out classes preferred it" if preferred else ""
        return f"Training made it worse than {CANDIDATES[improvement.over]}{though}: {figures}."
    return f"These classes do not show whether training helped: {figures}."
