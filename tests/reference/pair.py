"""Losses of pairs of samples."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .geometry import cosine, distance
from .reduction import Pairwise, attached_zero, average, joint, log1p_sum_exp, lse, sides, stack

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
    m: float = 0.4,
    gamma: float = 80,
    O_p: float | None = None,
    O_n: float | None = None,
    delta_p: float | None = None,
    delta_n: float | None = None,
) -> tuple[Tensor, Tensor]:
    """log[1 + sum_j exp(gamma a_n (s_n - delta_n)) sum_i exp(-gamma a_p (s_p - delta_p))]; a_p = [O_p - s_p]_+ and
    a_n = [s_n - O_n]_+ are constants in the gradient. Sun et al., CVPR 2020, arXiv 2002.10857, eq. 4-6."""
    optimum_p = 1 + m if O_p is None else O_p
    optimum_n = -m if O_n is None else O_n
    margin_p = 1 - m if delta_p is None else delta_p
    margin_n = m if delta_n is None else delta_n

    def u(r: int, i: int) -> Tensor:
        s = cosine(case.x[r], case.columns[i])
        alpha = torch.relu(optimum_p - s).detach()
        return -gamma * alpha * (s - margin_p)

    def v(r: int, j: int) -> Tensor:
        s = cosine(case.x[r], case.columns[j])
        alpha = torch.relu(s - optimum_n).detach()
        return gamma * alpha * (s - margin_n)

    return joint(case, u, v)


def triplet_margin(
    case: Case, *, margin: float = 0.2, mining: str = "batch_hard", smooth_loss: bool = False, distance: str = "l2"
) -> tuple[Tensor, Tensor]:
    """[max_i d_p^i - min_j d_n^j + margin]_+, or log(1 + exp(.)); of equal distances the first is taken.
    Schroff et al., CVPR 2015, arXiv 1503.03832; batch-hard: Hermans et al., arXiv 1703.07737."""
    if mining != "batch_hard":
        raise ValueError(f"unknown mining {mining!r}")
    losses: list[Tensor | None] = []
    for r in range(len(case.x)):
        positives, negatives = sides(case, r)
        if not positives or not negatives:
            losses.append(None)
            continue
        farthest = max((_distance(case, r, i, distance) for i in positives), key=Tensor.item)
        nearest = min((_distance(case, r, j, distance) for j in negatives), key=Tensor.item)
        argument = farthest - nearest + margin
        losses.append(log1p_sum_exp([argument]) if smooth_loss else torch.relu(argument))
    return average(case, losses)


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
    losses: list[Tensor | None] = []
    pairs: list[int] = []
    for r in range(len(case.x)):
        positives, negatives = sides(case, r)
        pairs.append(len(positives))
        if positives and negatives:
            terms = [log1p_sum_exp([z(r, n) - z(r, p) for n in negatives]) for p in positives]
            losses.append(torch.stack(terms).mean())
        else:
            losses.append(None)
    return average(case, losses, pairs)


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
    zero, weight = attached_zero(case), case.sample_weight
    mean, rows = zero, [zero] * len(case.x)
    for side in range(2):
        sums, denominator = [], 0.0
        for r in range(len(case.x)):
            d = [_distance(case, r, c, distance) for c in sides(case, r)[side]]
            hinges = [torch.relu(t - pos_margin) if side == 0 else torch.relu(neg_margin - t) for t in d]
            sums.append(sum((h**power for h in hinges), zero))
            denominator += weight[r].item() * sum(h.item() > 0 for h in hinges)
        if denominator > 0:
            mean = mean + sum((w * a for w, a in zip(weight, sums, strict=True)), zero) / denominator
            rows = [row + w * weight.sum() * a / denominator for row, w, a in zip(rows, weight, sums, strict=True)]
    return mean, stack(case, rows)


def _distance(case: Case, r: int, c: int, kind: str) -> Tensor:
    return distance(cosine(case.x[r], case.columns[c]), kind)
