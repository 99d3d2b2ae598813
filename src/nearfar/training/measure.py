"""Evaluate a model on a table: retrieval metrics, and verification if the table has lists of pairs."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from nearfar.data import SPLITS, Table
from nearfar.evaluation import (
    distributed_retrieval_metrics,
    pack_bits,
    pair_scores,
    retrieval_metrics,
    verification_metrics,
)
from nearfar.evaluation.class_means import intervals
from nearfar.evaluation.hamming import on_grid, signs
from nearfar.models import Embedder
from nearfar.models.extraction import gathered
from nearfar.training.config import TrainConfig
from nearfar.training.data import cached_features
from nearfar.training.world import World

Floats = NDArray[np.float32]
PROJECTED_AT_A_TIME = 4096


class _Mirrored:
    """A transform followed by mirroring."""

    takes_any_image = True  # like the embedder's transform

    def __init__(self, transform: Any):
        self.transform = transform

    def __call__(self, image: Any) -> Tensor:
        mirrored: Tensor = self.transform(image).flip(-1)
        return mirrored


def embed(
    embedder: Embedder,
    table: Table,
    config: TrainConfig,
    world: World | None = None,
    advance: Callable[[int], None] | None = None,
) -> Floats:
    """Embeddings (N, D) of a table's rows; those of unreadable images are NaN.

    Every process embeds its share of the rows, and all processes get all embeddings. `advance` is called with the
    number of embedded images.
    """
    if world is not None and world.size > 1:
        return world.gathered(embed(embedder, table.select(world.part(len(table))), config, advance=advance))
    if config.model.freeze and not config.evaluation.flip:
        return _projected(embedder, table, config, advance)
    images: Any = table.images
    batches = embedder.stream(images, max_broken=config.data.max_broken, advance=advance)
    embeddings = torch.from_numpy(gathered(batches, len(images), embedder.dimension))
    if config.evaluation.flip:
        rows = embedder.stream(images, transform=_Mirrored(embedder.transform), max_broken=config.data.max_broken)
        embeddings = functional.normalize(embeddings + torch.from_numpy(np.concatenate(list(rows))), dim=1)
    return embeddings.numpy()


def _projected(embedder: Embedder, table: Table, config: TrainConfig, advance: Callable[[int], None] | None) -> Floats:
    """Embeddings computed by the head from cached features of the frozen trunk."""
    features = cached_features(embedder, table, config, advance=advance)
    readable = np.setdiff1d(np.arange(len(features)), features.missing)
    result = np.full((len(features), embedder.dimension), np.nan, np.float32)
    device = embedder.device
    was_training = embedder.training
    embedder.eval()
    try:
        with torch.inference_mode():
            for start in range(0, len(readable), PROJECTED_AT_A_TIME):
                rows = readable[start : start + PROJECTED_AT_A_TIME]
                result[rows] = embedder.project(torch.from_numpy(features.take(rows)).to(device)).float().cpu().numpy()
    finally:
        embedder.train(was_training)
    return result


def measure(
    embeddings: Floats,
    table: Table,
    ks: tuple[int, ...],
    *,
    binary: bool = False,
    ci: bool = False,
    per_query: bool = False,
    world: World | None = None,
) -> dict[str, Any]:
    """Compute metrics of embeddings of a table's rows. Every process has all rows, and searches for its share of them.

    Binary embeddings are compared as an index compares them: codes by Hamming distance. The metrics by cosine of the
    underlying real vectors are added as "cosine recall@1" and so on.

    Queries search the gallery if the table has them, with its cameras, if known; else every row searches all others.
    Lists of pairs add "NAME accuracy" and so on.

    Args:
        binary: whether to compare signs, as `Embedder.binary` says.
        ci: add intervals over classes, not queries, since the queries of a class resemble each other.
        per_query: add the values of every query as "per_query", and the labels of the queries as "query_labels".
    """
    result: dict[str, Any] = {}
    cosines = numbers(measure(embeddings, table, ks, world=world)) if binary else {}
    embeddings = signs(embeddings) if binary else embeddings
    readable: NDArray[np.bool_] = np.asarray(~np.isnan(embeddings).any(1))
    if {"query", "gallery"} <= set(table.split_names):
        result = _query_gallery(embeddings, table, readable, ks, search_for(binary, world))
        result["query_labels"] = table.labels[readable & (table.split_ids == SPLITS.index("query"))]
    else:
        labelled = readable & (table.labels >= 0)
        if len(np.unique(table.labels[labelled])) < np.count_nonzero(labelled):  # some row has a match
            search = search_for(binary, world)
            result = search(embeddings[labelled], table.labels[labelled], ks, per_query=True, progress=False)
            result["query_labels"] = table.labels[labelled]
    if ci and result:
        labels, values = result["query_labels"], result["per_query"]
        used = ~np.isnan(next(iter(values.values())))
        result |= {"ci": intervals(values, labels), "ci_classes": len(np.unique(labels[used]))}
    if not per_query:
        result = {name: value for name, value in result.items() if name not in ("per_query", "query_labels")}
    for name, pairs in table.pairs.items():
        if pairs.of == "row" and len(pairs):
            both = readable[pairs.first] & readable[pairs.second]
            scores = pair_scores(embeddings, np.stack([pairs.first, pairs.second], 1)[both])
            if binary:
                scores = on_grid(scores, embeddings.shape[1])
            verification = verification_metrics(scores, pairs.same[both])
            result |= {f"{name} {metric}": value for metric, value in verification.items() if isinstance(value, float)}
    return result | {f"cosine {name}": value for name, value in cosines.items() if isinstance(value, float)}


def search_for(binary: bool, world: World | None = None) -> Callable[..., dict[str, Any]]:
    """The function for retrieval metrics: Hamming distance for codes, otherwise queries shared among processes."""
    if binary:  # codes are small, so every process searches all of them
        return _search_codes
    if world is None or world.size == 1:
        return retrieval_metrics
    return partial(distributed_retrieval_metrics, holds="all")


def _search_codes(queries: Floats, *others: Any, gallery: Floats | None = None, **options: Any) -> dict[str, Any]:
    codes = None if gallery is None else pack_bits(gallery)
    return retrieval_metrics(pack_bits(queries), *others, gallery=codes, similarity="hamming", **options)


def _query_gallery(
    embeddings: Floats,
    table: Table,
    readable: NDArray[np.bool_],
    ks: tuple[int, ...],
    search: Callable[..., dict[str, Any]],
) -> dict[str, Any]:
    query, gallery = (readable & (table.split_ids == SPLITS.index(name)) for name in ("query", "gallery"))
    camera = table.camera
    cameras = {} if camera is None else {"cameras": camera[query], "gallery_cameras": camera[gallery]}
    return search(
        embeddings[query],
        table.labels[query],
        ks,
        gallery=embeddings[gallery],
        gallery_labels=table.labels[gallery],
        per_query=True,
        progress=False,
        **cameras,
    )


def numbers(metrics: dict[str, Any]) -> dict[str, float]:
    """The metrics that are numbers."""
    return {name: value for name, value in metrics.items() if isinstance(value, (int, float))}
