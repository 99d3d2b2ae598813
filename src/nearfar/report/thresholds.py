"""Precision and recall by threshold, from a histogram of similarities."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from nearfar.evaluation.diagnostics import Histogram


@dataclass(frozen=True)
class Accepted:
    """The pairs that thresholds `at` accept, in ascending order. The lowest accepts all pairs.

    `same` and `other` are the numbers of accepted pairs of the same class and of different classes.
    """

    at: npt.NDArray[np.float64]
    same: npt.NDArray[np.int64]
    other: npt.NDArray[np.int64]

    @property
    def precision(self) -> npt.NDArray[np.float64]:
        """The share of pairs of the same class among the accepted; NaN if none is accepted."""
        accepted = self.same + self.other
        shares = np.full(len(accepted), np.nan)
        np.divide(self.same, accepted, out=shares, where=accepted > 0)
        return shares

    @property
    def recall(self) -> npt.NDArray[np.float64]:
        """The share of the pairs of the same class that are accepted."""
        return np.asarray(self.same / self.same[0], np.float64)


def accepted(histogram: Histogram) -> Accepted | None:
    """The accepted pairs at every edge of the occupied bins; None if there are no pairs of the same class."""
    if not histogram.positive.sum():
        return None
    above = [np.r_[np.cumsum(counts[::-1])[::-1], 0] for counts in (histogram.positive, histogram.negative)]
    used = np.flatnonzero(histogram.positive + histogram.negative)
    part = slice(int(used[0]), int(used[-1]) + 2)
    return Accepted(histogram.edges[part], above[0][part], above[1][part])
