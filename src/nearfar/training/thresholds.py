"""The threshold of a run: the similarity from which two images count as the same, and its measured accuracy.

It is calibrated on held-out classes and measured on the test classes. Index, search, page, model card and report show
the measured values.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nearfar.evaluation import calibrate_on_classes, measured_at
from nearfar.evaluation.class_intervals import in_percent, range_in_percent
from nearfar.evaluation.hamming import signs
from nearfar.training.config import EvaluationConfig
from nearfar.training.held_out import HeldOut

NO_BETTER = "no threshold: on held-out classes, training did not improve the model"
NOTHING_HELD_OUT = "no threshold: no classes were held out to calibrate it on"


def pair_share(labels: NDArray[np.int64]) -> float:
    """The share of same-class pairs among all pairs of labelled rows.

    >>> pair_share(np.array([0, 0, 1, 1, -1]))
    0.3333333333333333
    """
    counts = np.unique(labels[labels >= 0], return_counts=True)[1].astype(np.float64)
    return float((counts * (counts - 1)).sum() / (counts.sum() * (counts.sum() - 1)))


def calibrated(
    held_out: HeldOut,
    *,
    codes: bool,
    share: float,
    far: float | None = None,
    precision: float | None = None,
    test: tuple[NDArray[np.float32], NDArray[np.int64]] | None = None,
    seed: int = 0,
) -> dict[str, Any]:
    """Calibrate a threshold, as plain values; a ValueError says why there is none.

    Args:
        held_out: the embeddings to calibrate on.
        codes: whether the signs of the embeddings are compared.
        share: the share of same pairs among those that will be compared, which precision depends on.
        far, precision: the target; exactly one of them.
        test: embeddings and labels of the test rows; the threshold is measured on them as "measured".
        seed: seed for sampling images if there are too many pairs.
    """
    unseen = None if test is None else max(2, len(np.unique(test[1][test[1] >= 0])))
    threshold = calibrate_on_classes(
        signs(held_out.embeddings) if codes else held_out.embeddings,
        held_out.labels,
        fold=held_out.fold,
        far=far,
        precision=precision,
        share=share,
        unseen=unseen,
        seed=seed,
    )
    result = threshold.to_dict()
    if test is not None:
        compared = signs(test[0]) if codes else test[0]
        measured = measured_at(threshold.threshold, compared, test[1], share=share, seed=seed)
        result["measured"] = measured.to_dict()
    return result


def of_run(
    held_out: HeldOut | None,
    wished: EvaluationConfig,
    labels: NDArray[np.int64],
    *,
    codes: bool,
    test: tuple[NDArray[np.float32], NDArray[np.int64]] | None,
    seed: int = 0,
) -> tuple[dict[str, Any] | None, str]:
    """Calibrate the threshold of a run; returns it with a sentence that describes it, or None and the reason.

    Args:
        wished: the settings with the target and the share of same pairs; by default the share in the data.
        labels: the labels of all rows of the data.
    """
    if held_out is None:
        return None, NOTHING_HELD_OUT
    share = wished.share or pair_share(labels)
    goal = {"precision": wished.target_precision} if wished.target_far is None else {"far": wished.target_far}
    try:
        threshold = calibrated(held_out, codes=codes, share=share, test=test, seed=seed, **goal)
    except ValueError as error:
        return None, str(error)
    return threshold, said(threshold)


def said(threshold: Mapping[str, Any]) -> str:
    """Describe a threshold and its measured accuracy in a sentence."""
    sentence = f"two images count as the same from a similarity of {threshold['threshold']:.3f} on{_wish(threshold)}"
    measured = threshold.get("measured")
    if measured is None:
        return f"{sentence}; its accuracy on unseen classes has not been measured"
    right = "no pair is accepted"
    if measured["precision"] is not None:
        right = (
            f"{_share(measured, 'precision')} of the accepted pairs are right if {in_percent(measured['share'])} of "
            "all pairs are the same"
        )
    doubt = "" if _meets_target(threshold) else ". So the target is missed on these classes"
    return (
        f"{sentence}. Measured on {measured['classes']:,} unseen classes, with {in_percent(measured['confidence'])} "
        f"intervals: {right}; {_share(measured, 'tar')} of the same pairs are found; {_share(measured, 'far')} of the "
        f"others are accepted{doubt}"
    )


def _wish(threshold: Mapping[str, Any]) -> str:
    """The target that a threshold was calibrated for; empty for one set by the user."""
    goals = {"precision": "a precision", "far": "a false-accept rate"}
    if threshold.get("target") not in goals:
        return ""
    return f" (calibrated for {goals[threshold['target']]} of {in_percent(threshold['wished'])})"


def _meets_target(threshold: Mapping[str, Any]) -> bool:
    """Whether the measured interval contains the target or lies on its safe side."""
    target = threshold.get("target")
    measured = threshold["measured"].get(f"{target}_interval")
    if measured is None:
        return True
    return bool(measured[1] >= threshold["wished"] if target == "precision" else measured[0] <= threshold["wished"])


def _share(measured: Mapping[str, Any], name: str) -> str:
    return f"{in_percent(measured[name])} ({range_in_percent(measured[f'{name}_interval'])})"
