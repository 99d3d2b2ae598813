"""Losses of pairs of samples."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .geometry import cosine, distance, unit
from .reduction import (
    Pairwise,
    attached_zero,
    average,
    by_row,
    hinges,
    joint,
    log1p_sum_exp,
    lse,
    per_positive,
    sides,
    stack,
)

if TYPE_CHECKING:
    from . import Case


def unified(case: Case, *, m: float = 0.25, gamma: float = 64) -> tuple[Tensor, Tensor]:
    """log[1 + sum_i sum_j exp(gamma (s_n^j - s_p^i + m))]. Sun et al., CVPR 2020, arXiv 2002.10857, eq. 1."""

    def s(r: int, c: int) -> Tensor:
        return cosine(case.x[r], case.columns[c])

    return joint(case, lambda r, i: -gamma * s(r, i), lambda r, j: gamma * (s(r, j) + m))


def circle(
    case: Case,
    *,
    m: float | Tensor = 0.4,
    gamma: float = 80,
    O_p: float | None = None,
    O_n: float | None = None,
    delta_p: float | None = None,
    delta_n: float | None = None,
    slope_p: float = 1.0,
    slope_n: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """log[1 + sum_j exp(gamma a_n (s_n - delta_n)) sum_i exp(-gamma a_p (s_p - delta_p))]; a_p = slope_p
    [O_p - s_p]_+ and a_n = slope_n [s_n - O_n]_+ are constants in the gradient. Sun et al., CVPR 2020, arXiv 2002.10857, eq. 4-6."""

    def m_of(r: int) -> float:
        """Of the sample's class, where there is one by class."""
        return float(m[int(case.positive[r].nonzero()[0])]) if isinstance(m, Tensor) else m

    def u(r: int, i: int) -> Tensor:
        s = cosine(case.x[r], case.columns[i])
        alpha = slope_p * torch.relu((1 + m_of(r) if O_p is None else O_p) - s).detach()
        return -gamma * alpha * (s - (1 - m_of(r) if delta_p is None else delta_p))

    def v(r: int, j: int) -> Tensor:
        s = cosine(case.x[r], case.columns[j])
        alpha = slope_n * torch.relu(s - (-m_of(r) if O_n is None else O_n)).detach()
        return gamma * alpha * (s - (m_of(r) if delta_n is None else delta_n))

    return joint(case, u, v)


def triplet_margin(
    case: Case, *, margin: float = 0.2, mining: str = "batch_hard", smooth_loss: bool = False, distance: str = "l2"
) -> tuple[Tensor, Tensor]:
    """[d_p - d_n + margin]_+, or log(1 + exp(.)), of the mined triplets. Schroff et al., CVPR 2015, arXiv 1503.03832.

    batch_hard     the farthest positive and the nearest negative; Hermans et al., arXiv 1703.07737
    easy_positive  the nearest positive and the nearest negative; Xuan et al., WACV 2020, arXiv 1904.04370
    all            every triplet; the mean is over the active ones of the batch (argument > 0; all if smooth)
    semihard       as `all`, of the triplets with d_p < d_n < d_p + margin

    Of equal distances the first is taken."""

    def value(argument: Tensor) -> Tensor:
        return log1p_sum_exp([argument]) if smooth_loss else torch.relu(argument)

    active = [0] * len(case.x)

    def loss(r: int, positives: list[int], negatives: list[int]) -> Tensor:
        d_p = [_distance(case, r, i, distance) for i in positives]
        d_n = [_distance(case, r, j, distance) for j in negatives]
        if mining == "batch_hard":
            return value(max(d_p, key=Tensor.item) - min(d_n, key=Tensor.item) + margin)
        if mining == "easy_positive":
            return value(min(d_p, key=Tensor.item) - min(d_n, key=Tensor.item) + margin)
        triplets = [(p, n) for p in d_p for n in d_n]
        if mining == "semihard":
            triplets = [(p, n) for p, n in triplets if p < n < p + margin]
        terms = [value(p - n + margin) for p, n in triplets if smooth_loss or p - n + margin > 0]
        active[r] = len(terms)
        return torch.stack(terms).mean() if terms else attached_zero(case)

    losses = by_row(case, loss)
    if mining in ("batch_hard", "easy_positive"):
        return average(case, losses)
    if mining in ("all", "semihard"):
        mean, _ = average(case, losses, active)
        # A row by itself, so that the mean of the rows is the mean over the triplets.
        total, weight = sum(w.item() * n for w, n in zip(case.sample_weight, active, strict=True)), case.sample_weight
        shares = [0 if loss is None or total == 0 else loss * n / total for loss, n in zip(losses, active, strict=True)]
        return mean, stack(case, [attached_zero(case) + weight[r] * weight.sum() * a for r, a in enumerate(shares)])
    raise ValueError(f"unknown mining {mining!r}")


def nt_xent(case: Case, *, temperature: float = 0.07) -> tuple[Tensor, Tensor]:
    """-log exp(s_p/t) / (exp(s_p/t) + sum_n exp(s_n/t)), mean over positive pairs.
    Chen et al., ICML 2020, arXiv 2002.05709."""
    return _per_positive(case, lambda r, c: cosine(case.x[r], case.columns[c]) / temperature)


def n_pairs(case: Case, *, l2_weight: float = 0.005) -> tuple[Tensor, Tensor]:
    """log(1 + sum_n exp(x.n - x.p)), mean over positive pairs, plus l2_weight |x|^2, mean over all rows.
    Sohn, NIPS 2016."""
    mean, rows = _per_positive(case, lambda r, c: case.x[r] @ case.columns[c])
    l2_mean, l2_rows = average(case, [l2_weight * (x @ x) for x in case.x])
    return mean + l2_mean, rows + l2_rows


def _per_positive(case: Case, z: Pairwise) -> tuple[Tensor, Tensor]:
    """log(1 + sum_n exp(z_n - z_p)), mean over positive pairs."""
    return per_positive(case, lambda r, p, negatives: log1p_sum_exp([z(r, n) - z(r, p) for n in negatives]))


def sup_con(case: Case, *, temperature: float = 0.1) -> tuple[Tensor, Tensor]:
    """-1/|P| sum_p log exp(s_p/t) / sum_a exp(s_a/t), a over positives and negatives; rows with a positive count.
    Khosla et al., NeurIPS 2020, arXiv 2004.11362."""
    losses: list[Tensor | None] = []
    for r in range(len(case.x)):
        positives, negatives = sides(case, r)
        z = {c: cosine(case.x[r], case.columns[c]) / temperature for c in positives + negatives}
        terms = [lse(list(z.values())) - z[p] for p in positives]
        losses.append(torch.stack(terms).mean() if terms else None)
    return average(case, losses)


def multi_similarity(
    case: Case, *, alpha: float = 2, beta: float = 50, base: float = 0.5, epsilon: float | None = 0.1
) -> tuple[Tensor, Tensor]:
    """1/alpha log[1 + sum_p exp(-alpha (s - base))] + 1/beta log[1 + sum_n exp(beta (s - base))], mean over all rows;
    mined: s_n > min s_p - epsilon, s_p < max s_n + epsilon. Wang et al., CVPR 2019, arXiv 1904.06627."""
    losses: list[Tensor] = []
    for r in range(len(case.x)):
        positives, negatives = sides(case, r)
        s_p = [cosine(case.x[r], case.columns[i]) for i in positives]
        s_n = [cosine(case.x[r], case.columns[j]) for j in negatives]
        if epsilon is not None:
            hardest_p = min(map(Tensor.item, s_p), default=float("inf"))
            hardest_n = max(map(Tensor.item, s_n), default=-float("inf"))
            s_p = [s for s in s_p if s < hardest_n + epsilon]
            s_n = [s for s in s_n if s > hardest_p - epsilon]
        pull = log1p_sum_exp([-alpha * (s - base) for s in s_p]) / alpha
        push = log1p_sum_exp([beta * (s - base) for s in s_n]) / beta
        losses.append(pull + push)
    return average(case, losses)


def contrastive(
    case: Case, *, pos_margin: float = 0, neg_margin: float = 1, power: int = 2, distance: str = "l2"
) -> tuple[Tensor, Tensor]:
    """[d_p - pos_margin]_+^power + [neg_margin - d_n]_+^power, each averaged over its active pairs (hinge > 0).
    Hadsell et al., CVPR 2006."""

    def d(r: int, c: int) -> Tensor:
        return _distance(case, r, c, distance)

    return hinges(case, lambda r, i: d(r, i) - pos_margin, lambda r, j: neg_margin - d(r, j), power)


def signal_to_noise_ratio_contrastive(
    case: Case, *, pos_margin: float = 0, neg_margin: float = 1
) -> tuple[Tensor, Tensor]:
    """[d_p - pos_margin]_+ + [neg_margin - d_n]_+, each averaged over its active pairs, of the distance
    d(x, y) = var(x - y) / var(x) of the coordinates of the normalised vectors, x the row: not symmetric.
    A row of variance 0 has no distances: it is left out, as if its weight were 0. Yuan et al., CVPR 2019, arXiv 1904.02616."""

    def d(r: int, c: int) -> Tensor:
        x, y = unit(case.x[r]), unit(case.columns[c])
        return (x - y).var() / x.var()

    heard = torch.tensor([unit(x).var().item() > 0 for x in case.x])
    weight = case.sample_weight * heard
    masks = {"positive": case.positive & heard[:, None], "negative": case.negative & heard[:, None]}
    case = dataclasses.replace(case, sample_weight=weight, **masks)
    return hinges(case, lambda r, i: d(r, i) - pos_margin, lambda r, j: neg_margin - d(r, j))


def threshold_consistent_margin(
    case: Case,
    *,
    lambda_plus: float = 1.0,
    lambda_minus: float = 1.0,
    margin_plus: float = 0.9,
    margin_minus: float = 0.5,
) -> tuple[Tensor, Tensor]:
    """lambda_plus [margin_plus - s_p]_+ + lambda_minus [s_n - margin_minus]_+, each averaged over its active pairs.
    Zhang et al., ICLR 2024, arXiv 2307.04047."""

    def s(r: int, c: int) -> Tensor:
        return cosine(case.x[r], case.columns[c])

    weights = (lambda_plus, lambda_minus)
    return hinges(case, lambda r, i: margin_plus - s(r, i), lambda r, j: s(r, j) - margin_minus, weights=weights)


def _distance(case: Case, r: int, c: int, kind: str) -> Tensor:
    return distance(cosine(case.x[r], case.columns[c]), kind)
