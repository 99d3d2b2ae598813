"""The accuracy lost by quantisation: metrics of both files on the same rows."""

import time
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from nearfar.data import Table
from nearfar.export.inputs import inputs_of
from nearfar.export.network import ExportError
from nearfar.export.parity import Network, cosines
from nearfar.models import Embedder
from nearfar.models.extraction import extract, gathered, progress_bar
from nearfar.training.measure import measure

METRICS = ("recall@1", "map@r")
_BATCH = 8  # the batch of `Embedder.embed` on a CPU


@dataclass(frozen=True)
class Accuracy:
    """Metrics of a model before and after quantisation, cosines between their embeddings, and the time per row."""

    data: str
    rows: int
    before: dict[str, float]
    after: dict[str, float]
    least: float
    mean: float
    milliseconds: tuple[float, float]


@dataclass
class _NetworkPair:
    """Runs two networks on the same inputs, times them, and concatenates their embeddings."""

    networks: tuple[Network, Network]
    seconds: list[float] = field(default_factory=lambda: [0.0, 0.0])

    def __call__(self, inputs: Tensor) -> Tensor:
        embeddings = []
        for number, network in enumerate(self.networks):
            began = time.perf_counter()
            embeddings.append(network(inputs))
            self.seconds[number] += time.perf_counter() - began
        return torch.cat(embeddings, 1)


def whole_classes(table: Table, max_rows: int | None) -> Table:
    """The first whole classes of a table that have at most `max_rows` rows together; at least one class."""
    if max_rows is None or len(table) <= max_rows:
        return table
    classes, counts = np.unique(table.labels[table.labels >= 0], return_counts=True)
    number = max(int(np.searchsorted(np.cumsum(counts), max_rows, side="right")), 1)
    return table.select(np.flatnonzero(np.isin(table.labels, classes[:number])))


def accuracy(
    before: Network, after: Network, model: Embedder, table: Table, *, max_broken: float, progress: bool = False
) -> Accuracy:
    """Embed a table with both networks and compute the metrics of each.

    Args:
        model: the model whose preprocessing is used.
        max_broken: the largest tolerated fraction of broken images.
        progress: show a bar.
    """
    pair = _NetworkPair((before, after))
    inputs, prepare = inputs_of(model, table)
    with progress_bar(progress, len(table)) as advance:
        rows = extract(pair, inputs, prepare, batch_size=_BATCH, max_broken=max_broken, advance=advance)
        embeddings = gathered(rows, len(table), 2 * model.dimension)
    halves = np.split(embeddings, 2, axis=1)
    metrics = [measure(half, table, (1,), binary=model.binary) for half in halves]
    if not metrics[0]:
        raise ExportError(
            f"{table.name}: no two rows have the same label, so the accuracy cannot be measured: "
            "give other data with --data"
        )
    readable = ~np.isnan(embeddings).any(1)
    similarity = cosines(*(torch.from_numpy(half[readable]) for half in halves))
    before_metrics, after_metrics = ({name: float(m[name]) for name in METRICS if name in m} for m in metrics)
    return Accuracy(
        table.name,
        len(table),
        before_metrics,
        after_metrics,
        float(similarity.min()),
        float(similarity.mean()),
        (1000 * pair.seconds[0] / len(table), 1000 * pair.seconds[1] / len(table)),
    )
