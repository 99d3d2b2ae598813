"""A model measured on a table: every retrieval metric, and verification where the table has lists of pairs."""

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
    """A transform, and then the mirror image."""

    takes_any_image = True  # as the embedder's own does

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

    In a world, every process embeds its part, and all have all. `advance` is called with the number of images done.
    """
    if world is not None and world.size > 1:
        return world.gathered(embed(embedder, table.select(world.part(len(table))), config, advance=advance))
    if config.model.freeze and not config.evaluation.flip:
        return _projected(embedder, table, config, advance)
    images: Any = table.images
    batches = embedder.stream(images, max_broken=config.data.max_broken, advance=advance)
    found = torch.from_numpy(gathered(batches, len(images), embedder.dimension))
    if config.evaluation.flip:
        rows = embedder.stream(images, transform=_Mirrored(embedder.transform), max_broken=config.data.max_broken)
        found = functional.normalize(found + torch.from_numpy(np.concatenate(list(rows))), dim=1)
    return found.numpy()


def _projected(embedder: Embedder, table: Table, config: TrainConfig, advance: Callable[[int], None] | None) -> Floats:
    """By the head alone, from cached features of the frozen trunk."""
    features = cached_features(embedder, table, config, advance=advance)
    there = np.setdiff1d(np.arange(len(features)), features.missing)
    result = np.full((len(features), embedder.dimension), np.nan, np.float32)
    device = embedder.device
    was_training = embedder.training
    embedder.eval()
    try:
        with torch.inference_mode():
            for start in range(0, len(there), PROJECTED_AT_A_TIME):
                rows = there[start : start + PROJECTED_AT_A_TIME]
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
    """Metrics of embeddings of a table's rows. In a world, every process has all of them, and searches for its part.

    Binary embeddings are measured as an index searches them: their codes, by Hamming distance. What the cosines of the
    numbers behind the codes would give stands beside it, as "cosine recall@1" and the like.

    Queries search the gallery where the table has them, with cameras where it knows them; else every row searches all
    others. Lists of pairs add "NAME accuracy" and the like.

    Args:
        binary: whether the signs are what counts, as `Embedder.binary` says.
        ci: add intervals, over classes: what is drawn at random are classes, whose queries resemble each other.
        per_query: add the values of every query as "per_query", and the labels of the queries as "query_labels".
    """
    result: dict[str, Any] = {}
    cosines = numbers(measure(embeddings, table, ks, world=world)) if binary else {}
    embeddings = signs(embeddings) if binary else embeddings
    there: NDArray[np.bool_] = np.asarray(~np.isnan(embeddings).any(1))
    if {"query", "gallery"} <= set(table.split_names):
        result = _query_gallery(embeddings, table, there, ks, search_for(binary, world))
        result["query_labels"] = table.labels[there & (table.split_ids == SPLITS.index("query"))]
    else:
        labelled = there & (table.labels >= 0)
        if len(np.unique(table.labels[labelled])) < np.count_nonzero(labelled):  # someone has a match
            search = search_for(binary, world)
            result = search(embeddings[labelled], table.labels[labelled], ks, per_query=True, progress=False)
            result["query_labels"] = table.labels[labelled]
    if ci and result:
        labels, found = result["query_labels"], result["per_query"]
        used = ~np.isnan(next(iter(found.values())))
        result |= {"ci": intervals(found, labels), "ci_classes": len(np.unique(labels[used]))}
    if not per_query:
        result = {name: value for name, value in result.items() if name not in ("per_query", "query_labels")}
    for name, pairs in table.pairs.items():
        if pairs.of == "row" and len(pairs):
            both = there[pairs.first] & there[pairs.second]
            scores = pair_scores(embeddings, np.stack([pairs.first, pairs.second], 1)[both])
            if binary:
                scores = on_grid(scores, embeddings.shape[1])
            found = verification_metrics(scores, pairs.same[both])
            result |= {f"{name} {metric}": value for metric, value in found.items() if isinstance(value, float)}
    return result | {f"cosine {name}": value for name, value in cosines.items() if isinstance(value, float)}


def search_for(binary: bool, world: World | None = None) -> Callable[..., dict[str, Any]]:
    """`retrieval_metrics`, of binary embeddings by Hamming distance; in a world, with the queries shared out."""
    if binary:  # codes are so small that every process searches all of them
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
    there: NDArray[np.bool_],
    ks: tuple[int, ...],
    search: Callable[..., dict[str, Any]],
) -> dict[str, Any]:
    query, gallery = (there & (table.split_ids == SPLITS.index(name)) for name in ("query", "gallery"))
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
    """Those metrics that are numbers."""
    return {name: value for name, value in metrics.items() if isinstance(value, (int, float))}
