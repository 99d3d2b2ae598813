"""Verification metrics: whether two images show the same, from the scores of labelled pairs.

A threshold t accepts every pair with score >= t, so that equal scores are accepted or rejected together:

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
PAIRS_AT_A_TIME = 2**23  # numbers gathered by pair_scores


@dataclass(frozen=True)
class Roc:
    """An ROC curve, with a point for each distinct score, descending. The first threshold is infinity."""

    thresholds: Floats
    far: Floats
    tar: Floats


@dataclass(frozen=True)
class ScoredPairs:
    """The numbers of same and different pairs that each threshold accepts. `thresholds` are infinity and then the
    distinct scores, descending.
    """

    thresholds: Floats
    true_accepts: Ints
    false_accepts: Ints

    @property
    def same(self) -> int:
        """The number of same pairs."""
        return int(self.true_accepts[-1])

    @property
    def different(self) -> int:
        """The number of different pairs."""
        return int(self.false_accepts[-1])

    @classmethod
    def count(cls, scores: Any, same: Any) -> "ScoredPairs":
        """Count from scores (n,) and booleans (n,) that are True for same pairs. There must be pairs of both kinds."""
        values, kinds = _checked(scores, same)
        order = np.argsort(-values, kind="stable")
        values, kinds = values[order], kinds[order]
        last = np.flatnonzero(np.r_[values[1:] != values[:-1], True])  # last of each run of equal scores
        accepted = np.cumsum(kinds)[last]
        return cls(
            np.r_[np.inf, values[last].astype(np.float64)],
            np.r_[0, accepted].astype(np.int64),
            np.r_[0, last + 1 - accepted].astype(np.int64),
        )

    def threshold(self, point: int) -> float:
        """The threshold of a point: half-way to the next lower score, so that rounding on another machine does not
        change a decision; infinity for the point that accepts nothing.
        """
        upper = float(self.thresholds[point])
        if point == 0 or point == len(self.thresholds) - 1:
            return upper
        lower = float(self.thresholds[point + 1])
        middle = lower + (upper - lower) / 2
        return middle if lower < middle else upper

    def within_far(self, far: float) -> int:
        """The point of largest TAR whose FAR is at most `far`."""
        return int(np.searchsorted(self.false_accepts / self.different, far, side="right")) - 1

    def most_accurate(self) -> int:
        """The point of highest accuracy, with the highest threshold among equals."""
        return int(np.argmax(self.true_accepts - self.false_accepts))

    def accuracy(self, point: int) -> float:
        """The share of correctly decided pairs."""
        right = int(self.true_accepts[point]) + self.different - int(self.false_accepts[point])
        return right / (self.same + self.different)


def roc_curve(scores: Any, same: Any) -> Roc:
    """The receiver operating characteristic: FAR and TAR at every distinct score.

    Args:
        scores: (n,) similarities, higher for more alike.
        same: (n,) booleans, True for same pairs.
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
    """Verification metrics of scored pairs.

    - `auc`: area under the ROC curve: the probability that a same pair scores higher than a different one (ties count
      half).
    - `eer`, `eer_threshold`: the rate at which FAR = 1 - TAR on the linearly interpolated ROC curve, and the threshold
      of the nearest point.
    - `tar@far=F`, `threshold@far=F`: the largest TAR at any threshold with a FAR of at most F, without interpolation.
      With fewer than 1 / F different pairs F cannot be measured, and a warning is issued: the TAR is that without false
      accepts.
    - `accuracy`, `threshold`: the best accuracy and its threshold, chosen on the same pairs (so it is optimistic).
    - `pairs`, `same_pairs`: numbers of pairs.

    With `folds`, as on LFW, the threshold of each fold is chosen on the other folds. The result then has
    `accuracy_mean`, `accuracy_std` (the population standard deviation, as in insightface) and `accuracy_fold_1`, ….

    Args:
        scores: (n,) similarities, higher for more alike; negate distances.
        same: (n,) booleans, True for same pairs.
        fars: the false accept rates F.
        folds: the number of folds of consecutive pairs (10 for LFW in the order of its pairs.txt), or the fold of every
            pair (n,). Every fold needs pairs of both kinds.
        thresholds: the thresholds that folds choose from; the first best one wins. `-numpy.arange(0, 4, 0.01)` is
            insightface's grid if the scores are negated squared distances. By default all thresholds are tried; the
            best is half-way between two scores, and the highest among equals.
    """
    pairs = ScoredPairs.count(scores, same)
    far, tar = pairs.false_accepts / pairs.different, pairs.true_accepts / pairs.same
    eer, eer_point = _equal_error(far, tar)
    best = pairs.most_accurate()
    result = {
        "auc": float(np.sum(np.diff(far) * (tar[1:] + tar[:-1]) / 2)),
        "eer": eer,
        "eer_threshold": pairs.threshold(eer_point),
    }
    for rate in fars:
        check_rate(rate, "a FAR")
        if 0 < rate < 1 / pairs.different:
            warnings.warn(
                f"FAR {rate:g} cannot be measured with {pairs.different} different pairs: "
                f"tar@far={rate:g} is measured without false accepts",
                stacklevel=2,
            )
        point = pairs.within_far(rate)
        result[f"tar@far={rate:g}"] = float(tar[point])
        result[f"threshold@far={rate:g}"] = pairs.threshold(point)
    result |= {"accuracy": pairs.accuracy(best), "threshold": pairs.threshold(best)}
    if folds is not None:
        accuracies = fold_accuracies(scores, same, folds=folds, thresholds=thresholds)
        result |= {"accuracy_mean": float(accuracies.mean()), "accuracy_std": float(accuracies.std())}
        result |= {f"accuracy_fold_{number}": float(value) for number, value in enumerate(accuracies, 1)}
    elif thresholds is not None:
        raise InputError("thresholds= needs folds=, which choose from them")
    return result | {"pairs": pairs.same + pairs.different, "same_pairs": pairs.same}


def fold_accuracies(
    scores: Any,
    same: Any,
    *,
    folds: int | Any = 10,
    thresholds: Sequence[float] | npt.NDArray[Any] | None = None,
) -> Floats:
    """The accuracy of every fold, with the threshold chosen on the other folds; see `verification_metrics`."""
    values, kinds = _checked(scores, same)
    fold = _fold_of_each(folds, len(values))
    accuracies = []
    for number in range(int(fold.max()) + 1):
        test = fold == number
        if kinds[test].all() or not kinds[test].any():
            raise InputError(
                f"fold {number + 1} has {int(kinds[test].sum())} same and {int((~kinds[test]).sum())} different pairs, "
                "but needs both: order the pairs by fold as in LFW's pairs.txt, or give the fold of every pair"
            )
        if thresholds is None:
            train = ScoredPairs.count(values[~test], kinds[~test])
            threshold = train.threshold(train.most_accurate())
        else:
            threshold = _best_of_grid(values[~test], kinds[~test], np.asarray(thresholds, dtype=np.float64))
        accuracies.append(float(np.mean((values[test] >= threshold) == kinds[test])))
    return np.array(accuracies)


def pair_scores(embeddings: Any, pairs: Any, other: Any = None) -> npt.NDArray[np.float32]:
    """The cosine of every pair, for `verification_metrics`. A zero vector has cosine 0 with all others.

    Args:
        embeddings: (N, D), a tensor, an array or a memory map; only the rows in `pairs` are read.
        pairs: (n, 2) indices into `embeddings`, or into `embeddings` and `other`.
        other: (M, D), the embeddings of the second of each pair, if they are another set.
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
            f"scores {values.shape} and same {kinds.shape} must both be (n,): the score of every pair, and whether it "
            "is a same pair"
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
    """Raise `InputError` if a rate is not between 0 and 1."""
    if not 0 <= rate <= 1:
        raise InputError(f"{name} must be between 0 and 1, not {rate}")


def _equal_error(far: Floats, tar: Floats) -> tuple[float, int]:
    """The rate at which FAR = 1 - TAR on the linearly interpolated curve, and the nearest point."""
    excess = far - (1 - tar)  # ascends from -1 to 1
    after = int(np.searchsorted(excess, 0))
    before = after - 1
    share = excess[before] / (excess[before] - excess[after])
    nearest = before if -excess[before] < excess[after] else after
    return float(far[before] + share * (far[after] - far[before])), nearest


def _fold_of_each(folds: int | Any, n: int) -> Ints:
    """The folds 0, 1, ... of n pairs: consecutive ones of nearly equal size, or the caller's."""
    if isinstance(folds, Integral):
        folds = int(folds)
        if not 2 <= folds <= n:
            raise InputError(f"{folds} folds of {n} pairs: there must be at least two folds, with a pair in each")
        sizes = [n // folds + (number < n % folds) for number in range(folds)]
        return np.repeat(np.arange(folds), sizes)
    values = inputs.to_numpy(folds)
    if values.shape != (n,):
        raise InputError(f"folds {values.shape} must be a number of folds, or the fold of each of the {n} pairs")
    names, fold = np.unique(values, return_inverse=True)
    if len(names) < 2:
        raise InputError("all pairs are in one fold, but thresholds are chosen on other folds: give at least two folds")
    return fold.astype(np.int64)


def _best_of_grid(values: npt.NDArray[Any], kinds: npt.NDArray[np.bool_], grid: Floats) -> float:
    if grid.ndim != 1 or not len(grid) or np.isnan(grid).any():
        raise InputError("thresholds must be a list of numbers")
    same, different = np.sort(values[kinds]), np.sort(values[~kinds])
    accepted = (len(same) - np.searchsorted(same, grid)) - (len(different) - np.searchsorted(different, grid))
    return float(grid[np.argmax(accepted)])
