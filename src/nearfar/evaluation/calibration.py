"""Thresholds on scores for a target precision or false accept rate."""

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from nearfar.errors import InputError
from nearfar.evaluation import inputs
from nearfar.evaluation.verification import ScoredPairs


@dataclass(frozen=True)
class Threshold:
    """A threshold: pairs with at least this score are accepted as the same. The rates and counts are those of the pairs
    that it was chosen on.
    """

    threshold: float
    target: Literal["precision", "far"]
    wished: float
    precision: float
    far: float
    tar: float
    true_accepts: int
    false_accepts: int
    same_pairs: int
    different_pairs: int
    prior: float  # the share of same pairs that the precision assumes

    def accepts(self, scores: Any) -> npt.NDArray[np.bool_]:
        """Whether each score is accepted."""
        accepted: npt.NDArray[np.bool_] = inputs.to_numpy(scores) >= self.threshold
        return accepted

    def to_dict(self) -> dict[str, Any]:
        """The fields as JSON values; `Threshold(**values)` is the inverse."""
        return asdict(self)


def calibrate(
    scores: Any,
    same: Any,
    *,
    precision: float | None = None,
    far: float | None = None,
    prior: float | None = None,
) -> Threshold:
    """Choose the threshold of largest TAR with a target precision or false accept rate on labelled pairs.

    `far=F` requires FAR <= F. `precision=P` requires that at least a share P of the accepted pairs are the same. The
    threshold lies half-way between two scores. Raises `InputError`, with what can be reached, if no threshold that
    accepts a same pair meets the target, or if there are too few pairs to measure it.

    Args:
        scores: (n,) similarities, higher for more alike, of pairs that the model was not trained on.
        same: (n,) booleans, True for pairs that are the same.
        precision, far: the target; give one of the two.
        prior: the share of same pairs in use, on which the precision depends:
            prior·TAR / (prior·TAR + (1 - prior)·FAR). By default their share among these pairs.
    """
    if (precision is None) == (far is None):
        raise InputError("give either precision= or far=")
    pairs = ScoredPairs.count(scores, same)
    if prior is None:
        prior = pairs.same / (pairs.same + pairs.different)
        weight = 1.0  # exact, because the counts are used unchanged
    elif 0 < prior < 1:
        weight = (1 - prior) / prior * pairs.same / pairs.different
    else:
        raise InputError(f"prior must be the share of same pairs, between 0 and 1, not {prior}")
    accepted = pairs.true_accepts + weight * pairs.false_accepts
    precisions = pairs.true_accepts / np.where(accepted > 0, accepted, 1)
    point = _at_far(pairs, far) if precision is None else _at_precision(precisions, precision)
    return Threshold(
        threshold=pairs.threshold(point),
        target="far" if precision is None else "precision",
        wished=float(far if precision is None else precision),  # type: ignore[arg-type]
        precision=float(precisions[point]),
        far=int(pairs.false_accepts[point]) / pairs.different,
        tar=int(pairs.true_accepts[point]) / pairs.same,
        true_accepts=int(pairs.true_accepts[point]),
        false_accepts=int(pairs.false_accepts[point]),
        same_pairs=pairs.same,
        different_pairs=pairs.different,
        prior=prior,
    )


def _at_far(pairs: ScoredPairs, far: float | None) -> int:
    assert far is not None
    if not 0 < far <= 1:
        raise InputError(f"far must be above 0 and at most 1, not {far}: no number of pairs can show that it is 0")
    if far < 1 / pairs.different:
        raise InputError(
            f"a FAR of {far:g} cannot be measured with {pairs.different} different pairs: "
            f"give at least {math.ceil(1 / far):,}, or a FAR of at least {1 / pairs.different:.3g}"
        )
    point = pairs.within_far(far)
    if not pairs.true_accepts[point]:
        first = int(np.argmax(pairs.true_accepts > 0))
        raise InputError(
            f"no threshold with a FAR of at most {far:g} accepts a same pair: give a FAR of at least "
            f"{pairs.false_accepts[first] / pairs.different:.3g}"
        )
    return point


def _at_precision(precisions: npt.NDArray[np.float64], precision: float) -> int:
    if not 0 < precision <= 1:
        raise InputError(f"precision must be above 0 and at most 1, not {precision}")
    reached = np.flatnonzero(precisions >= precision)
    if not len(reached):
        raise InputError(
            f"no threshold has a precision of {precision:g} on these pairs: the highest is {precisions.max():.4g}"
        )
    return int(reached[-1])  # the lowest threshold has the largest TAR
