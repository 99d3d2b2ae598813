"""The softmax family: minus the log-probability of the target class, whose logit carries the margin."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .geometry import angle, cosine, of_angle
from .reduction import Pairwise, average, by_row, joint, lse

if TYPE_CHECKING:
    from . import Case


def softmax(case: Case, *, label_smoothing: float = 0.0) -> tuple[Tensor, Tensor]:
    """-log exp(z_y) / sum_j exp(z_j), z = x.w + b."""
    return cross_entropy(case, lambda r, c: case.x[r] @ case.columns[c] + _bias(case, c), smoothing=label_smoothing)


def modified_softmax(case: Case) -> tuple[Tensor, Tensor]:
    """z = |x| cos(theta) = x.w / |w|. Liu et al. (SphereFace), CVPR 2017, arXiv 1704.08063."""

    def z(r: int, c: int) -> Tensor:
        w = case.columns[c]
        return case.x[r] @ (w / w.norm() if w.any() else 0 * w)

    return cross_entropy(case, z)


def l2_softmax(case: Case, *, scale: float | Tensor) -> tuple[Tensor, Tensor]:
    """z = scale (x / |x|).w + b; a zero x stays zero. Ranjan et al., arXiv 1703.09507."""

    def z(r: int, c: int) -> Tensor:
        x = case.x[r]
        unit = x / x.norm() if x.any() else 0 * x
        return scale * (unit @ case.columns[c]) + _bias(case, c)

    mean, rows = cross_entropy(case, z)
    zero = 0 * torch.as_tensor(scale, dtype=torch.float64)
    return mean + zero, rows + zero


def norm_face(case: Case, *, scale: float = 30, label_smoothing: float = 0.0) -> tuple[Tensor, Tensor]:
    """z = scale cos(theta). Wang et al., ACM MM 2017, arXiv 1704.06369."""
    return _cosine_margin(case, margin=0, scale=scale, smoothing=label_smoothing)


def normalized_softmax(case: Case, *, temperature: float = 0.05) -> tuple[Tensor, Tensor]:
    """z = cos(theta) / temperature. Zhai and Wu, BMVC 2019, arXiv 1811.12649."""
    return _cosine_margin(case, margin=0, scale=1 / temperature)


def cos_face(
    case: Case, *, margin: float | Tensor = 0.35, scale: float = 64, label_smoothing: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Target scale (cos(theta) - margin), the margin perhaps the class's own. Wang et al., CVPR 2018, arXiv
    1801.09414."""
    return _cosine_margin(case, margin=margin, scale=scale, smoothing=label_smoothing)


def am_softmax(case: Case, *, margin: float = 0.35, scale: float = 30) -> tuple[Tensor, Tensor]:
    """Target scale (cos(theta) - margin). Wang et al., 2018, arXiv 1801.05599."""
    return _cosine_margin(case, margin=margin, scale=scale)


def arc_face(
    case: Case,
    *,
    margin: float | Tensor = 0.5,
    scale: float = 64,
    easy_margin: bool = False,
    label_smoothing: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Target scale cos(theta + margin); past pi, scale (cos(theta) - margin sin(margin)). With easy_margin the margin
    applies only where cos(theta) > 0. Deng et al., CVPR 2019, arXiv 1801.07698."""

    def target(r: int, i: int) -> Tensor:
        s = cosine(case.x[r], case.columns[i])
        if easy_margin and s <= 0:
            return scale * s
        return scale * arc(s, float(margin[i]) if isinstance(margin, Tensor) else margin)

    return cross_entropy(
        case, lambda r, j: scale * cosine(case.x[r], case.columns[j]), target, smoothing=label_smoothing
    )


def combined_margin(
    case: Case, *, m1: float = 1.0, m2: float = 0.5, m3: float = 0.0, scale: float = 64
) -> tuple[Tensor, Tensor]:
    """Target scale (cos(m1 theta + m2) - m3), the cosine extended past pi as in `extended_cosine`.
    Deng et al., CVPR 2019, arXiv 1801.07698."""

    def target(r: int, i: int) -> Tensor:
        s = cosine(case.x[r], case.columns[i])
        psi = of_angle(s, lambda t: extended_cosine(m1 * t + m2), lambda t: m1 * extended_cosine_slope(m1 * t + m2))
        return scale * (psi - m3)

    return cross_entropy(case, lambda r, j: scale * cosine(case.x[r], case.columns[j]), target)


def sphere_face(
    case: Case,
    *,
    margin: float = 4.0,
    scale: float = 1.0,
    base: float = 1000,
    decay: float = 0.12,
    power: float = 1,
    lambda_min: float = 5,
) -> tuple[Tensor, Tensor]:
    """Target |x| (lambda cos(theta) + psi(theta)) / (1 + lambda), others |x| cos(theta), all times scale.
    Liu et al., CVPR 2017, arXiv 1704.08063."""
    lam = annealed(case.iteration, base, decay, power, lambda_min)
    return _angular_margin(case, lambda r, c: scale * case.x[r].norm(), margin, lam)


def large_margin_softmax(
    case: Case,
    *,
    margin: float = 4.0,
    scale: float = 1.0,
    base: float = 1000,
    decay: float = 2.5e-5,
    power: float = 35,
    lambda_min: float = 0,
) -> tuple[Tensor, Tensor]:
    """Target |w| |x| (lambda cos(theta) + psi(theta)) / (1 + lambda), others |w| |x| cos(theta), all times scale.
    Liu et al., ICML 2016, arXiv 1612.02295."""
    lam = annealed(case.iteration, base, decay, power, lambda_min)
    return _angular_margin(case, lambda r, c: scale * case.columns[c].norm() * case.x[r].norm(), margin, lam)


def arc(s: Tensor, margin: float) -> Tensor:
    """cos(theta + margin); past pi, cos(theta) - margin sin(margin)."""
    if angle(s) + margin > math.pi:
        return s - margin * math.sin(margin)
    return of_angle(s, lambda t: math.cos(t + margin), lambda t: -math.sin(t + margin))


def annealed(iteration: int, base: float, decay: float, power: float, lambda_min: float) -> float:
    """lambda = max(lambda_min, base (1 + decay iteration)^-power)."""
    return max(lambda_min, base * math.pow(1 + decay * iteration, -power))


def extended_cosine(phi: float) -> float:
    """(-1)^k cos(phi) - 2k with k = floor(phi / pi): the cosine, decreasing past pi too; psi(theta) at m theta."""
    k = math.floor(phi / math.pi)
    return math.pow(-1, k) * math.cos(phi) - 2 * k


def extended_cosine_slope(phi: float) -> float:
    """Its derivative by phi."""
    return -math.pow(-1, math.floor(phi / math.pi)) * math.sin(phi)


def _bias(case: Case, c: int) -> Tensor | float:
    return 0.0 if case.bias is None else case.bias[c]


def cross_entropy(
    case: Case, z: Pairwise, target: Pairwise | None = None, smoothing: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Cross-entropy with logits `target` of the positive classes and z of the negative ones. With smoothing, of
    q = (1 - smoothing) [the target] + smoothing / C; Szegedy et al., CVPR 2016, arXiv 1512.00567, section 7."""
    positive = target or z
    if not smoothing:
        return joint(case, lambda r, i: -positive(r, i), z)

    def loss(r: int, positives: list[int], negatives: list[int]) -> Tensor:
        logits = torch.stack([*(positive(r, i) for i in positives), *(z(r, j) for j in negatives)])
        if len(positives) == 1:
            q = torch.full_like(logits, smoothing / len(logits)).detach()
            q[0] += 1 - smoothing
            return -(q * torch.log_softmax(logits, 0)).sum()
        own = logits[: len(positives)]  # the same, with the mean of several targets' logits for the one's
        plain = torch.logaddexp(lse(list(-own)) + lse(list(logits[len(positives) :])), torch.zeros_like(logits[0]))
        return plain + smoothing * (own.mean() - logits.mean())

    return average(case, by_row(case, loss))


def _cosine_margin(
    case: Case, *, margin: float | Tensor, scale: float, smoothing: float = 0.0
) -> tuple[Tensor, Tensor]:
    margins = torch.as_tensor(margin, dtype=torch.float64).expand(len(case.columns))

    def s(r: int, c: int) -> Tensor:
        return cosine(case.x[r], case.columns[c])

    return cross_entropy(case, lambda r, j: scale * s(r, j), lambda r, i: scale * (s(r, i) - margins[i]), smoothing)


def _angular_margin(case: Case, length: Pairwise, margin: float, lam: float) -> tuple[Tensor, Tensor]:
    def target(r: int, i: int) -> Tensor:
        s = cosine(case.x[r], case.columns[i])
        psi = of_angle(s, lambda t: extended_cosine(margin * t), lambda t: margin * extended_cosine_slope(margin * t))
        return length(r, i) * (lam * s + psi) / (1 + lam)

    return cross_entropy(case, lambda r, j: length(r, j) * cosine(case.x[r], case.columns[j]), target)
