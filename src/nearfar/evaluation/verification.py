"""Verification: do two pictures show the same? Scores of labelled pairs, turned into the numbers people publish.

A threshold t accepts every pair with score >= t, so that equal scores are accepted or refused together:

    TAR(t) = accepted same pairs / same pairs            FAR(t) = accepted different pairs / different pairs

Scores are similarities, higher for more alike; negate distances.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from nearfar.errors import InputError, InputTypeError
from nearfar.evaluation import inputs

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
PAIRS_AT_A_TIME = 2**23  # numbers gathered by pair_scores at a time


@dataclass(frozen=True)
class Roc:
    """One point per distinct score, from the highest down; the first point accepts nothing (threshold = infinity)."""

    thresholds: Floats
    far: Floats
    tar: Floats


@dataclass(frozen=True)
class ScoredPairs:
    """How many pairs of each kind each threshold accepts: `thresholds` are the distinct scores from the highest down,
    led by infinity, which accepts none.
    """

    thresholds: Floats
    true_accepts: Ints
    false_accepts: Ints

    @property
    def same(self) -> int:
        """How many same pairs there are."""
        return int(self.true_accepts[-1])

    @property
    def different(self) -> int:
        """How many different pairs there are."""
        return int(self.false_accepts[-1])

    @classmethod
    def count(cls, scores: Any, same: Any) -> "ScoredPairs":
        """From scores (n,) and whether each pair is of the same, (n,) booleans. Both kinds must be there."""
        values, kinds = _checked(scores, same)
        order = np.argsort(-values, kind="stable")
        values, kinds = values[order], kinds[order]
        last = np.flatnonzero(np.r_[values[1:] != values[:-1], True])  # of each run of equal scores
        accepted = np.cumsum(kinds)[last]
        return cls(
            np.r_[np.inf, values[last].astype(np.float64)],
            np.r_[0, accepted].astype(np.int64),
            np.r_[0, last + 1 - accepted].astype(np.int64),
        )

    def threshold(self, point: int) -> float:
        """A threshold that accepts what point `point` accepts: half-way to the next lower score, so that rounding on
        another machine does not turn a pair over; infinity for the point that accepts nothing.
        """
        upper = float(self.thresholds[point])
        if point == 0 or point == len(self.thresholds) - 1:
            return upper
        lower = float(self.thresholds[point + 1])
        middle = lower + (upper - lower) / 2
        return middle if lower < middle else upper

    def within_far(self, far: float) -> int:
        """The strict rule: the point of largest TAR whose FAR is at most `far`."""
        return int(np.searchsorted(self.false_accepts / self.different, far, side="right")) - 1

    def most_accurate(self) -> int:
        """The point of highest accuracy; of several, the one with the highest threshold."""
        return int(np.argmax(self.true_accepts - self.false_accepts))

    def accuracy(self, point: int) -> float:
        """The share of pairs that are decided rightly."""
        right = int(self.true_accepts[point]) + self.different - int(self.false_accepts[point])
        return right / (self.same + self.different)


def roc_curve(scores: Any, same: Any) -> Roc:
    """The receiver operating characteristic: FAR and TAR at every distinct score.

    Args:
        scores: (n,) similarities, higher for more alike.
        same: (n,) booleans, True where the two are the same.
    """
    pairs = ScoredPairs.count(scores, same)
    return Roc(pairs.thresholds, pairs.false_accepts / pairs.different, pairs.true_accepts / pairs.same)


def verification_metrics(
    scores: Any,
    same: Any,
    *,
    fars: Sequence[float] = (1e-3, 1e-2),
    folds: int | Any | None = None,
    thresholds: Sequence[float] | npt.NDArray[Any] | None = None,
) -> dict[str, float]:
    """The numbers of a verification test.

    - `auc`: area under the ROC curve; the chance that a same pair scores higher than a different one, ties half.
    - `eer`, `eer_threshold`: where FAR = 1 - TAR on the ROC curve, its points joined by straight lines; the threshold
      is that of the point nearest to it.
    - `tar@far=F`, `threshold@far=F`: by the strict rule, the largest TAR at any threshold whose FAR is at most F. It is
      never interpolated, and never that of a nearest point beyond F. With fewer than 1 / F different pairs F cannot be
      measured: a warning says that the value is that at no false accept.
    - `accuracy`, `threshold`: of the best single threshold, chosen on these very pairs (so it is optimistic).
    - `pairs`, `same_pairs`: how many.

    With `folds`, as on LFW: for every fold the threshold is chosen on the other folds and tested on it. `accuracy_mean`
    and `accuracy_std` (of the folds, divided by their number, as insightface has it), and `accuracy_fold_1` and on.

    Args:
        scores: (n,) similarities, higher for more alike; negate distances.
        same: (n,) booleans, True where the two are the same.
        fars: the false accept rates.
        folds: a number of folds of consecutive pairs (10 for LFW in the order of its pairs.txt), or every pair's fold
            (n,). Every fold needs pairs of both kinds.
        thresholds: the thresholds that folds choose among, the first best one winning, such as
            `-numpy.arange(0, 4, 0.01)` for insightface's grid with scores of minus the squared distance. Without it
            every threshold is tried: the most accurate one half-way between two scores, the highest of several.
    """
    pairs = ScoredPairs.count(scores, same)
    far, tar = pairs.false_accepts / pairs.different, pairs.true_accepts / pairs.same
    eer, at = _equal_error(far, tar)
    best = pairs.most_accurate()
    result = {
        "auc": float(np.sum(np.diff(far) * (tar[1:] + tar[:-1]) / 2)),
        "eer": eer,
        "eer_threshold": pairs.threshold(at),
    }
    for wished in fars:
        check_rate(wished, "a FAR")
        if 0 < wished < 1 / pairs.different:
            warnings.warn(
                f"FAR {wished:g} cannot be measured with {pairs.different} different pairs: "
                f"tar@far={wished:g} is that at no false accept",
                stacklevel=2,
            )
        point = pairs.within_far(wished)
        result[f"tar@far={wished:g}"] = float(tar[point])
        result[f"threshold@far={wished:g}"] = pairs.threshold(point)
    result |= {"accuracy": pairs.accuracy(best), "threshold": pairs.threshold(best)}
    if folds is not None:
        accuracies = fold_accuracies(scores, same, folds=folds, thresholds=thresholds)
        result |= {"accuracy_mean": float(accuracies.mean()), "accuracy_std": float(accuracies.std())}
        result |= {f"accuracy_fold_{number}": float(value) for number, value in enumerate(accuracies, 1)}
    elif thresholds is not None:
        raise InputError("thresholds= are what folds choose among: give folds= too")
    return result | {"pairs": pairs.same + pairs.different, "same_pairs": pairs.same}


def fold_accuracies(
    scores: Any,
    same: Any,
    *,
    folds: int | Any = 10,
    thresholds: Sequence[float] | npt.NDArray[Any] | None = None,
) -> Floats:
    """The accuracy of every fold with the threshold chosen on the others; see `verification_metrics`."""
    values, kinds = _checked(scores, same)
    fold = _fold_of_each(folds, len(values))
    accuracies = []
    for number in range(int(fold.max()) + 1):
        test = fold == number
        if kinds[test].all() or not kinds[test].any():
            raise InputError(
                f"fold {number + 1} has {int(kinds[test].sum())} same and {int((~kinds[test]).sum())} different pairs, "
                "but needs both: order the pairs fold by fold as LFW's pairs.txt does, or give every pair's fold"
            )
        if thresholds is None:
            train = ScoredPairs.count(values[~test], kinds[~test])
            threshold = train.threshold(train.most_accurate())
        else:
            threshold = _best_of_grid(values[~test], kinds[~test], np.asarray(thresholds, dtype=np.float64))
        accuracies.append(float(np.mean((values[test] >= threshold) == kinds[test])))
    return np.array(accuracies)


def pair_scores(embeddings: Any, pairs: Any, other: Any = None) -> npt.NDArray[np.float32]:
    """The cosine of every pair, to be handed to `verification_metrics`. A zero vector has cosine 0 with everything.

    Args:
        embeddings: (N, D), a tensor, an array or a memory map; only the rows that are named are read.
        pairs: (n, 2) indices: the first into `embeddings`, the second too, or into `other`.
        other: (M, D), if the second of each pair is of another set.
    """
    left = inputs.Rows(embeddings, "embeddings")
    right = left if other is None else inputs.Rows(other, "other")
    if left.dimension != right.dimension:
        raise InputError(f"embeddings have {left.dimension} dimensions, but other has {right.dimension}")
    index = inputs.indices(pairs, "pairs", columns=(len(left), len(right)))
    scores = np.empty(len(index), dtype=np.float32)
    step = max(1, PAIRS_AT_A_TIME // max(1, left.dimension))
    for start in range(0, len(index), step):
        block = index[start : start + step]
        a, b = left.normalized(block[:, 0]), right.normalized(block[:, 1])
        scores[start : start + step] = torch.einsum("id,id->i", a, b).cpu().numpy()
    return scores


def _checked(scores: Any, same: Any) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]:
    values, kinds = inputs.to_numpy(scores), inputs.to_numpy(same)
    if values.ndim != 1 or kinds.ndim != 1 or len(values) != len(kinds):
        raise InputError(
            f"scores {values.shape} and same {kinds.shape} must be two lists of one length: "
            "the score of every pair, and whether it is of the same"
        )
    if values.dtype.kind not in "fiub":
        raise InputTypeError(f"scores must be numbers, not {values.dtype}")
    if values.dtype.kind != "f":
        whole, values = values, values.astype(np.float64)
        if (values.astype(whole.dtype) != whole).any():
            raise InputError(f"scores are {whole.dtype} beyond 2^53, which float64 does not hold: subtract a constant")
    if kinds.dtype != np.bool_:
        if not np.isin(kinds, (0, 1)).all():
            raise InputError(f"same must be booleans, or 0 and 1, not {kinds.dtype} with other values")
        kinds = kinds.astype(np.bool_)
    bad = ~np.isfinite(values)
    if bad.any():
        raise InputError(f"{int(bad.sum())} of {len(bad)} scores are NaN or infinite (first: {int(bad.argmax())})")
    if not kinds.any() or kinds.all():
        raise InputError(
            f"there are {int(kinds.sum())} same and {int((~kinds).sum())} different pairs: both kinds are needed"
        )
    return values, kinds


def check_rate(rate: float, name: str) -> None:
    """A share."""
    if not 0 <= rate <= 1:
        raise InputError(f"{name} is a share between 0 and 1, not {rate}")


def _equal_error(far: Floats, tar: Floats) -> tuple[float, int]:
    """The rate at which FAR = 1 - TAR on the straight lines between the points, and the point nearest to it."""
    excess = far - (1 - tar)  # rises from -1 to 1
    after = int(np.searchsorted(excess, 0))
    before = after - 1
    share = excess[before] / (excess[before] - excess[after])
    nearest = before if -excess[before] < excess[after] else after
    return float(far[before] + share * (far[after] - far[before])), nearest


def _fold_of_each(folds: int | Any, n: int) -> Ints:
    """Folds 0, 1, ... of n pairs: consecutive ones of nearly equal size, or those that are given."""
    if isinstance(folds, Integral):
        folds = int(folds)
        if not 2 <= folds <= n:
            raise InputError(f"{folds} folds of {n} pairs: there must be at least two, and a pair for each")
        sizes = [n // folds + (number < n % folds) for number in range(folds)]
        return np.repeat(np.arange(folds), sizes)
    given = inputs.to_numpy(folds)
    if given.shape != (n,):
        raise InputError(f"folds {given.shape} must name the fold of each of the {n} pairs, or be their number")
    names, fold = np.unique(given, return_inverse=True)
    if len(names) < 2:
        raise InputError("all pairs are of one fold: a threshold is chosen on other folds, so there must be two")
    return fold.astype(np.int64)


def _best_of_grid(values: npt.NDArray[Any], kinds: npt.NDArray[np.bool_], grid: Floats) -> float:
    if grid.ndim != 1 or not len(grid) or np.isnan(grid).any():
        raise InputError("thresholds must be a list of numbers")
    same, different = np.sort(values[kinds]), np.sort(values[~kinds])
    accepted = (len(same) - np.searchsorted(same, grid)) - (len(different) - np.searchsorted(different, grid))
    return float(grid[np.argmax(accepted)])
