"""The one look at the test classes: all runs and the baselines on the same queries. Nothing is chosen afterwards."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from nearfar.compare.ground import Ground
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
FEATURES, PRINCIPAL = "untrained features", "PCA-whitened head"  # the baselines

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Look:
    """By contestant and metric, values (seeds, queries), without queries that have no match. `labels` are the classes
    of the queries by name, `ids` their images: the files, or the rows where there are no files.

    Binary codes are compared by Hamming distance, as search does it; `cosines` has the MAP@R that the numbers behind
    them would have by their cosines.
    """

    values: Mapping[str, Mapping[str, Floats]]
    labels: NDArray[np.str_]
    ids: NDArray[np.str_]
    cosines: Mapping[str, float] = field(default_factory=dict)

    @property
    def queries(self) -> int:
        """How many there are."""
        return int(next(iter(self.values.values()))[METRICS[0]].shape[1])


def look(
    ground: Ground, runs: Mapping[str, Sequence[Run]], seen: Table, test: Table, done: Callable[[str], None]
) -> Look:
    """Measure the baselines and all runs on the test rows.

    Args:
        seen: whose principal components are a baseline.
        done: called after each contestant.
    """
    values: dict[str, dict[str, Floats]] = {}
    cosines: dict[str, float] = {}
    rows: NDArray[np.int64] = np.zeros(0, np.int64)
    for name, baseline in baselines(ground.config, seen).items():
        baseline.to(ground.device)
        found, rows = per_query(embed(baseline, test, ground.config), test)
        values[name] = _stacked([found])
        done(name)
    for name, own in runs.items():
        models = ((run.model(str(ground.device)), run.config) for run in own)
        embeddings = [embed(model, test, config) for model, config in models]
        binary = ground.embedder.binary
        values[name] = _stacked([per_query(x, test, binary=binary)[0] for x in embeddings])
        if binary:
            cosines[name] = float(_stacked([per_query(x, test)[0] for x in embeddings])["map@r"].mean())
        done(name)
    paths = test.paths if isinstance(test.images, Files) else None
    ids = [str(row) if paths is None else paths[row] for row in rows]
    return Look(values, np.array([test.label_name(row) for row in rows]), np.array(ids), cosines)


def baselines(config: TrainConfig, seen: Table) -> dict[str, Embedder]:
    """What every loss has to beat: the trunk's features as they are, and their principal components, whitened.

    The second is left out where there is no linear head, or fewer images than dimensions.
    """
    torch.manual_seed(config.seed)
    plain = replace(config, model=replace(config.model, head="none", dimension=None, hidden=None, head_start="random"))
    found = {FEATURES: build_embedder(plain)}
    train = seen.split("train")
    dimension = config.model.dimension
    if config.model.head in ("linear", "mlp") and dimension is not None and len(train) > dimension:
        whitened = replace(config, model=replace(config.model, head="linear", hidden=None, head_start="pca-whiten"))
        torch.manual_seed(config.seed)
        embedder = build_embedder(whitened)
        start(embedder, nn.Identity(), train, whitened)
        found[PRINCIPAL] = embedder
    return found


def per_query(
    embeddings: NDArray[np.float32], table: Table, *, binary: bool = False
) -> tuple[dict[str, Floats], NDArray[np.int64]]:
    """The metrics of every query that has a match, and its row: queries against the gallery where the table has them,
    else each row against all others. Unreadable images and rows without a label are left out.
    """
    there = ~np.isnan(embeddings).any(1)
    options: dict[str, Any] = {"metrics": METRICS, "per_query": True, "progress": False}
    if {"query", "gallery"} <= set(table.split_names):
        query, gallery = (there & (table.split_ids == SPLITS.index(name)) for name in ("query", "gallery"))
        options |= {"gallery": embeddings[gallery], "gallery_labels": table.labels[gallery]}
        if table.camera is not None:
            options |= {"cameras": table.camera[query], "gallery_cameras": table.camera[gallery]}
    else:
        query = there & (table.labels >= 0)
    labels = table.labels[query]
    if not len(labels):
        raise ConfigError(f"{table.name} has no test image that could be read and has a label")
    found: dict[str, Floats] = search_for(binary)(embeddings[query], labels, **options)["per_query"]
    used = ~np.isnan(found[METRICS[0]])
    return {name: found[name][used] for name in METRICS}, np.flatnonzero(query)[used]


def _stacked(seeds: Sequence[Mapping[str, Floats]]) -> dict[str, Floats]:
    return {name: np.stack([values[name] for values in seeds]) for name in METRICS}
