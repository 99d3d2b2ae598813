"""What quantisation costs: both files on the same rows, measured as the run was."""

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
_BATCH = 8  # as `Embedder.embed` has it on a CPU


@dataclass(frozen=True)
class Accuracy:
    """Metrics of a model before and after quantisation, cosines between the two, and the time each takes."""

    data: str
    rows: int
    before: dict[str, float]
    after: dict[str, float]
    least: float
    mean: float
    milliseconds: tuple[float, float]


@dataclass
class _Both:
    """Two networks as one: the vectors of the first, then those of the second, side by side."""

    networks: tuple[Network, Network]
    seconds: list[float] = field(default_factory=lambda: [0.0, 0.0])

    def __call__(self, inputs: Tensor) -> Tensor:
        found = []
        for number, network in enumerate(self.networks):
            began = time.perf_counter()
            found.append(network(inputs))
            self.seconds[number] += time.perf_counter() - began
        return torch.cat(found, 1)


def whole_classes(table: Table, most: int | None) -> Table:
    """The first classes of a table, as many as `most` rows hold; at least one class."""
    if most is None or len(table) <= most:
        return table
    classes, counts = np.unique(table.labels[table.labels >= 0], return_counts=True)
    held = max(int(np.searchsorted(np.cumsum(counts), most, side="right")), 1)
    return table.select(np.flatnonzero(np.isin(table.labels, classes[:held])))


def accuracy(
    before: Network, after: Network, model: Embedder, table: Table, *, max_broken: float, progress: bool = False
) -> Accuracy:
    """Embed the rows of a table with both networks, and measure both.

    Args:
        model: that the inputs are prepared for.
        max_broken: the fraction of unreadable images to do without.
        progress: show a bar.
    """
    both = _Both((before, after))
    inputs, prepare = inputs_of(model, table)
    with progress_bar(progress, len(table)) as advance:
        rows = extract(both, inputs, prepare, batch_size=_BATCH, max_broken=max_broken, advance=advance)
        embeddings = gathered(rows, len(table), 2 * model.dimension)
    halves = np.split(embeddings, 2, axis=1)
    metrics = [measure(half, table, (1,), binary=model.binary) for half in halves]
    if not metrics[0]:
        raise ExportError(
            f"{table.name}: no two rows have the same label, so that what quantisation costs cannot be measured: "
            "give other data with --data"
        )
    there = ~np.isnan(embeddings).any(1)
    similar = cosines(*(torch.from_numpy(half[there]) for half in halves))
    shown = [{name: float(found[name]) for name in METRICS if name in found} for found in metrics]
    milliseconds = [1000 * seconds / len(table) for seconds in both.seconds]
    return Accuracy(
        table.name,
        len(table),
        shown[0],
        shown[1],
        float(similar.min()),
        float(similar.mean()),
        (milliseconds[0], milliseconds[1]),
    )
