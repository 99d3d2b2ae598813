"""Which rows count, and how they are averaged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from . import Case


def sides(case: Case, r: int) -> tuple[list[int], list[int]]:
    """The positive and the negative columns of row r."""
    return case.positive[r].nonzero().flatten().tolist(), case.negative[r].nonzero().flatten().tolist()


def lse(terms: list[Tensor]) -> Tensor:
    """log sum exp."""
    return torch.logsumexp(torch.stack(terms), 0)


def log1p_sum_exp(terms: list[Tensor]) -> Tensor:
    """log(1 + sum exp)."""
    return lse([torch.zeros((), dtype=torch.float64), *terms])


def attached_zero(case: Case) -> Tensor:
    """A zero that keeps a result in the graph of every input."""
    zero = 0 * case.x.sum() + 0 * case.columns.sum()
    return zero if case.bias is None else zero + 0 * case.bias.sum()


def stack(case: Case, rows: list[Tensor]) -> Tensor:
    """Rows as one vector, also when there are none."""
    zero = attached_zero(case)
    return torch.stack([zero, *rows])[1:] + zero


def average(case: Case, losses: Sequence[Tensor | None], pairs: Sequence[int] | None = None) -> tuple[Tensor, Tensor]:
    """Weighted mean over the counted rows (those not None), and the weighted rows. `pairs` weighs the mean too."""
    zero, weight = attached_zero(case), case.sample_weight
    numerator, denominator, rows = zero, 0.0, []
    for r, loss in enumerate(losses):
        if loss is None:
            rows.append(zero)
            continue
        w = weight[r] * (1 if pairs is None else pairs[r])
        numerator = numerator + w * loss
        denominator += w.item()
        rows.append(weight[r] * loss)
    return (numerator / denominator if denominator > 0 else zero), stack(case, rows)


Pairwise = Callable[[int, int], Tensor]
Rowwise = Callable[[int, list[int], list[int]], Tensor]


def by_row(case: Case, loss: Rowwise) -> list[Tensor | None]:
    """loss(r, positives, negatives) of the rows having both; None of the others."""
    pairs = [sides(case, r) for r in range(len(case.x))]
    return [loss(r, *both) if all(both) else None for r, both in enumerate(pairs)]


def joint(case: Case, u: Pairwise, v: Pairwise) -> tuple[Tensor, Tensor]:
    """log(1 + sum_j exp(v_j) sum_i exp(u_i)) of the rows having a positive i and a negative j."""

    def loss(r: int, positives: list[int], negatives: list[int]) -> Tensor:
        return log1p_sum_exp([lse([u(r, i) for i in positives]) + lse([v(r, j) for j in negatives])])

    return average(case, by_row(case, loss))


def per_positive(case: Case, term: Callable[[int, int, list[int]], Tensor]) -> tuple[Tensor, Tensor]:
    """term(r, p, negatives), mean over the positive pairs (r, p) of the rows having a negative."""

    def loss(r: int, positives: list[int], negatives: list[int]) -> Tensor:
        return torch.stack([term(r, p, negatives) for p in positives]).mean()

    return average(case, by_row(case, loss), case.positive.sum(1).tolist())


def hinges(
    case: Case, positive: Pairwise, negative: Pairwise, power: int = 1, weights: tuple[float, float] = (1, 1)
) -> tuple[Tensor, Tensor]:
    """[positive]_+^power + [negative]_+^power, each averaged over its active pairs (hinge > 0), then weighted."""
    zero, weight = attached_zero(case), case.sample_weight
    mean, rows = zero, [zero] * len(case.x)
    for side, argument in enumerate((positive, negative)):
        sums, denominator = [], 0.0
        for r in range(len(case.x)):
            terms = [torch.relu(argument(r, c)) for c in sides(case, r)[side]]
            sums.append(weights[side] * sum((h**power for h in terms), zero))
            denominator += weight[r].item() * sum(h.item() > 0 for h in terms)
        if denominator > 0:
            mean = mean + sum((w * a for w, a in zip(weight, sums, strict=True)), zero) / denominator
            rows = [row + w * weight.sum() * a / denominator for row, w, a in zip(rows, weight, sums, strict=True)]
    return mean, stack(case, rows)
