"""Losses of samples and class proxies; the columns are the proxies."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import torch
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


def proxy_anchor(
    case: Case, *, margin: float = 0.1, alpha: float = 32, proxies_per_class: int = 1, gamma: float = 0.1
) -> tuple[Tensor, Tensor]:
    """1/|P+| sum_P+ log(1 + sum_x+ w exp(-alpha (s - margin))) + 1/C sum_P log(1 + sum_x- w exp(alpha (s + margin))),
    w the samples' weights. Kim et al., CVPR 2020, arXiv 2003.13911. Of several proxies per class s is the
    `relaxed_similarity`; the rows are classes."""
    weight, classes = case.sample_weight, range(case.positive.shape[1])
    weighted = [r for r in range(len(case.x)) if weight[r] > 0]  # log w of the others is -inf
    pull, push, present = [], [], 0
    for p in classes:
        s = {r: relaxed_similarity(case, r, p, proxies_per_class, gamma) for r in weighted}
        positives = [weight[r].log() - alpha * (s[r] - margin) for r in weighted if case.positive[r, p]]
        negatives = [weight[r].log() + alpha * (s[r] + margin) for r in weighted if case.negative[r, p]]
        pull.append(log1p_sum_exp(positives))
        push.append(log1p_sum_exp(negatives))
        present += bool(positives)
    zero, count = attached_zero(case), len(classes)
    pulls = [t / present if present else zero for t in pull]
    mean = sum(pulls, zero) + sum((t / count for t in push), zero)
    return mean, stack(case, [count * a + b for a, b in zip(pulls, push, strict=True)])


def soft_triple(
    case: Case,
    *,
    centers_per_class: int = 10,
    la: float = 20,
    gamma: float = 0.1,
    margin: float = 0.01,
    tau: float = 0.2,
) -> tuple[Tensor, Tensor]:
    """Cross-entropy of la (S_c - margin [c = y]), S the `relaxed_similarity`, plus the regulariser
    tau / (C K (K - 1)) sum_c sum_t<s sqrt(2 - 2 w_t.w_s + 1e-5): once in the mean, once in every row times its weight.
    The pairs are of samples and classes. Qian et al., ICCV 2019, arXiv 1909.05235."""

    def similarity(r: int, c: int) -> Tensor:
        return relaxed_similarity(case, r, c, centers_per_class, gamma)

    mean, rows = joint(case, lambda r, i: -la * (similarity(r, i) - margin), lambda r, j: la * similarity(r, j))
    classes, regulariser = case.positive.shape[1], attached_zero(case)
    for c in range(classes):
        for t, s in itertools.combinations(of_class(case, c, centers_per_class), 2):
            root = torch.sqrt(2 - 2 * cosine(case.columns[t], case.columns[s]) + 1e-5)
            regulariser = regulariser + tau / (classes * centers_per_class * (centers_per_class - 1)) * root
    return mean + regulariser, rows + case.sample_weight * regulariser


def of_class(case: Case, c: int, count: int) -> range:
    """The columns of class c: count of them, one class after the other."""
    assert len(case.columns) == case.positive.shape[1] * count
    return range(c * count, (c + 1) * count)


def relaxed_similarity(case: Case, r: int, c: int, count: int, gamma: float) -> Tensor:
    """sum_k softmax_k(s_k / gamma) s_k over the columns k of class c."""
    s = torch.stack([cosine(case.x[r], case.columns[k]) for k in of_class(case, c, count)])
    return (s / gamma).softmax(0) @ s


def center(case: Case, *, alpha: float = 0.5) -> tuple[Tensor, Tensor]:
    """1/2 |x - c_y|^2, mean over the samples having a centre; the columns are the centres, constant in the gradient.
    alpha is the rate of `center_update`. Wen et al., ECCV 2016."""
    losses: list[Tensor | None] = []
    for x, positive in zip(case.x, case.positive, strict=True):
        difference = x - case.columns[positive.int().argmax()].detach()
        losses.append(difference @ difference / 2 if positive.any() else None)
    return average(case, losses)


def center_update(centers: Tensor, x: Tensor, labels: Tensor, alpha: float = 0.5) -> Tensor:
    """c_j - alpha sum_i (c_j - x_i) / (1 + n_j) over the n_j samples i of class j. Wen et al., ECCV 2016, eq. 4."""
    updated = centers.clone()
    for j in range(len(centers)):
        members = [x[i] for i in range(len(x)) if labels[i] == j]
        updated[j] -= alpha * sum((centers[j] - member for member in members), 0 * centers[j]) / (1 + len(members))
    return updated
