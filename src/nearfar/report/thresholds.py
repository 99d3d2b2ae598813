"""What a threshold would accept: precision and recall by the similarity from which two images count as the same."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from nearfar.evaluation.diagnostics import Histogram


@dataclass(frozen=True)
class Accepted:
    """What thresholds `at` accept, from the lowest, which accepts everything, to the highest, which may accept nothing.

    `same` and `other` count the accepted pairs of one class and of two.
    """

    at: npt.NDArray[np.float64]
    same: npt.NDArray[np.int64]
    other: npt.NDArray[np.int64]

    @property
    def precision(self) -> npt.NDArray[np.float64]:
        """Share of the accepted pairs that are of one class; NaN where none is accepted."""
        accepted = self.same + self.other
        shares = np.full(len(accepted), np.nan)
        np.divide(self.same, accepted, out=shares, where=accepted > 0)
        return shares

    @property
    def recall(self) -> npt.NDArray[np.float64]:
        """Share of the pairs of one class that are accepted."""
        return np.asarray(self.same / self.same[0], np.float64)


def accepted(histogram: Histogram) -> Accepted | None:
    """At every edge between the lowest similarity and the highest; None where there are no pairs of one class."""
    if not histogram.positive.sum():
        return None
    above = [np.r_[np.cumsum(counts[::-1])[::-1], 0] for counts in (histogram.positive, histogram.negative)]
    used = np.flatnonzero(histogram.positive + histogram.negative)
    part = slice(int(used[0]), int(used[-1]) + 2)
    return Accepted(histogram.edges[part], above[0][part], above[1][part])
