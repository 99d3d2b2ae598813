"""When two similarities are equal, and what a negative must then reach to stand before a match.

Matrix products of float32 give equal pairs of vectors slightly different results, with where in the matrix they happen
to be: up to 5 units of the last place of 1 were seen, at dimensions from 64 to 4,096.
"""

from typing import Literal

import torch
from torch import Tensor

Ties = Literal["pessimistic", "optimistic"]

TIED = 8 * 2.0**-23  # of the vectors' lengths: similarities that differ by no more are tied
TIED_CODES = 0.5  # inner products of codes are whole numbers


def bounds_of(matches: Tensor, tolerance: Tensor | float, ties: Ties) -> Tensor:
    """What a negative must at least reach to stand before each match, of which these are the similarities."""
    if ties == "pessimistic":
        return matches - tolerance
    above: Tensor = torch.nextafter(matches + tolerance, matches.new_tensor(torch.inf))
    return above
