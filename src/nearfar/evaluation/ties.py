"""Ties: when two similarities count as equal.

A float32 matrix product can give equal pairs of vectors different results, depending on their position in the matrix.
The largest difference measured was 5 float32 ulps of 1, at dimensions from 64 to 4,096.
"""

from typing import Literal

import torch
from torch import Tensor

Ties = Literal["pessimistic", "optimistic"]

TIED = 8 * 2.0**-23  # largest difference of tied similarities, relative to the norms of the vectors
TIED_CODES = 0.5  # for inner products of codes, which are integers


def bounds_of(matches: Tensor, tolerance: Tensor | float, ties: Ties) -> Tensor:
    """The lowest similarity at which a negative is ranked before each match, from the similarities of the matches."""
    if ties == "pessimistic":
        return matches - tolerance
    above: Tensor = torch.nextafter(matches + tolerance, matches.new_tensor(torch.inf))
    return above
