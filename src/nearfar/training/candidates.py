"""What a run may keep: the pretrained features as they are, the model as it starts, or the trained one.

Training can make things worse, above all where there is little to learn from. So all three are measured, held-out
classes decide what is kept, and one sentence says what training was worth.
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

SURE = 0.9  # confidence of the interval over held-out classes that has to lie above the features
CANDIDATES = {
    "features": "the pretrained features",
    "start": "the model as it starts",
    "trained": "the trained model",
}


def features_alone(config: TrainConfig) -> Embedder | None:
    """The pretrained trunk without a head; None where there is none, or the model starts as just that."""
    model = config.model
    if model.head == "none" or not (model.backbone == "features" or is_pretrained(model.backbone or "", model.weights)):
        return None
    return build_embedder(replace(config, model=without_head(model))).eval()


def without_head(model: ModelConfig) -> ModelConfig:
    """The trunk of a model as it came."""
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
    """The configuration that embeds with a trunk as it came: its features are taken from the cache."""
    pretrained = is_pretrained(config.model.backbone or "", config.model.weights)
    return replace(config, model=replace(config.model, freeze=True)) if pretrained else config


@dataclass(frozen=True, eq=False)
class Measured:
    """A candidate's metrics, and their values for every query."""

    metrics: Mapping[str, Any]
    queries: Mapping[str, NDArray[np.float64]]
    labels: NDArray[np.int64]  # of the queries

    @classmethod
    def of(
        cls, embeddings: Floats, table: Table, config: TrainConfig, world: World | None = None, *, binary: bool
    ) -> "Measured":
        """Embeddings of a table's rows, measured as its splits and cameras say."""
        found = measure(embeddings, table, config.evaluation.ks, binary=binary, per_query=True, world=world)
        queries, labels = found.pop("per_query", {}), found.pop("query_labels", np.zeros(0, np.int64))
        numbers = {name: value for name, value in found.items() if isinstance(value, (int, float))}
        return cls(numbers, queries, labels)

    @classmethod
    def pooled(cls, parts: "list[Measured]") -> "Measured":
        """Of folds: the mean over the queries of all of them."""
        labels = np.concatenate([part.labels for part in parts])
        names = [name for name in parts[0].queries if all(name in part.queries for part in parts)]
        queries = {name: np.concatenate([part.queries[name] for part in parts]) for name in names}
        return cls({name: float(np.nanmean(values)) for name, values in queries.items()}, queries, labels)

    @property
    def classes(self) -> int:
        """How many classes the queries are of."""
        return len(np.unique(self.labels))

    def to_dict(self) -> dict[str, Any]:
        """What the run keeps of it."""
        return {"metrics": dict(self.metrics), "intervals": self.intervals()}

    def intervals(self) -> dict[str, tuple[float, float]]:
        """Of every metric, over classes: what another draw of so many classes would give."""
        return intervals(self.queries, self.labels)


def _interval(differences: NDArray[np.float64], labels: NDArray[np.int64], confidence: float) -> tuple[float, float]:
    used = ~np.isnan(differences)
    return class_mean(differences[used], labels[used]).interval(confidence, (-1.0, 1.0))


def best_of(values: Mapping[str, float]) -> str:
    """The name of the largest value; of equals, the first."""
    return max(values, key=lambda name: values[name])


def chosen(measured: Mapping[str, Measured], metric: str) -> str:
    """What is kept, by the held-out rows: the trained model, if it is better than the pretrained features beyond what
    the choice of classes explains. Without such features, the better of the trained model and its start.
    """
    if "features" not in measured:
        return best_of({name: found.metrics[metric] for name, found in measured.items()})
    features = measured["features"]
    difference = measured["trained"].queries[metric] - features.queries[metric]
    return "trained" if _interval(difference, features.labels, SURE)[0] > 0 else "features"


@dataclass(frozen=True)
class Gain:
    """What a candidate is better by than what there was without training, on the same queries; `over` says what that
    is. The interval is over classes.
    """

    over: str
    value: float
    interval: tuple[float, float]


def gain(kept: str, measured: Mapping[str, Measured], metric: str) -> Gain | None:
    """Of what is kept, over the pretrained features or, where there are none, over the start."""
    base = "features" if "features" in measured else "start"
    ours, theirs = (measured[name].queries.get(metric) if name in measured else None for name in (kept, base))
    if ours is None or theirs is None:
        return None
    return Gain(base, float(np.nanmean(ours - theirs)), _interval(ours - theirs, measured[base].labels, CONFIDENCE))


def verdict(kept: str, measured: Mapping[str, Measured], held_out: Mapping[str, float], metric: str, what: str) -> str:
    """What training was worth, in a sentence.

    Args:
        kept: what the run keeps.
        measured: the candidates on the rows that the run is measured on.
        held_out: the metric of each on the held-out rows that chose; empty where none were held out.
        metric: by which they are compared.
        what: the measured rows, such as "12 unseen classes".
    """
    shown = ", ".join(f"{name} {held_out[key]:.1%}" for key, name in CANDIDATES.items() if key in held_out)
    chosen = f" ({metric} on held-out classes: {shown})" if shown else ""
    if kept != "trained":
        better = held_out.get("trained", 0.0) > held_out.get(kept, 0.0)
        what = "Held-out classes cannot tell whether training helped" if better else "Training did not help"
        return f"{what}: {CANDIDATES[kept]} {'are' if kept == 'features' else 'is'} kept{chosen}."
    found = gain(kept, measured, metric)
    if found is None:
        return f"The trained model is kept{chosen}."
    before, after = (measured[name].metrics[metric] for name in (found.over, kept))
    low, high = found.interval
    figures = (
        f"{metric} {before:.1%} to {after:.1%} on {what} ({100 * found.value:+.1f} points, {CONFIDENCE:.0%} interval "
        f"{100 * low:+.1f} to {100 * high:+.1f})"
    )
    if low > 0:
        return f"Training helped: {figures}."
    if high < 0:
        preferred = held_out and held_out.get(kept) == max(held_out.values())
        though = ", though held-out classes preferred it" if preferred else ""
        return f"Training made it worse than {CANDIDATES[found.over]}{though}: {figures}."
    return f"Whether training helped cannot be told from these classes: {figures}."
