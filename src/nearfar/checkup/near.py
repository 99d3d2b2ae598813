"""Near-identical images on both sides of the split, by the features of the pretrained trunk."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from nearfar.checkup.files import MOST_GROUPS
from nearfar.checkup.finding import Finding, first
from nearfar.data import Table
from nearfar.data.survey import row_name
from nearfar.retrieval.duplicates import THRESHOLD, near_pairs
from nearfar.retrieval.encoder import Encoder
from nearfar.retrieval.index import RetrievalError
from nearfar.retrieval.vectors import unit
from nearfar.training.build import build_embedder
from nearfar.training.candidates import without_head
from nearfar.training.config import TrainConfig
from nearfar.training.defaults import resolve
from nearfar.training.progress import counted

FEW_CLASSES = 16  # below, a sample has rows of every class
ALIKE = 0.2  # share of test images with a near-identical one above which the trunk cannot distinguish images
MOST_IMAGES = 50_000  # the most images to compare with each other

Strings = NDArray[np.str_]


def nearly_identical(
    config: TrainConfig,
    table: Table,
    parts: Strings,
    fingerprints: Strings,
    advance: Callable[[int], None] | None = None,
) -> tuple[list[Finding], str]:
    """Find test images that are nearly identical to training images, except for identical files. If the trunk cannot
    distinguish the images, return a note instead.

    Args:
        config: the configuration with a pretrained trunk.
        parts: the split of each row: "train", "val" or "test"; rows with "" are left out.
        fingerprints: the fingerprint of each row's file.
    """
    pairs = _pairs(config, table, advance)
    if pairs is None:
        return [], _too_much_alike(table)
    left, right, similarity = pairs
    tested = parts == "test"
    across = (tested[left] != tested[right]) & (parts[left] != "") & (parts[right] != "")
    left, right, similarity = (column[across] for column in (left, right, similarity))
    left, right = np.where(tested[left], right, left), np.where(tested[left], left, right)  # trained on, tested
    if len(np.unique(right)) > ALIKE * np.count_nonzero(tested):
        return [], _too_much_alike(table)
    other = fingerprints[left] != fingerprints[right]
    order = np.argsort(-similarity[other], kind="stable")
    left, right, similarity = (column[other][order] for column in (left, right, similarity))
    _, nearest = np.unique(right, return_index=True)  # the most similar image of each test image
    nearest = np.sort(nearest)
    if not len(nearest):
        return [], ""
    verb = "is" if len(nearest) == 1 else "are"
    what = f"{counted(len(nearest), 'test picture')} {verb} nearly identical to a training picture"
    advice = "Metrics may be too high. nearfar duplicates DATA shows them: keep both on one side, or drop one"
    lines = [
        f"{row_name(table, int(left[n]))} ({parts[left[n]]}) ~ {row_name(table, int(right[n]))} (test): "
        f"similarity {similarity[n]:.3f}"
        for n in nearest.tolist()
    ]
    return [Finding(what, advice, first(lines, MOST_GROUPS))], ""


def _pairs(
    config: TrainConfig, table: Table, advance: Callable[[int], None] | None
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]] | None:
    """All near-identical pairs of rows; None if there are millions."""
    plain = replace(config, model=without_head(config.model))
    encoder = Encoder(build_embedder(resolve(plain, table)), max_broken=1.0)
    assert table.images is not None
    vectors = np.concatenate(list(encoder.gallery(table.images, advance=advance)))
    readable = np.flatnonzero(~np.isnan(vectors).any(1))
    try:
        left, right, similarity = near_pairs(unit(vectors[readable]), THRESHOLD)
    except RetrievalError:
        return None
    return readable[left], readable[right], similarity


def _too_much_alike(table: Table) -> str:
    return (
        f"the pretrained network finds too many pictures of {table.name} alike to detect near-identical ones: try "
        "nearfar duplicates DATA --threshold 0.97"
    )


def sample(table: Table, count: int, seed: int) -> NDArray[np.int64]:
    """Sample about `count` rows, in order: whole classes, so that near-identical images of a class stay together; with
    few classes, some rows of each.
    """
    if count >= len(table):
        return np.arange(len(table))
    rng = np.random.default_rng([seed, 3])
    if table.num_classes < FEW_CLASSES:
        return np.sort(rng.permutation(len(table))[:count])
    order = rng.permutation(table.classes)
    sizes = np.bincount(table.labels[table.labels >= 0], minlength=len(table.label_names))[order]
    chosen = order[: max(FEW_CLASSES, int(np.searchsorted(np.cumsum(sizes), count, side="right")))]
    return np.flatnonzero(np.isin(table.labels, chosen))
