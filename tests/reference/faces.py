"""The softmax family with more than a fixed margin: sub-centres, norms of the features, running statistics."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .geometry import angle, cosine, of_angle
from .proxy import of_class
from .reduction import average, by_row, log1p_sum_exp, lse
from .softmax import arc, cross_entropy, norm_face

if TYPE_CHECKING:
    from . import Case


def sub_center_arc_face(
    case: Case, *, sub_centers: int = 3, margin: float = 0.5, scale: float = 64
) -> tuple[Tensor, Tensor]:
    """ArcFace of the largest cosine among the class's sub_centers columns, of equal ones the first.
    The pairs are of samples and classes. Deng et al., ECCV 2020."""

    def s(r: int, c: int) -> Tensor:
        return max((cosine(case.x[r], case.columns[k]) for k in of_class(case, c, sub_centers)), key=Tensor.item)

    return cross_entropy(case, lambda r, j: scale * s(r, j), lambda r, i: scale * arc(s(r, i), margin))


def ada_face(
    case: Case,
    *,
    margin: float = 0.4,
    scale: float = 64,
    h: float = 0.333,
    t_alpha: float = 0.99,
    mean: float | Tensor = 20.0,
    std: float | Tensor = 100.0,
) -> tuple[Tensor, Tensor]:
    """Target scale (cos(theta - margin z) - margin - margin z), theta - margin z clipped to [1e-3, pi - 1e-3];
    z = clip((|x| - mean) / (std + 1e-3) h, -1, 1), |x| clipped to [1e-3, 100], is a constant in the gradient. mean and
    std are the running ones of |x| that this batch has updated at the rate t_alpha.
    Kim et al., CVPR 2022, arXiv 2204.00964."""

    def target(r: int, i: int) -> Tensor:
        norm = min(max(case.x[r].norm().item(), 1e-3), 100)
        z: float = min(max((norm - float(mean)) / (float(std) + 1e-3) * h, -1), 1)

        def shifted(t: float) -> float:
            return min(max(t - margin * z, 1e-3), math.pi - 1e-3)

        def slope(t: float) -> float:
            return -math.sin(t - margin * z) if shifted(t) == t - margin * z else 0

        s = cosine(case.x[r], case.columns[i])
        return scale * (of_angle(s, lambda t: math.cos(shifted(t)), slope) - margin - margin * z)

    return cross_entropy(case, lambda r, j: scale * cosine(case.x[r], case.columns[j]), target)


def mag_face(
    case: Case,
    *,
    l_a: float = 10,
    u_a: float = 110,
    l_margin: float = 0.45,
    u_margin: float = 0.8,
    scale: float = 64,
    lambda_g: float = 35,
) -> tuple[Tensor, Tensor]:
    """Target scale cos(theta + m), past pi scale (cos(theta) - m sin(m)), plus lambda_g (a / u_a^2 + 1 / a), in the
    rows that count: a = |x| clipped to [l_a, u_a], m from l_margin to u_margin linear in a, both differentiated.
    Meng et al., CVPR 2021, arXiv 2103.06627."""

    def loss(r: int, positives: list[int], negatives: list[int]) -> Tensor:
        a: Tensor = case.x[r].norm().clamp(l_a, u_a)
        m: Tensor = l_margin + (u_margin - l_margin) / (u_a - l_a) * (a - l_a)

        def target(i: int) -> Tensor:
            s = cosine(case.x[r], case.columns[i])
            if angle(s) + m.item() > math.pi:
                return s - m * m.sin()
            by_margin = -math.sin(angle(s) + m.item()) * (m - m.detach())
            return arc(s, m.item()) + by_margin

        pull = lse([-scale * target(i) for i in positives])
        push = lse([scale * cosine(case.x[r], case.columns[j]) for j in negatives])
        return log1p_sum_exp([pull + push]) + lambda_g * (a / u_a**2 + 1 / a)

    return average(case, by_row(case, loss))


def curricular_face(
    case: Case, *, margin: float = 0.5, scale: float = 64, t: float | Tensor = 0.0
) -> tuple[Tensor, Tensor]:
    """ArcFace whose negatives with s > cos(theta_y + margin) become s (t + s). t is the running mean of cos(theta_y),
    a constant in the gradient. One target per row. Huang et al., CVPR 2020, arXiv 2004.00288."""

    def s(r: int, c: int) -> Tensor:
        return cosine(case.x[r], case.columns[c])

    def negative(r: int, j: int) -> Tensor:
        target = int(case.positive[r].int().argmax())
        easy = s(r, j) <= math.cos(angle(s(r, target)) + margin)
        return scale * s(r, j) * (1 if easy else float(t) + s(r, j))

    return cross_entropy(case, negative, lambda r, i: scale * arc(s(r, i), margin))


def p2s_grad(case: Case) -> tuple[Tensor, Tensor]:
    """mean_c (s_c - [c positive])^2 over the row's positives and negatives.
    Zhang et al., CVPR 2019, arXiv 1905.02479."""

    def loss(r: int, positives: list[int], negatives: list[int]) -> Tensor:
        terms = [(cosine(case.x[r], case.columns[c]) - float(c in positives)) ** 2 for c in positives + negatives]
        return torch.stack(terms).mean()

    return average(case, by_row(case, loss))


def instance(case: Case, *, gamma: float = 64) -> tuple[Tensor, Tensor]:
    """Cross-entropy of gamma s, the positive column being the sample's instance. pytorch-metric-learning compares the
    samples with themselves and takes column k as the positive of the samples of the k-th class.
    Zheng et al., ACM TOMM 2020, arXiv 1711.05535."""
    return norm_face(case, scale=gamma)
