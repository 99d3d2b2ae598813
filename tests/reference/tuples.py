"""Losses of tuples: triplets, lifted structures, and whole distributions of pairs."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .geometry import cosine, distance, of_angle
from .pair import nt_xent
from .reduction import attached_zero, average, by_row, log1p_sum_exp, lse, per_positive, sides, stack

if TYPE_CHECKING:
    from . import Case


def generalized_lifted_structure(case: Case, *, neg_margin: float = 1, pos_margin: float = 0) -> tuple[Tensor, Tensor]:
    """[log sum_p exp(d_p - pos_margin) + log sum_n exp(neg_margin - d_n)]_+. Hermans et al., arXiv 1703.07737."""

    def loss(r: int, positives: list[int], negatives: list[int]) -> Tensor:
        pull = lse([_distance(case, r, i) - pos_margin for i in positives])
        push = lse([neg_margin - _distance(case, r, j) for j in negatives])
        return torch.relu(pull + push)

    return average(case, by_row(case, loss))


def lifted_structure(case: Case, *, neg_margin: float = 1, pos_margin: float = 0) -> tuple[Tensor, Tensor]:
    """1/(2|P|) sum_P [J]_+^2 over the unordered positive pairs (i, j) of samples having a negative,
    J = log(sum_k exp(neg_margin - d_ik) + sum_l exp(neg_margin - d_jl)) + d_ij - pos_margin, k and l the negatives of
    i and of j. No rows, no weights. Oh Song et al., CVPR 2016, arXiv 1511.06452."""
    terms = []
    for i, j in _unordered(case.positive):
        pushes = [neg_margin - _distance(case, a, k) for a in (i, j) for k in sides(case, a)[1]]
        if pushes:
            terms.append(torch.relu(lse(pushes) + _distance(case, i, j) - pos_margin) ** 2 / 2)
    mean = torch.stack(terms).mean() if terms else 0
    return mean + attached_zero(case), stack(case, [])


def histogram(case: Case, *, n_bins: int = 100) -> tuple[Tensor, Tensor]:
    """sum_r h-_r sum_q<=r h+_q, h the histograms of the cosines of the pairs on n_bins + 1 nodes over [-1, 1]. No rows, no weights. Ustinova and Lempitsky, NIPS 2016, arXiv 1611.00822."""
    pairs = case.positive.nonzero().tolist(), case.negative.nonzero().tolist()
    if not all(pairs):
        return attached_zero(case), stack(case, [])
    cosines = [[cosine(case.x[i], case.columns[j]) for i, j in side] for side in pairs]
    h_p, h_n = (soft_histogram(s, -1, 1, n_bins) / len(s) for s in cosines)
    terms = [h_n[r] * h_p[: r + 1].sum() for r in range(n_bins + 1)]
    return torch.stack(terms).sum() + attached_zero(case), stack(case, [])


def soft_histogram(values: list[Tensor], low: float, high: float, bins: int) -> Tensor:
    """Counts on bins + 1 nodes over [low, high]: a value is shared linearly by the nodes about it. At a node the slope
    is the one to its right, at `high` and past it the one to its left."""
    counts = [torch.zeros((), dtype=torch.float64)] * (bins + 1)
    for value in values:
        position = (value - low) * bins / (high - low)
        k = min(max(math.floor(position.item()), 0), bins - 1)
        counts[k] = counts[k] + (k + 1 - position)
        counts[k + 1] = counts[k + 1] + (position - k)
    return torch.stack(counts)


def angular(case: Case, *, alpha: float = math.radians(40), npair_weight: float = 0.0) -> tuple[Tensor, Tensor]:
    """log(1 + sum_n exp(4 tan(alpha)^2 (x + x_p).x_n - 2 (1 + tan(alpha)^2) x.x_p)), mean over positive pairs, of the
    normalised vectors, alpha in radians; plus npair_weight times NT-Xent of temperature 1.
    Wang et al., ICCV 2017, arXiv 1708.01682."""
    tan2 = math.tan(alpha) ** 2

    def term(r: int, p: int, negatives: list[int]) -> Tensor:
        pull = 2 * (1 + tan2) * cosine(case.x[r], case.columns[p])
        both = [cosine(case.x[r], case.columns[n]) + cosine(case.columns[p], case.columns[n]) for n in negatives]
        return log1p_sum_exp([4 * tan2 * s - pull for s in both])

    mean, rows = per_positive(case, term)
    npair_mean, npair_rows = nt_xent(case, temperature=1)
    return mean + npair_weight * npair_mean, rows + npair_weight * npair_rows


def margin_loss(
    case: Case, *, margin: float = 0.2, beta: float | Tensor = 1.2, nu: float = 0, labels: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """[margin + d_p - beta]_+ + [margin - d_n + beta]_+ summed over all pairs, also of rows having one kind only, over
    the number of active ones of both kinds (hinge > 0), plus nu beta, mean over all rows. beta is a number, a 0-d
    tensor, or one entry per class and then read at `labels` (N,). Wu et al., ICCV 2017, arXiv 1706.07567."""
    boundary = torch.as_tensor(beta, dtype=torch.float64)
    betas = [boundary if labels is None else boundary[labels[r]] for r in range(len(case.x))]
    zero, weight = attached_zero(case) + 0 * boundary.sum(), case.sample_weight
    sums, denominator = [], 0.0
    for r, b in enumerate(betas):
        positives, negatives = sides(case, r)
        pull = [torch.relu(margin + _distance(case, r, i) - b) for i in positives]
        push = [torch.relu(margin - _distance(case, r, j) + b) for j in negatives]
        sums.append(sum(pull + push, zero))
        denominator += weight[r].item() * sum(h.item() > 0 for h in pull + push)
    reg_mean, reg_rows = average(case, [nu * b for b in betas])
    if denominator == 0:
        return reg_mean + zero, reg_rows + zero
    shares = [w * a / denominator for w, a in zip(weight, sums, strict=True)]
    return sum(shares, zero) + reg_mean, stack(case, [weight.sum() * a for a in shares]) + reg_rows + zero


def nca(case: Case, *, softmax_scale: float = 1) -> tuple[Tensor, Tensor]:
    """-log sum_p exp(-d_p) / sum_a exp(-d_a), a over positives and negatives, d = softmax_scale (2 - 2s).
    Goldberger et al., NIPS 2004."""

    def loss(r: int, positives: list[int], negatives: list[int]) -> Tensor:
        z = {c: -softmax_scale * _distance(case, r, c, "squared_l2") for c in positives + negatives}
        return lse(list(z.values())) - lse([z[p] for p in positives])

    return average(case, by_row(case, loss))


def tuplet_margin(case: Case, *, margin: float = math.radians(5.73), scale: float = 64) -> tuple[Tensor, Tensor]:
    """log(1 + sum_n exp(scale (cos(theta_n) - cos(theta_p - margin)))), mean over positive pairs, margin in radians.
    Yu and Tao, ICCV 2019."""

    def term(r: int, p: int, negatives: list[int]) -> Tensor:
        s = cosine(case.x[r], case.columns[p])
        slack = of_angle(s, lambda t: math.cos(t - margin), lambda t: -math.sin(t - margin))
        return log1p_sum_exp([scale * (cosine(case.x[r], case.columns[n]) - slack) for n in negatives])

    return per_positive(case, term)


def intra_pair_variance(case: Case, *, pos_eps: float = 0.01, neg_eps: float = 0.01) -> tuple[Tensor, Tensor]:
    """[(1 - pos_eps) m_p - s_p]_+^2, mean over positive pairs, plus [s_n - (1 + neg_eps) m_n]_+^2, mean over negative
    pairs; m_p and m_n, their mean cosines, are differentiated. No rows, no weights. Yu and Tao, ICCV 2019."""
    loss = attached_zero(case)
    for mask, sign, eps in ((case.positive, -1, pos_eps), (case.negative, 1, neg_eps)):
        s = [cosine(case.x[r], case.columns[c]) for r, c in mask.nonzero().tolist()]
        if s:
            mean = torch.stack(s).mean()
            loss = loss + torch.stack([torch.relu(sign * (t - (1 + sign * eps) * mean)) ** 2 for t in s]).mean()
    return loss, stack(case, [])


def dynamic_soft_margin(
    case: Case,
    *,
    min_val: float = -2.0,
    num_bins: int = 10,
    momentum: float = 0.01,
    histogram: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """F(d_p - d_n) (d_p - d_n), mean over all triplets; F, a constant in the gradient, is the cumulated
    `dynamic_soft_margin_histogram`, `histogram` (num_bins,) the one before this batch (None: the first batch).
    Zhang and Rusinkiewicz, ICCV 2019."""
    weights = dynamic_soft_margin_histogram(case, histogram, min_val, num_bins, momentum).cumsum(0)
    sums, zero, weight = [], attached_zero(case), case.sample_weight
    for r in range(len(case.x)):
        sums.append(zero)
        for p, n in itertools.product(*sides(case, r)):
            difference = _distance(case, r, p) - _distance(case, r, n)
            sums[r] = sums[r] + weights[_bin(difference.item(), min_val, num_bins)[0]] * difference
    denominator = (weight * case.positive.sum(1) * case.negative.sum(1)).sum().item()
    if denominator == 0:
        return zero, stack(case, [zero] * len(case.x))
    shares = [w * a / denominator for w, a in zip(weight, sums, strict=True)]
    return sum(shares, zero), stack(case, [weight.sum() * a for a in shares])


def dynamic_soft_margin_histogram(
    case: Case, histogram: Tensor | None, min_val: float = -2.0, num_bins: int = 10, momentum: float = 0.01
) -> Tensor:
    """(1 - momentum) histogram + momentum (counts of d_p - d_n of all triplets, weighted, shared linearly by two bins),
    normalised to 1; without a histogram the counts alone. The last bin takes what falls past it."""
    counts = torch.zeros(num_bins, dtype=torch.float64)
    for r in range(len(case.x)):
        for p, n in itertools.product(*sides(case, r)):
            k, share = _bin((_distance(case, r, p) - _distance(case, r, n)).item(), min_val, num_bins)
            counts[k] += case.sample_weight[r] * (1 - share)
            counts[min(k + 1, num_bins - 1)] += case.sample_weight[r] * share
    total = counts if histogram is None else (1 - momentum) * histogram + momentum * counts
    return total / total.sum() if total.any() else total


def _bin(value: float, min_val: float, num_bins: int) -> tuple[int, float]:
    """The bin of a value, num_bins of them over [min_val, -min_val], and how far into it the value is."""
    position = (value - min_val) * num_bins / (2 * abs(min_val))
    k = min(max(math.floor(position), 0), num_bins - 1)
    return k, position - k


def _unordered(mask: Tensor) -> list[tuple[int, int]]:
    return [(i, j) for i, j in mask.nonzero().tolist() if i < j]


def _distance(case: Case, r: int, c: int, kind: str = "l2") -> Tensor:
    return distance(cosine(case.x[r], case.columns[c]), kind)
