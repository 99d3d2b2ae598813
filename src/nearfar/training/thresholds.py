"""The threshold of a run: from which similarity on two images count as the same, and what that is worth.

It is calibrated on held-out classes and measured on the test classes. What is repeated elsewhere (index, search, page,
card, report) is what was measured.
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

NO_BETTER = "no threshold: on held-out classes, training ended no better than it began"
NOTHING_HELD_OUT = "no threshold: nothing was held out of training to calibrate it on"


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
    """A threshold as plain values; a ValueError says why none can be promised.

    Args:
        held_out: the embeddings to calibrate it on.
        codes: whether the signs of the embeddings are compared.
        share: of the pairs that will be compared, those that are the same: what precision depends on.
        far, precision: what is wished; one of them.
        test: embeddings and labels of the test rows, on which the threshold is measured as "measured".
        seed: of the images drawn where there are too many pairs.
    """
    unseen = None if test is None else max(2, len(np.unique(test[1][test[1] >= 0])))
    found = calibrate_on_classes(
        signs(held_out.embeddings) if codes else held_out.embeddings,
        held_out.labels,
        fold=held_out.fold,
        far=far,
        precision=precision,
        share=share,
        unseen=unseen,
        seed=seed,
    )
    result = found.to_dict()
    if test is not None:
        compared = signs(test[0]) if codes else test[0]
        measured = measured_at(found.threshold, compared, test[1], share=share, seed=seed)
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
    """The threshold that a run ends with, and what to say of it, or of why there is none.

    Args:
        wished: a precision or a false-accept rate, and the share of same pairs; by default that of the data.
        labels: of all rows of the data.
    """
    if held_out is None:
        return None, NOTHING_HELD_OUT
    share = wished.share or pair_share(labels)
    goal = {"precision": wished.target_precision} if wished.target_far is None else {"far": wished.target_far}
    try:
        found = calibrated(held_out, codes=codes, share=share, test=test, seed=seed, **goal)
    except ValueError as error:
        return None, str(error)
    return found, said(found)


def said(threshold: Mapping[str, Any]) -> str:
    """A threshold in words: what it was measured to be worth, or that it was not measured."""
    words = f"two images count as the same from a similarity of {threshold['threshold']:.3f} on{_wish(threshold)}"
    found = threshold.get("measured")
    if found is None:
        return f"{words}; what that is worth on classes never seen has not been measured"
    right = "none is accepted there"
    if found["precision"] is not None:
        right = (
            f"{_share(found, 'precision')} of the accepted pairs are right where {in_percent(found['share'])} of all "
            "pairs are the same"
        )
    doubt = "" if _kept(threshold) else ". So these classes do not keep what the held-out ones promised"
    return (
        f"{words}. Measured on {found['classes']:,} classes never trained on, with {in_percent(found['confidence'])} "
        f"intervals: {right}; {_share(found, 'tar')} of the same pairs are found; {_share(found, 'far')} of the others "
        f"are accepted{doubt}"
    )


def _wish(threshold: Mapping[str, Any]) -> str:
    """What a threshold was calibrated for; nothing for one that was given."""
    goals = {"precision": "a precision", "far": "a false-accept rate"}
    if threshold.get("target") not in goals:
        return ""
    return f" (calibrated for {goals[threshold['target']]} of {in_percent(threshold['wished'])})"


def _kept(threshold: Mapping[str, Any]) -> bool:
    """Whether what was wished lies within the interval that was measured, or beyond it on the safe side."""
    target = threshold.get("target")
    measured = threshold["measured"].get(f"{target}_interval")
    if measured is None:
        return True
    return bool(measured[1] >= threshold["wished"] if target == "precision" else measured[0] <= threshold["wished"])


def _share(found: Mapping[str, Any], name: str) -> str:
    return f"{in_percent(found[name])} ({range_in_percent(found[f'{name}_interval'])})"
