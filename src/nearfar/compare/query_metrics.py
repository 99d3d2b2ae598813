"""The metrics of every test query, for all runs and baselines, computed once after the last choice."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from nearfar.compare.workbench import Workbench
from nearfar.data import SPLITS, Table
from nearfar.data.columns import Files
from nearfar.models import Embedder
from nearfar.training.build import build_embedder
from nearfar.training.config import TrainConfig
from nearfar.training.measure import embed, search_for
from nearfar.training.options import ConfigError
from nearfar.training.runs import Run
from nearfar.training.start import start

METRICS = ("map@r", "r_precision", "recall@1")
BASELINES = FEATURES, PRINCIPAL = "untrained features", "PCA-whitened head"

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class QueryMetrics:
    """Metrics of the queries that have a match.

    Attributes:
        values: (seeds, queries), by contestant and metric. Binary codes are compared by Hamming distance, as in search.
        labels: the queries' classes, by name.
        ids: the queries' files, or rows if the images are not files.
        cosines: the MAP@R of binary contestants by cosines of the vectors before binarisation.
    """

    values: Mapping[str, Mapping[str, Floats]]
    labels: NDArray[np.str_]
    ids: NDArray[np.str_]
    cosines: Mapping[str, float] = field(default_factory=dict)

    @property
    def queries(self) -> int:
        """The number of queries."""
        return int(next(iter(self.values.values()))[METRICS[0]].shape[1])


def measure_on_test(
    workbench: Workbench, runs: Mapping[str, Sequence[Run]], seen: Table, test: Table, done: Callable[[str], None]
) -> QueryMetrics:
    """Measure the baselines and all runs on the test rows.

    Args:
        seen: rows whose principal components are a baseline.
        done: called with the name of each contestant after it.
    """
    values: dict[str, dict[str, Floats]] = {}
    cosines: dict[str, float] = {}
    rows: NDArray[np.int64] = np.zeros(0, np.int64)
    for name, baseline in baselines(workbench.config, seen).items():
        baseline.to(workbench.device)
        metrics, rows = per_query(embed(baseline, test, workbench.config), test)
        values[name] = _stacked([metrics])
        done(name)
    binary = workbench.embedder.binary
    for name, seeds in runs.items():
        embeddings = [embed(run.model(str(workbench.device)), test, run.config) for run in seeds]
        values[name] = _stacked([per_query(x, test, binary=binary)[0] for x in embeddings])
        if binary:
            cosines[name] = float(_stacked([per_query(x, test)[0] for x in embeddings])["map@r"].mean())
        done(name)
    paths = test.paths if isinstance(test.images, Files) else None
    ids = [str(row) if paths is None else paths[row] for row in rows]
    return QueryMetrics(values, np.array([test.label_name(row) for row in rows]), np.array(ids), cosines)


def baselines(config: TrainConfig, seen: Table) -> dict[str, Embedder]:
    """The baselines of all losses: the trunk's features, and their whitened principal components.

    The second is left out if the head is not linear or there are fewer images than dimensions.
    """
    torch.manual_seed(config.seed)
    plain = replace(config, model=replace(config.model, head="none", dimension=None, hidden=None, head_start="random"))
    embedders = {FEATURES: build_embedder(plain)}
    train = seen.split("train")
    dimension = config.model.dimension
    if config.model.head in ("linear", "mlp") and dimension is not None and len(train) > dimension:
        whitened = replace(config, model=replace(config.model, head="linear", hidden=None, head_start="pca-whiten"))
        torch.manual_seed(config.seed)
        embedders[PRINCIPAL] = build_embedder(whitened)
        start(embedders[PRINCIPAL], nn.Identity(), train, whitened)
    return embedders


def per_query(
    embeddings: NDArray[np.float32], table: Table, *, binary: bool = False
) -> tuple[dict[str, Floats], NDArray[np.int64]]:
    """The metrics of every query that has a match, and its row: queries against the gallery if the table has both,
    else each row against all others. Unreadable images and rows without a label are left out.
    """
    readable = ~np.isnan(embeddings).any(1)
    options: dict[str, Any] = {"metrics": METRICS, "per_query": True, "progress": False}
    if {"query", "gallery"} <= set(table.split_names):
        query, gallery = (readable & (table.split_ids == SPLITS.index(name)) for name in ("query", "gallery"))
        options |= {"gallery": embeddings[gallery], "gallery_labels": table.labels[gallery]}
        if table.camera is not None:
            options |= {"cameras": table.camera[query], "gallery_cameras": table.camera[gallery]}
    else:
        query = readable & (table.labels >= 0)
    labels = table.labels[query]
    if not len(labels):
        raise ConfigError(f"{table.name} has no readable test image with a label")
    metrics: dict[str, Floats] = search_for(binary)(embeddings[query], labels, **options)["per_query"]
    matched = ~np.isnan(metrics[METRICS[0]])
    return {name: metrics[name][matched] for name in METRICS}, np.flatnonzero(query)[matched]


def _stacked(seeds: Sequence[Mapping[str, Floats]]) -> dict[str, Floats]:
    return {name: np.stack([values[name] for values in seeds]) for name in METRICS}
