"""Losses of the rank of the positives of a query, the row, among its columns."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .geometry import cosine, distance
from .reduction import attached_zero, average, by_row, sides
from .tuples import soft_histogram

if TYPE_CHECKING:
    from . import Case


def smooth_ap(case: Case, *, temperature: float = 0.01) -> tuple[Tensor, Tensor]:
    """1 - mean_p rank+(p) / rank(p): rank+ = 1 + sum over the other positives of sigmoid((s - s_p) / temperature), rank
    = rank+ + the same sum over the negatives. Brown et al., ECCV 2020, arXiv 2007.12163."""

    def loss(r: int, positives: list[int], negatives: list[int]) -> Tensor:
        ratios = []
        for p in positives:
            above = 1 + _above(case, r, p, positives, temperature)
            ratios.append(above / (above + _above(case, r, p, negatives, temperature)))
        return 1 - torch.stack(ratios).mean()

    return average(case, by_row(case, loss))


def fast_ap(case: Case, *, num_bins: int = 10) -> tuple[Tensor, Tensor]:
    """1 - 1/N+ sum_l h+_l H+_l / H_l: h+ the histogram of the squared distances of the positives on num_bins + 1 nodes
    over [0, 4], H+ and H the cumulated ones of the positives and of all. Cakir et al., CVPR 2019."""

    def loss(r: int, positives: list[int], negatives: list[int]) -> Tensor:
        d = {c: distance(cosine(case.x[r], case.columns[c]), "squared_l2") for c in positives + negatives}
        h_p = soft_histogram([d[p] for p in positives], 0, 4, num_bins)
        h_n = soft_histogram([d[n] for n in negatives], 0, 4, num_bins)
        cumulated_p, cumulated = h_p.cumsum(0), (h_p + h_n).cumsum(0)
        terms = [h_p[k] * cumulated_p[k] / cumulated[k] for k in range(num_bins + 1) if h_p[k] > 0]
        return 1 - torch.stack(terms).sum() / len(positives)

    return average(case, by_row(case, loss))


def recall_at_k(
    case: Case,
    *,
    ks: tuple[int, ...] = (1, 2, 4, 8, 16),
    rank_temperature: float = 0.01,
    k_temperature: float = 1.0,
    among: str = "negatives",
) -> tuple[Tensor, Tensor]:
    """1 - mean_k min(k, sum_p sigmoid((k - rank(p)) / k_temperature)) / min(k, |P|),
    rank(p) = 1 + sum sigmoid((s - s_p) / rank_temperature) over the negatives, so that positives do not compete; or,
    with among="all", over the other positives too, as the paper ranks. A clipped sum has gradient 0.
    Patel et al., CVPR 2022, arXiv 2108.11179."""
    if among not in ("negatives", "all"):
        raise ValueError(f"unknown rivals {among!r}")

    def loss(r: int, positives: list[int], negatives: list[int]) -> Tensor:
        rivals = negatives if among == "negatives" else positives + negatives
        ranks = torch.stack([1 + _above(case, r, p, rivals, rank_temperature) for p in positives])
        recalls = []
        for k in ks:
            found = torch.sigmoid((k - ranks) / k_temperature).sum()
            recalls.append((found if found < k else k + 0 * found) / min(k, len(positives)))
        return 1 - torch.stack(recalls).mean()

    return average(case, by_row(case, loss))


def pnp(
    case: Case, *, b: float = 2, alpha: float = 1, anneal: float = 0.01, variant: str = "O", query: bool = True
) -> tuple[Tensor, Tensor]:
    """mean_p f(R_p), R_p = sum_n sigmoid((s_n - s_p) / anneal), p over the positives and the query itself (s = 1),
    which pytorch-metric-learning counts and query=False leaves out. f(R): O R; Ds log(1 + R); Iu (1 + R) log(1 + R);
    Ib (b R - log(1 + b R)) / b^2; Dq 1 - (1 + R)^-alpha. Li et al., AAAI 2022, arXiv 2102.04640."""
    shapes: dict[str, Callable[[Tensor], Tensor]] = {
        "O": lambda R: R,
        "Ds": lambda R: torch.log(1 + R),
        "Iu": lambda R: (1 + R) * torch.log(1 + R),
        "Ib": lambda R: (b * R - torch.log(1 + b * R)) / b**2,
        "Dq": lambda R: 1 - (1 + R) ** -alpha,
    }
    f = shapes[variant]

    def loss(r: int, positives: list[int], negatives: list[int]) -> Tensor:
        terms = [f(_above(case, r, p, negatives, anneal)) for p in positives]
        if query:
            s = torch.stack([cosine(case.x[r], case.columns[n]) for n in negatives])
            terms.append(f(torch.sigmoid((s - 1) / anneal).sum()))
        return torch.stack(terms).mean()

    return average(case, by_row(case, loss))


def ranked_list(
    case: Case, *, margin: float, Tn: float, imbalance: float = 0.5, alpha: float | None = None, Tp: float = 0
) -> tuple[Tensor, Tensor]:
    """(1 - imbalance) L_P + imbalance L_N, mean over all rows. L_P = sum w (d - (alpha - margin)) / (sum w + M 1e-5)
    over the positives with d > alpha - margin, w = exp(Tp (d - (alpha - margin))); L_N = sum w (alpha - d) / (sum w +
    M 1e-5) over the negatives with d < alpha, w = exp(Tn (alpha - d)); M columns; the weights are differentiated;
    alpha is 1 + margin / 2 unless given. Wang et al., CVPR 2019, arXiv 1903.03238."""
    border = 1 + margin / 2 if alpha is None else alpha

    def mean(hinges: list[Tensor], temperature: float) -> Tensor:
        weights = [torch.exp(temperature * h) for h in hinges]
        total = sum((w * h for w, h in zip(weights, hinges, strict=True)), attached_zero(case))
        return total / (sum(weights) + len(case.columns) * 1e-5)

    losses = []
    for r in range(len(case.x)):
        d_p, d_n = ([distance(cosine(case.x[r], case.columns[c]), "l2") for c in side] for side in sides(case, r))
        pull = mean([d - (border - margin) for d in d_p if d > border - margin], Tp)
        push = mean([border - d for d in d_n if d < border], Tn)
        losses.append((1 - imbalance) * pull + imbalance * push)
    return average(case, losses)


def _above(case: Case, r: int, p: int, rivals: list[int], temperature: float) -> Tensor:
    """How many of the rivals other than p rank above p: sum of sigmoid((s - s_p) / temperature)."""
    s_p = cosine(case.x[r], case.columns[p])
    terms = [torch.sigmoid((cosine(case.x[r], case.columns[c]) - s_p) / temperature) for c in rivals if c != p]
    return sum(terms, attached_zero(case))
