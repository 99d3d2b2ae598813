"""The threshold of an index: from which similarity on two images count as the same."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

import nearfar.data
from nearfar.data import Table
from nearfar.errors import InputError
from nearfar.evaluation import calibrate
from nearfar.retrieval.encoder import Encoder
from nearfar.retrieval.index import Floats, RetrievalError
from nearfar.retrieval.vectors import packed, unit, unpacked
from nearfar.training.runs import Run
from nearfar.training.splits import split

MOST_IMAGES = 2_000  # compared with each other: two million pairs


def calibrated(
    run: Run, encoder: Encoder, *, far: float | None = None, precision: float | None = None
) -> Mapping[str, Any] | None:
    """The run's own threshold; or, where another false accept rate or precision is wished, one found on the images that
    the run held out for validation (on training images, where it held out none: then it is too hopeful).

    The threshold of a run is for cosines. For binary codes it is found anew, at the precision that the run wished.

    Returns what `nearfar.evaluation.Threshold.to_dict` gives, with the images it was found on as `images`; None where
    the run has none and none is asked for.
    """
    if far is None and precision is None:
        own = encoder.threshold
        if encoder.similarity == "cosine" or own is None:
            return own
        try:
            return calibrated(run, encoder, precision=float(own["wished"]))
        except (InputError, RetrievalError):  # what cosines reach, codes need not
            return None
    config = run.config
    parts = split(nearfar.data.open(config.data.path, config.data.layout), config.data, config.seed)
    name, table = ("validation", parts.val) if parts.val is not None else ("training", parts.train)
    assert table is not None
    vectors, labels = _embedded(encoder, table, config.seed)
    first, second = np.triu_indices(len(labels), 1)
    same = labels[first] == labels[second]
    if not same.any() or same.all():
        raise RetrievalError(f"the {name} images of {config.data.path} are no pairs of one class and of two")
    found = calibrate((vectors @ vectors.T)[first, second], same, far=far, precision=precision)
    return {**dataclasses.asdict(found), "images": name}


def _embedded(encoder: Encoder, table: Table, seed: int) -> tuple[Floats, Any]:
    """Some labelled images as the index keeps them, and their labels."""
    rows = np.flatnonzero(table.labels >= 0)
    if len(rows) > MOST_IMAGES:
        rows = np.sort(np.random.default_rng(seed).choice(rows, MOST_IMAGES, replace=False))
    table = table.select(rows)
    if table.images is None:
        raise RetrievalError(f"{table.name} has no images, only features")
    vectors = np.concatenate(list(encoder.gallery(table.images)))
    good = ~np.isnan(vectors).any(1)
    vectors, labels = vectors[good], table.labels[good]
    if encoder.similarity == "hamming":
        return unpacked(packed(vectors), encoder.dimension), labels
    return unit(vectors), labels


def described(threshold: Mapping[str, Any] | None) -> str:
    """A threshold in words."""
    if threshold is None:
        return "no calibrated threshold"
    wished = "FAR" if threshold["target"] == "far" else "precision"
    return (
        f"two images count as the same from a similarity of {threshold['threshold']:.3f} on "
        f"({wished} {threshold['wished']:g} on {threshold.get('images', 'validation')} images: "
        f"{threshold['tar']:.1%} of pairs that are the same are found)"
    )
