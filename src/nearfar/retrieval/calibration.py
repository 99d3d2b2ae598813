"""The threshold of an index: the similarity from which two images count as the same."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from nearfar.errors import InputError
from nearfar.retrieval.encoder import Encoder
from nearfar.retrieval.index import RetrievalError
from nearfar.training import thresholds
from nearfar.training.held_out import held_out_of
from nearfar.training.kept_split import parts_of
from nearfar.training.runs import Run


def calibrated(
    run: Run,
    encoder: Encoder,
    *,
    far: float | None = None,
    precision: float | None = None,
    share: float | None = None,
) -> Mapping[str, Any] | None:
    """The threshold of the run, or one for another false accept rate or precision, calibrated on the held-out rows of
    the run and measured on its test rows.

    Args:
        run: the run.
        encoder: the model of the run.
        far: the target false accept rate.
        precision: the target precision.
        share: the share of same pairs among the compared pairs; by default as in the run's data.

    Returns the result of `nearfar.training.thresholds.calibrated`. Without a target it is None if the run has no
    threshold.
    """
    if far is None and precision is None:
        return encoder.threshold
    for name, value in (("far", far), ("precision", precision), ("share", share)):
        if value is not None and not 0 < value < 1:
            raise RetrievalError(f"{name} must be above 0 and below 1, not {value:g}")
    held_out = held_out_of(run)
    if held_out is None:
        raise RetrievalError(
            f"{run.folder} has no held-out rows to calibrate a threshold on: it held none out, or was made by an older "
            "version. Train again"
        )
    parts = parts_of(run)
    test = None
    if parts.test is not None and parts.test.images is not None:
        test = np.concatenate(list(encoder.gallery(parts.test.images))), parts.test.labels
    try:
        return thresholds.calibrated(
            held_out,
            codes=encoder.similarity == "hamming",
            share=share or thresholds.pair_share(parts.table.labels),
            far=far,
            precision=precision,
            test=test,
            seed=run.config.seed,
        )
    except InputError as error:
        raise RetrievalError(str(error)) from error


def described(threshold: Mapping[str, Any] | None) -> str:
    """A description of a threshold for the user."""
    return "no calibrated threshold" if threshold is None else thresholds.said(threshold)
