"""Losses of samples and class proxies; the columns are the proxies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from .geometry import cosine
from .reduction import attached_zero, average, joint, log1p_sum_exp, lse, sides, stack

if TYPE_CHECKING:
    from . import Case


def proxy_nca(case: Case, *, softmax_scale: float = 1, exclude_positive: bool = False) -> tuple[Tensor, Tensor]:
    """-log exp(-d_y) / sum_z exp(-d_z), d = softmax_scale (2 - 2s), z over all proxies or over the negative ones.
    Movshovitz-Attias et al., ICCV 2017, arXiv 1703.07464; all proxies: Teh et al., arXiv 2004.01113."""

    def z(r: int, c: int) -> Tensor:
        return 2 * softmax_scale * cosine(case.x[r], case.columns[c])

    if not exclude_positive:
        return joint(case, lambda r, i: -z(r, i), z)
    losses: list[Tensor | None] = []
    for r in range(len(case.x)):
        positives, negatives = sides(case, r)
        if positives and negatives:
            losses.append(lse([-z(r, i) for i in positives]) + lse([z(r, j) for j in negatives]))
        else:
            losses.append(None)
    return average(case, losses)


def proxy_anchor(case: Case, *, margin: float = 0.1, alpha: float = 32) -> tuple[Tensor, Tensor]:
    """1/|P+| sum_P+ log(1 + sum_x+ w exp(-alpha (s - margin))) + 1/C sum_P log(1 + sum_x- w exp(alpha (s + margin))),
    w the samples' weights. Kim et al., CVPR 2020, arXiv 2003.13911."""
    weight, proxies = case.sample_weight, range(len(case.columns))
    weighted = [r for r in range(len(case.x)) if weight[r] > 0]  # log w of the others is -inf
    pull, push, present = [], [], 0
    for p in proxies:
        s = {r: cosine(case.x[r], case.columns[p]) for r in weighted}
        positives = [weight[r].log() - alpha * (s[r] - margin) for r in weighted if case.positive[r, p]]
        negatives = [weight[r].log() + alpha * (s[r] + margin) for r in weighted if case.negative[r, p]]
        pull.append(log1p_sum_exp(positives))
        push.append(log1p_sum_exp(negatives))
        present += bool(positives)
    zero, count = attached_zero(case), len(proxies)
    pulls = [t / present if present else zero for t in pull]
    mean = sum(pulls, zero) + sum((t / count for t in push), zero)
    return mean, stack(case, [count * a + b for a, b in zip(pulls, push, strict=True)])
