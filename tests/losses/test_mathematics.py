"""The mathematics of the losses, demonstrated in float64 through the public API.

Every formula is written out here anew, as its paper has it; docs/math.md derives them and names these tests. Where a
claim could be confused with a near miss (a sign, a missing factor, a gradient that is not stopped), the near miss is
shown to fail.
"""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn.functional import cross_entropy, one_hot

from nearfar import losses

N, C, D = 6, 4, 5  # samples, classes, dimensions
LABELS = torch.tensor([0, 1, 2, 3, 0, 2])
PAIR_LABELS = torch.tensor([0, 0, 0, 1, 1, 1, 2, 2])
THETA = torch.linspace(0, math.pi, 2001, dtype=torch.float64)


def tensor(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def uniform(low: float, high: float, n: int, seed: int = 0) -> Tensor:
    return low + (high - low) * torch.rand(n, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


X, W, PAIR_X = random(N, D), random(C, D, seed=1), random(len(PAIR_LABELS), D, seed=2)


def unit(x: Tensor) -> Tensor:
    return x / x.norm(dim=1, keepdim=True)


def cosines(x: Tensor, y: Tensor) -> Tensor:
    return unit(x) @ unit(y).T


def close(actual: Tensor, expected: Tensor | float, tolerance: float = 1e-10) -> None:
    torch.testing.assert_close(actual, torch.as_tensor(expected, dtype=torch.float64), rtol=tolerance, atol=tolerance)


def differs(actual: Tensor, expected: Tensor, by: float = 1e-3) -> bool:
    return not torch.allclose(actual, expected, rtol=by, atol=by)


def with_gradients(function: Callable[..., Tensor], *at: Tensor) -> list[Tensor]:
    """[f(at), df/d(at)...]."""
    at = tuple(t.detach().clone().requires_grad_() for t in at)
    value = function(*at)
    return [value.detach(), *torch.autograd.grad(value, at)]


def agree(
    at: tuple[Tensor, ...], expected: Callable[..., Tensor], *others: Callable[..., Tensor], tolerance: float = 1e-10
) -> None:
    """The functions have one value and one set of gradients."""
    wanted = with_gradients(expected, *at)
    for other in others:
        for mine, theirs in zip(with_gradients(other, *at), wanted, strict=True):
            close(mine, theirs, tolerance)


def evaluate(loss: losses.Loss, x: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    """A class-level loss with these class weights."""
    return functional_call(loss, {"weight": weight}, (x, labels))


def class_level(kind: type[losses.Loss], **arguments: float | bool) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda x, w: evaluate(kind(num_classes=C, embedding_size=D, **arguments), x, w, LABELS)


def pair_masks(labels: Tensor) -> tuple[Tensor, Tensor]:
    same = labels[:, None] == labels
    return same & ~torch.eye(len(labels), dtype=torch.bool), ~same


def realise(s: Tensor) -> tuple[Tensor, Tensor]:
    """Unit vectors (R, R+M) and (M, R+M) whose cosines are the matrix s (R, M), differentiable by s.

    Row r is the basis vector e_r and column c is (s_1c, ..., s_Rc) and what is left of its length along e_{R+c}.
    """
    rows = torch.eye(len(s), sum(s.shape), dtype=s.dtype)
    return rows, torch.cat([s.T, torch.diag((1 - s.square().sum(0)).sqrt())], 1)


def of_similarities(loss: losses.Loss, positives: int) -> Callable[[Tensor], Tensor]:
    """A pair-level loss of one anchor as a function of its similarities (M,), the first of them positive."""

    def function(s: Tensor) -> Tensor:
        anchor, columns = realise(s[None])
        return loss(anchor, ref_emb=columns, positives=torch.arange(len(s))[None] < positives)

    return function


def target_logit(loss: losses.Loss, theta: Tensor) -> Tensor:
    """The target's logit where x, of norm 1, is at angle θ from its class: against one orthogonal class, of logit 0, l = log(1 + e^−z)."""
    x = torch.stack([theta.cos(), theta.sin(), 0 * theta], 1)
    classes = torch.eye(3, dtype=torch.float64)[[0, 2]]
    return -evaluate(loss, x, classes, torch.zeros(len(theta), dtype=torch.long)).expm1().log()


# ---- The formula
# -------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("m", "gamma"), [(0.25, 1.0), (-0.1, 16.0), (0.25, 64.0)])
def test_double_sum_is_softplus_of_two_lse(m: float, gamma: float) -> None:
    """log(1 + Σ_n Σ_p e^{γ(s_n − s_p + m)}) = softplus(LSE γ(s_n + m) + LSE −γ s_p): the double sum is never formed."""

    def double_sum(s: Tensor) -> Tensor:
        return torch.log(1 + (gamma * (s[3:, None] - s[:3] + m)).exp().sum())

    agree((uniform(-0.9, 0.9, 8),), double_sum, of_similarities(losses.UnifiedLoss(m, gamma), positives=3))


def test_two_lse_do_not_overflow() -> None:
    """At γ = 1024 the double sum is infinite in float64, the loss is γ(s_n − s_p + m)."""
    s = tensor(-0.9, 0.9)
    assert torch.isinf((1024 * (s[1] - s[0] + 0.25)).exp())
    close(of_similarities(losses.UnifiedLoss(0.25, 1024.0), positives=1)(s), 1024 * 2.05)


# ---- From Unified to Softmax
# -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gamma", [1.0, 16.0, 256.0])
@pytest.mark.parametrize("m", [-0.1, 0.0, 0.35])
def test_class_level_unified_is_am_softmax(m: float, gamma: float) -> None:
    """log(1 + Σ_{j≠y} e^{γ(s_j − s_y + m)}) = −log e^{γ(s_y − m)} / (e^{γ(s_y − m)} + Σ_{j≠y} e^{γ s_j})."""

    def am_softmax(x: Tensor, w: Tensor) -> Tensor:
        return cross_entropy(gamma * (cosines(x, w) - m * one_hot(LABELS).double()), LABELS)

    unified = class_level(losses.UnifiedLoss, m=m, gamma=gamma)
    cosface, same = (class_level(kind, margin=m, scale=gamma) for kind in (losses.CosFaceLoss, losses.AMSoftmaxLoss))
    agree((X, W), am_softmax, unified, cosface, same)
    if m:
        assert differs(class_level(losses.UnifiedLoss, m=-m, gamma=gamma)(X, W), am_softmax(X, W))


@pytest.mark.parametrize("gamma", [1.0, 16.0, 256.0])
def test_am_softmax_without_margin_is_normface(gamma: float) -> None:
    """m = 0: −log e^{γ s_y} / Σ_j e^{γ s_j}; the temperature is 1/γ."""
    agree(
        (X, W),
        lambda x, w: cross_entropy(gamma * cosines(x, w), LABELS),
        class_level(losses.UnifiedLoss, m=0.0, gamma=gamma),
        class_level(losses.CosFaceLoss, margin=0.0, scale=gamma),
        class_level(losses.NormFaceLoss, scale=gamma),
        class_level(losses.NormalizedSoftmaxLoss, temperature=1 / gamma),
    )


def test_normface_of_scale_one_is_softmax_of_unit_vectors() -> None:
    """γ = 1: cross-entropy of the logits x̂·ŵ_j; the gradients agree by the vectors before normalisation."""
    softmax = class_level(losses.SoftmaxLoss, bias=False)
    agree(
        (X, W),
        lambda x, w: cross_entropy(unit(x) @ unit(w).T, LABELS),
        class_level(losses.UnifiedLoss, m=0.0, gamma=1.0),
        class_level(losses.NormFaceLoss, scale=1.0),
        lambda x, w: softmax(unit(x), unit(w)),
    )
    agree((X, W), lambda x, w: cross_entropy(x @ w.T, LABELS), softmax)
    assert differs(softmax(X, W), softmax(unit(X), unit(W)))


# ---- From Unified to the triplet
# ---------------------------------------------------------------------------------------------------------


def hardest_triplets(x: Tensor, m: float) -> Tensor:
    """max_{p,n} [s_n − s_p + m]_+ of every row."""
    s = cosines(x, x)
    positive, negative = pair_masks(PAIR_LABELS)
    return (s.masked_fill(~negative, -2).amax(1) - s.masked_fill(~positive, 2).amin(1) + m).clamp_min(0)


@pytest.mark.parametrize("m", [0.0, 0.25])
@pytest.mark.parametrize("gamma", [1e1, 1e2, 1e3, 1e4])
def test_unified_over_gamma_tends_to_the_hardest_triplet(m: float, gamma: float) -> None:
    """max[s_n − s_p + m]_+ ≤ L/γ ≤ max[s_n − s_p + m]_+ + log(1 + KL)/γ, with K positives and L negatives."""
    positive, negative = pair_masks(PAIR_LABELS)
    hardest = hardest_triplets(PAIR_X, m)
    assert 0 < (hardest > 0).sum() < len(hardest)  # both sides of the hinge
    error = losses.UnifiedLoss(m, gamma, reduction="none")(PAIR_X, PAIR_LABELS) / gamma - hardest
    assert (error >= -1e-12).all()
    assert (error <= torch.log(1.0 + positive.sum(1) * negative.sum(1)) / gamma).all()


def test_the_bound_of_the_triplet_limit_is_attained() -> None:
    """Where every s_n − s_p + m = 0, the error is log(1 + KL)/γ exactly: it falls like 1/γ and no faster."""
    loss = of_similarities(losses.UnifiedLoss(0.25, 50.0), positives=2)
    close(loss(tensor(0.5, 0.5, 0.25, 0.25, 0.25)) / 50, math.log(1 + 2 * 3) / 50)


@pytest.mark.parametrize("m", [0.0, 0.25])
def test_gradient_of_unified_over_gamma_tends_to_that_of_the_hardest_triplet(m: float) -> None:
    """d(L/γ) → d[s_n − s_p + m]_+ of the hardest pair, which is TripletMarginLoss of the distance 1 − s."""
    triplet = with_gradients(lambda x: hardest_triplets(x, m).mean(), PAIR_X)[1]
    close(with_gradients(lambda x: losses.TripletMarginLoss(m, distance="cosine")(x, PAIR_LABELS), PAIR_X)[1], triplet)

    def error(gamma: float) -> float:
        unified = with_gradients(lambda x: losses.UnifiedLoss(m, gamma)(x, PAIR_LABELS) / gamma, PAIR_X)[1]
        return float((unified - triplet).norm() / triplet.norm())

    assert error(1.0) > 2 * error(10.0) > 4 * error(100.0)
    assert error(1e4) < 1e-9


# ---- Circle
# ------------------------------------------------------------------------------------------------------------------------------


def circle(s: Tensor, positives: int, m: float, gamma: float, pace: Callable[[Tensor], Tensor]) -> Tensor:
    """log(1 + Σ_n e^{γ α_n (s_n − m)} Σ_p e^{−γ α_p (s_p − 1 + m)}); `pace` is what becomes of the weights α."""
    s_p, s_n = s[:positives], s[positives:]
    a_p, a_n = pace((1 + m - s_p).clamp_min(0)), pace((s_n + m).clamp_min(0))
    return torch.log(1 + (gamma * a_n * (s_n - m)).exp().sum() * (-gamma * a_p * (s_p - 1 + m)).exp().sum())


SIMILARITIES = tensor(0.9, 0.4, -0.2, 0.6, 0.0, -0.1, 0.3)  # three positives, four negatives above −m


@pytest.mark.parametrize(("m", "gamma"), [(0.25, 8.0), (0.4, 16.0)])
def test_circle_with_unit_weights_is_unified_with_margin_1_minus_2m(m: float, gamma: float) -> None:
    """α = 1: log(1 + ΣΣ e^{γ(s_n − s_p + Δ_p − Δ_n)}), so the margin is +(Δ_p − Δ_n) = 1 − 2m, not 2m − 1."""
    unweighted = lambda s: circle(s, 3, m, gamma, pace=torch.ones_like)  # noqa: E731
    agree((SIMILARITIES,), unweighted, of_similarities(losses.UnifiedLoss(1 - 2 * m, gamma), 3))
    assert differs(of_similarities(losses.UnifiedLoss(2 * m - 1, gamma), 3)(SIMILARITIES), unweighted(SIMILARITIES))

    # CircleLoss itself gets there as its optima recede: with O_p = B, O_n = −B and γ/B, the weights γα/B = γ(1 ∓ s/B)
    # tend to γ.
    B = 1e9
    receded = losses.CircleLoss(m, gamma / B, O_p=B, O_n=-B)
    agree((SIMILARITIES,), unweighted, of_similarities(receded, 3), tolerance=1e-6)


@pytest.mark.parametrize(("m", "gamma"), [(0.25, 8.0), (0.4, 2.0), (0.25, 64.0)])
def test_circle_gradients_are_the_papers(m: float, gamma: float) -> None:
    """Eq. 9-10: dL/ds_n = Z softmax(γ(s_n² − m²)) γ(s_n + m), dL/ds_p = Z softmax(γ((s_p − 1)² − m²)) γ(s_p − 1 − m), Z = 1 − e^−L."""
    value, gradient = with_gradients(of_similarities(losses.CircleLoss(m, gamma), 3), SIMILARITIES)
    s_p, s_n = SIMILARITIES[:3], SIMILARITIES[3:]
    Z = 1 - torch.exp(-value)
    by_p = Z * torch.softmax(gamma * ((s_p - 1) ** 2 - m**2), 0) * gamma * (s_p - 1 - m)
    by_n = Z * torch.softmax(gamma * (s_n**2 - m**2), 0) * gamma * (s_n + m)
    close(gradient, torch.cat([by_p, by_n]))
    assert (gradient[:3] < 0).all()
    assert (gradient[3:] > 0).all()


def test_circle_gradients_need_constant_weights() -> None:
    """Differentiating α too keeps the value but turns dL/ds_n into Z softmax · γ 2s_n: zero at s_n = 0, and with the wrong sign below."""
    m, gamma = 0.25, 8.0
    ours = of_similarities(losses.CircleLoss(m, gamma), 3)
    agree((SIMILARITIES,), lambda s: circle(s, 3, m, gamma, pace=Tensor.detach), ours)

    value, gradient = with_gradients(lambda s: circle(s, 3, m, gamma, pace=lambda a: a), SIMILARITIES)
    close(value, ours(SIMILARITIES))
    assert differs(gradient, with_gradients(ours, SIMILARITIES)[1])
    s_n = SIMILARITIES[3:]
    close(gradient[3:], (1 - torch.exp(-value)) * torch.softmax(gamma * s_n**2, 0) * gamma * 2 * s_n)
    assert gradient[4] == 0  # s_n = 0
    assert gradient[5] < 0  # s_n = −0.1: it would be pulled up


def test_circle_past_the_optimum_leaves_a_constant() -> None:
    """s_n ≤ −m: α_n = 0, so the pair has no gradient, but its e^0 = 1 stays in the sum: e^{γ(s² − m²)} no longer applies."""
    m, gamma = 0.25, 8.0
    loss = of_similarities(losses.CircleLoss(m, gamma), 1)
    value, gradient = with_gradients(loss, tensor(0.7, 0.2, -0.6))
    negatives = math.exp(gamma * (0.2**2 - m**2)) + 1
    close(value, math.log(1 + negatives * math.exp(gamma * (0.3**2 - m**2))))
    assert gradient[2] == 0
    assert differs(value, loss(tensor(0.7, 0.2)))


def test_class_level_circle_is_cross_entropy() -> None:
    """Logits γα_p(s_y − Δ_p) for the target and γα_n(s_j − Δ_n) for the others, the weights α being constants."""
    m, gamma = 0.25, 16.0

    def formula(x: Tensor, w: Tensor) -> Tensor:
        s = cosines(x, w)
        weight_p, weight_n = ((1 + m - s).clamp_min(0).detach(), (s + m).clamp_min(0).detach())
        return cross_entropy(
            gamma * torch.where(one_hot(LABELS).bool(), weight_p * (s - 1 + m), weight_n * (s - m)), LABELS
        )

    agree((X, W), formula, class_level(losses.CircleLoss, m=m, gamma=gamma))


BOUNDARIES = [
    pytest.param({"m": 0.25}, id="m=0.25"),
    pytest.param({"m": 0.4}, id="m=0.4"),
    pytest.param({"O_p": 1.1, "O_n": -0.3, "delta_p": 0.5, "delta_n": 0.4}, id="any optima and margins"),
    pytest.param({"O_p": 0.95, "O_n": -0.8, "delta_p": 0.2, "delta_n": 0.1}, id="a large circle"),
]


def boundary(loss: losses.CircleLoss) -> tuple[Tensor, float]:
    """Centre ((O_n + Δ_n)/2, (O_p + Δ_p)/2) and radius √C, C = ((O_n − Δ_n)² + (O_p − Δ_p)²)/4, in the plane (s_n, s_p)."""
    O_p, O_n, delta_p, delta_n = loss.optima_and_margins
    centre = tensor(O_n + delta_n, O_p + delta_p) / 2
    return centre, math.sqrt(((O_n - delta_n) ** 2 + (O_p - delta_p) ** 2) / 4)


@pytest.mark.parametrize("gamma", [4.0, 256.0])
@pytest.mark.parametrize("arguments", BOUNDARIES)
def test_circle_boundary(arguments: dict[str, float], gamma: float) -> None:
    """One pair of each kind: L = log 2 on the circle, less inside, more outside, wherever both weights are positive; γ does not move it."""
    loss = losses.CircleLoss(**arguments, gamma=gamma, reduction="none")
    (O_p, O_n, *_), (centre, radius) = loss.optima_and_margins, boundary(loss)
    angle = torch.linspace(0, 2 * math.pi, 73, dtype=torch.float64)

    def at(radius: float) -> Tensor:
        points = centre + radius * torch.stack([angle.cos(), angle.sin()], 1)
        s_n, s_p = points[(points.abs() < 1).all(1) & (points[:, 0] > O_n) & (points[:, 1] < O_p)].T
        assert len(s_n) >= 15
        anchor, columns = realise(torch.cat([s_p, s_n])[None])
        diagonal, none = torch.eye(len(s_n), dtype=torch.bool), torch.zeros(len(s_n), len(s_n), dtype=torch.bool)
        masks = {"positives": torch.cat([diagonal, none], 1), "negatives": torch.cat([none, diagonal], 1)}
        return loss(anchor.expand(len(s_n), -1), ref_emb=columns, **masks)

    close(at(radius), torch.full_like(at(radius), math.log(2)), 1e-11 * gamma)
    assert (at(0.9 * radius) < math.log(2) - 1e-3).all()
    assert (at(1.1 * radius) > math.log(2) + 1e-3).all()


@pytest.mark.parametrize("m", [0.1, 0.25, 0.4])
def test_circle_boundary_of_the_simple_form(m: float) -> None:
    """s_n² + (1 − s_p)² = 2m²: centre (0, 1), radius √2 m; at its nearest point to (1, 0), T = (m, 1 − m), both pulls are equal."""
    centre, radius = boundary(losses.CircleLoss(m))
    close(centre, tensor(0, 1))
    close(tensor(radius), tensor(math.sqrt(2) * m))
    value, (by_p, by_n) = with_gradients(of_similarities(losses.CircleLoss(m, 32.0), 1), tensor(1 - m, m))
    close(value, math.log(2))
    close(by_n, -by_p)
    close(by_n, 32 * 2 * m / 2)


# ---- Proxies
# -----------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("margin", "alpha"), [(0.1, 4.0), (0.1, 32.0), (0.3, 16.0)])
def test_proxy_anchor_gradients_are_relative_hardnesses(margin: float, alpha: float) -> None:
    """dL/ds = −(α/|P⁺|) h⁺/(1 + Σh⁺), h⁺ = e^{−α(s−δ)}, and (α/|P|) h⁻/(1 + Σh⁻), h⁻ = e^{α(s+δ)}; classes 3 and 4 are absent."""
    labels, classes = torch.tensor([0, 0, 1, 2, 0]), 5
    s = 0.4 * random(classes, len(labels), seed=3).clamp(-1, 1)
    loss = losses.ProxyAnchorLoss(classes, classes + len(labels), margin, alpha)

    def of_s(s: Tensor) -> Tensor:
        proxies, samples = realise(s)
        return evaluate(loss, samples, proxies, labels)

    positive = torch.arange(classes)[:, None] == labels
    hard_p = torch.where(positive, torch.exp(-alpha * (s - margin)), 0)
    hard_n = torch.where(positive, 0, torch.exp(alpha * (s + margin)))
    value, gradient = with_gradients(of_s, s)
    close(value, torch.log(1 + hard_p.sum(1)).sum() / 3 + torch.log(1 + hard_n.sum(1)).sum() / 5)
    pulls, pushes = hard_p / (1 + hard_p.sum(1, keepdim=True)), hard_n / (1 + hard_n.sum(1, keepdim=True))
    close(gradient, alpha / 5 * pushes - alpha / 3 * pulls)
    assert (gradient[3:] > 0).all()  # absent classes only push
    assert differs(gradient, alpha / 5 * (pushes - pulls), 1e-6)  # |P⁺| is not |P|


def test_proxy_anchor_of_an_absent_class() -> None:
    """A class without positives adds log(1 + 0) = 0 to the first sum and is not counted in |P⁺|; in |P| it is."""
    loss = losses.ProxyAnchorLoss(C, D, reduction="none")
    labels = torch.tensor([0, 1, 1, 0, 0, 1])
    s = cosines(W, X)
    positive = torch.arange(C)[:, None] == labels
    first = torch.log(1 + torch.where(positive, torch.exp(-32 * (s - 0.1)), 0).sum(1))
    second = torch.log(1 + torch.where(positive, 0, torch.exp(32 * (s + 0.1))).sum(1))
    rows = evaluate(loss, X, W, labels)
    close(rows, C / 2 * first + second)
    close(rows[2:], second[2:])
    close(evaluate(losses.ProxyAnchorLoss(C, D), X, W, labels), first.sum() / 2 + second.sum() / C)


def squared_distances(x: Tensor, p: Tensor) -> Tensor:
    return (unit(x)[:, None] - unit(p)).square().sum(2)


def proxy_nca(scale: float, exclude_positive: bool) -> Callable[[Tensor, Tensor], Tensor]:
    """−log e^{−σd_y} / Σ_j e^{−σd_j}, d the squared distance of unit vectors."""

    def function(x: Tensor, p: Tensor) -> Tensor:
        d = scale * squared_distances(x, p)
        target = one_hot(LABELS).bool()
        denominator = torch.where(target & exclude_positive, 0, torch.exp(-d)).sum(1)
        return -torch.log(torch.exp(-d[target]) / denominator).mean()

    return function


@pytest.mark.parametrize("scale", [1.0, 9.0])
@pytest.mark.parametrize("exclude_positive", [False, True])
def test_proxy_nca_forms(scale: float, exclude_positive: bool) -> None:
    """The original leaves the positive proxy out of the denominator; the ++ form has it there."""
    ours = class_level(losses.ProxyNCALoss, softmax_scale=scale, exclude_positive=exclude_positive)
    agree((X, W), proxy_nca(scale, exclude_positive), ours)
    assert differs(ours(X, W), proxy_nca(scale, not exclude_positive)(X, W))


def test_proxy_nca_forms_differ_by_a_softplus() -> None:
    """l₊₊ = log(1 + e^{l}), row by row: the original falls without bound, ++ stays above 0, and is NormFace of γ = 2σ."""
    original = class_level(losses.ProxyNCALoss, softmax_scale=9.0, exclude_positive=True, reduction="none")(X, W)
    plus = class_level(losses.ProxyNCALoss, softmax_scale=9.0, reduction="none")(X, W)
    close(plus, torch.log(1 + original.exp()))
    assert original.min() < 0 < plus.min()
    agree((X, W), class_level(losses.ProxyNCALoss, softmax_scale=9.0), class_level(losses.NormFaceLoss, scale=18.0))


# ---- ψ: SphereFace and L-Softmax
# ---------------------------------------------------------------------------------------------------------

PSI_LOSSES = [losses.SphereFaceLoss, losses.LargeMarginSoftmaxLoss]


def psi(kind: type[losses.Loss], margin: float, theta: Tensor) -> Tensor:
    """ψ(θ) as the loss has it, once the annealing is over."""
    return target_logit(kind(2, 3, margin=margin, base=0, lambda_min=0, reduction="none"), theta)


@pytest.mark.parametrize("kind", PSI_LOSSES)
@pytest.mark.parametrize("margin", [1.0, 1.35, 2.0, 2.5, 3.0, 4.0])
def test_psi_falls_continuously(kind: type[losses.Loss], margin: float) -> None:
    """ψ falls strictly on [0, π], by at most m per unit of angle (so it does not jump), for integer and real margins; cos(mθ) does not."""
    steps = psi(kind, margin, THETA).diff()
    assert (steps < 0).all()
    assert (steps.abs() <= margin * THETA.diff() + 1e-12).all()
    assert (torch.cos(margin * THETA).diff() < 0).all() == (margin == 1)


@pytest.mark.parametrize("kind", PSI_LOSSES)
@pytest.mark.parametrize("margin", [1.0, 2.0, 2.5, 4.0])
def test_psi_between_and_at_the_joints(kind: type[losses.Loss], margin: float) -> None:
    """ψ(θ) = (−1)^k cos(mθ) − 2k on [kπ/m, (k+1)π/m]: 1 − 2k at kπ/m (m = 4: 1, −1, −3, −5, −7); slope −(−1)^k m sin(mθ)."""
    k = torch.arange(int(margin) + 1, dtype=torch.float64)
    close(psi(kind, margin, k * math.pi / margin), 1.0 - 2 * k)
    inside = (k[:-1] + 0.3) * math.pi / margin
    value, slope = with_gradients(lambda theta: psi(kind, margin, theta).sum(), inside)
    sign = (-1) ** k[:-1]
    close(value, (sign * torch.cos(margin * inside) - 2 * k[:-1]).sum())
    close(slope, -sign * margin * torch.sin(margin * inside))


@pytest.mark.parametrize("iteration", [0, 1000, 10**6])
def test_modified_softmax_is_sphereface_of_margin_one(iteration: int) -> None:
    """m = 1: ψ(θ) = cos θ, and any λ leaves it: the logits are ‖x‖cos θ_j."""

    def sphereface(x: Tensor, w: Tensor, margin: float = 1.0) -> Tensor:
        loss = losses.SphereFaceLoss(C, D, margin=margin)
        loss.iteration.fill_(iteration)
        return evaluate(loss, x, w, LABELS)

    agree(
        (X, W), lambda x, w: cross_entropy(x @ unit(w).T, LABELS), class_level(losses.ModifiedSoftmaxLoss), sphereface
    )
    assert differs(sphereface(X, W, margin=1.5), sphereface(X, W), 1e-6)


@pytest.mark.parametrize(
    ("kind", "norm"), [(losses.SphereFaceLoss, unit), (losses.LargeMarginSoftmaxLoss, lambda w: w)]
)
def test_large_margin_softmax_is_its_formula(kind: type[losses.Loss], norm: Callable[[Tensor], Tensor]) -> None:
    """−log e^z / (e^z + Σ_{j≠y} e^{w_j·x}), z = ‖w_y‖‖x‖ψ(θ_y), SphereFace with ‖w‖ = 1; gradients through norms and angles alike."""

    def formula(x: Tensor, w: Tensor) -> Tensor:
        w = norm(w)
        length = x.norm(dim=1, keepdim=True) * w.norm(dim=1)
        theta = torch.acos(x @ w.T / length)
        k = torch.floor(4 * theta.detach() / math.pi)
        target = length * ((-1) ** k * torch.cos(4 * theta) - 2 * k)
        return cross_entropy(torch.where(one_hot(LABELS).bool(), target, x @ w.T), LABELS)

    agree((X, W), formula, class_level(kind, margin=4.0, base=0, lambda_min=0))


def annealing(loss: losses.Loss) -> float:
    """λ, from the target's logit (λ cos θ + ψ)/(1 + λ) at θ = 1."""
    theta = tensor(1.0)
    logit = target_logit(loss.eval(), theta)
    return float((psi(type(loss), loss.margin, theta) - logit) / (logit - theta.cos()))


@pytest.mark.parametrize(
    ("iteration", "expected"),
    [(0, 1000.0), (100, 1000 / 13), (1658, 1000 / (1 + 0.12 * 1658)), (1659, 5.0), (10**6, 5.0)],
)
def test_sphereface_annealing(iteration: int, expected: float) -> None:
    """λ = max(5, 1000/(1 + 0.12 it)) reaches 5 at iteration 1659, and not before; the iteration travels in the state_dict."""
    loss = losses.SphereFaceLoss(2, 3, reduction="none")
    loss.load_state_dict({**loss.state_dict(), "iteration": torch.tensor(iteration)})
    assert annealing(loss) == pytest.approx(expected, rel=1e-9)
    assert (annealing(loss) > 5 + 1e-4) == (iteration < 1659)


def test_only_training_steps_advance_the_annealing() -> None:
    loss = losses.SphereFaceLoss(C, D).double()
    x = X.clone().requires_grad_()
    for _ in range(3):
        loss(x, LABELS).backward()
    with torch.no_grad():
        loss(x, LABELS)
    loss.eval()
    loss(x, LABELS)
    assert loss.state_dict()["iteration"] == 3


# ---- ArcFace
# -----------------------------------------------------------------------------------------------------------------------------


def arcface(margin: float, theta: Tensor, **arguments: bool) -> Tensor:
    return target_logit(losses.ArcFaceLoss(2, 3, margin, scale=1.0, reduction="none", **arguments), theta)


def test_label_smoothing_is_cross_entropy_with_soft_targets() -> None:
    """Of softmax, and of CosFace with its margins by class, which the smoothed target's logit keeps."""
    plain = losses.SoftmaxLoss(C, D, bias=False, label_smoothing=0.2).double()
    value = functional_call(plain, {"weight": W}, (X, LABELS))
    torch.testing.assert_close(value, cross_entropy(X @ W.T, LABELS, label_smoothing=0.2))
    margins = torch.linspace(0.1, 0.4, C, dtype=torch.float64)
    loss = losses.CosFaceLoss(C, D, margin=margins, scale=8.0, label_smoothing=0.2).double()
    value = functional_call(loss, {"weight": W}, (X, LABELS))
    logits = 8 * (unit(X) @ unit(W).T - one_hot(LABELS, C) * margins)
    torch.testing.assert_close(value, cross_entropy(logits, LABELS, label_smoothing=0.2))
    near_miss = cross_entropy(8 * unit(X) @ unit(W).T, LABELS, label_smoothing=0.2)
    assert abs(float(value - near_miss)) > 0.1


@pytest.mark.parametrize("margin", [0.1, 0.5, 1.0, 2.3])
def test_arcface_target_keeps_falling_past_pi(margin: float) -> None:
    """cos(θ + m) up to θ + m = π, then cos θ − m sin m: falling, with a step down of cos m + m sin m − 1; cos(θ + m) would rise again."""
    target, passed = arcface(margin, THETA), THETA + margin > math.pi
    close(target, torch.where(passed, torch.cos(THETA) - margin * math.sin(margin), torch.cos(THETA + margin)))
    assert (target.diff() < 0).all()
    assert (torch.cos(THETA + margin).diff() > 0).any()
    before, after = arcface(margin, tensor(math.pi - margin - 1e-9, math.pi - margin + 1e-9))
    close(before - after, math.cos(margin) + margin * math.sin(margin) - 1, 1e-8)


@pytest.mark.parametrize("margin", [0.1, 0.5, 1.0, 3.0])
def test_combined_margin_is_the_continuous_arcface(margin: float) -> None:
    """Continued as −cos(θ + m) − 2 past π the target falls without a step, and up to π it is ArcFace's."""
    target = target_logit(
        losses.CombinedMarginLoss(2, 3, m1=1.0, m2=margin, m3=0.0, scale=1.0, reduction="none"), THETA
    )
    passed = THETA + margin > math.pi
    close(target[~passed], arcface(margin, THETA)[~passed])
    close(target[passed], -torch.cos(THETA[passed] + margin) - 2)
    assert (target.diff() < 0).all()
    assert (target.diff().abs() <= THETA.diff() + 1e-12).all()


def test_arcface_easy_margin() -> None:
    """The margin applies where s > 0 alone: cos(θ + m), else cos θ."""
    theta = tensor(0.0, 0.7, 1.5, 1.6, 2.5, math.pi)
    close(arcface(0.5, theta, easy_margin=True), torch.cat([torch.cos(theta[:3] + 0.5), torch.cos(theta[3:])]))


def test_arcface_gradient_is_the_true_one() -> None:
    """The derivative of cos(arccos s + m), not a straight-through s."""

    def formula(x: Tensor, w: Tensor, straight: bool = False) -> Tensor:
        s = cosines(x, w)
        target = torch.cos(torch.acos(s) + 0.5)
        target = s + (target - s).detach() if straight else target
        return cross_entropy(8 * torch.where(one_hot(LABELS).bool(), target, s), LABELS)

    x = X + W[LABELS]  # no angle near π − m
    agree((x, W), formula, class_level(losses.ArcFaceLoss, margin=0.5, scale=8.0))
    assert differs(with_gradients(formula, x, W)[1], with_gradients(lambda x, w: formula(x, w, straight=True), x, W)[1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("sign", [1, -1])
def test_arcface_of_an_exact_match_has_finite_gradients(sign: int, dtype: torch.dtype) -> None:
    """x ∥ w_y: arccos has an infinite slope at s = ±1, where plain autograd gives NaN; here the slope by s is capped."""
    w = torch.eye(3, dtype=dtype).requires_grad_()
    x = (sign * 2 * torch.eye(3, dtype=dtype)[:1]).requires_grad_()
    label = torch.zeros(1, dtype=torch.long)
    loss = evaluate(losses.ArcFaceLoss(3, 3), x, w, label)
    gradients = torch.autograd.grad(loss, (x, w))
    assert all(torch.isfinite(g).all() for g in (loss, *gradients))

    naive = torch.cos(torch.acos((x / x.norm()) @ (w / w.norm(dim=1, keepdim=True)).T) + 0.5)[0, 0]
    assert torch.autograd.grad(naive, x)[0].isnan().any()


# ---- Pairs: NT-Xent, SupCon, N-pair, Multi-Similarity
# ------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0.07, 0.5])
def test_ntxent_of_one_positive_is_cross_entropy(temperature: float) -> None:
    """Two views of each image: −log e^{s_p/τ} / Σ_{a≠self} e^{s_a/τ}, which SupCon is too then."""
    views = torch.tensor([0, 1, 2, 3, 0, 1, 2, 3])
    other = torch.tensor([4, 5, 6, 7, 0, 1, 2, 3])

    def simclr(x: Tensor) -> Tensor:
        return cross_entropy((cosines(x, x) / temperature).fill_diagonal_(-math.inf), other)

    ntxent, supcon = losses.NTXentLoss(temperature), losses.SupConLoss(temperature)
    agree((PAIR_X,), simclr, lambda x: ntxent(x, views), lambda x: supcon(x, views))
    assert differs(
        ntxent(PAIR_X, PAIR_LABELS), supcon(PAIR_X, PAIR_LABELS)
    )  # several positives: SupCon's denominators hold them all


@pytest.mark.parametrize("temperature", [0.1, 0.5])
def test_ntxent_of_several_positives(temperature: float) -> None:
    """Every positive pair (i, p) against the negatives of its row: the mean of −log e^{s_ip/τ} / (e^{s_ip/τ} + Σ_n e^{s_in/τ})."""
    positive, negative = pair_masks(PAIR_LABELS)

    def formula(x: Tensor) -> Tensor:
        e = torch.exp(cosines(x, x) / temperature)
        return torch.stack(
            [-torch.log(e[i, p] / (e[i, p] + e[i, negative[i]].sum())) for i, p in positive.nonzero()]
        ).mean()

    agree((PAIR_X,), formula, lambda x: losses.NTXentLoss(temperature)(x, PAIR_LABELS))


@pytest.mark.parametrize("temperature", [0.1, 0.5])
def test_supcon_is_the_papers_l_out(temperature: float) -> None:
    """Eq. 2: −1/|P(i)| Σ_p log e^{s_ip/τ} / Σ_{a≠i} e^{s_ia/τ}, the logarithm inside the mean; outside it (Eq. 3) the loss is smaller."""
    positive, _ = pair_masks(PAIR_LABELS)

    def log_probabilities(x: Tensor) -> Tensor:
        return torch.log_softmax((cosines(x, x) / temperature).fill_diagonal_(-math.inf), 1)

    def l_out(x: Tensor) -> Tensor:
        return -(torch.where(positive, log_probabilities(x), 0).sum(1) / positive.sum(1)).mean()

    agree((PAIR_X,), l_out, lambda x: losses.SupConLoss(temperature)(x, PAIR_LABELS))
    l_in = -torch.log(torch.where(positive, log_probabilities(PAIR_X).exp(), 0).sum(1) / positive.sum(1)).mean()
    assert l_in < losses.SupConLoss(temperature)(PAIR_X, PAIR_LABELS) - 1e-2


@pytest.mark.parametrize("l2_weight", [0.0, 0.005])
def test_npair_in_the_papers_form(l2_weight: float) -> None:
    """1/N Σ_i log(1 + Σ_{j≠i} e^{f_i·f_j⁺ − f_i·f_i⁺}) + w · mean ‖f_i‖²: one anchor and one positive per class, not normalised."""
    classes = torch.arange(N)

    def formula(f: Tensor, f_plus: Tensor) -> Tensor:
        z = f @ f_plus.T
        others = ~torch.eye(N, dtype=torch.bool)
        terms = torch.where(others, torch.exp(z - z.diag()[:, None]), 0).sum(1)
        return torch.log(1 + terms).mean() + l2_weight * f.square().sum(1).mean()

    loss = losses.NPairsLoss(l2_weight=l2_weight)
    agree((X, random(N, D, seed=4)), formula, lambda f, f_plus: loss(f, classes, ref_emb=f_plus, ref_labels=classes))


def multi_similarity(
    s: Tensor, positive: Tensor, negative: Tensor, alpha: float = 2.0, beta: float = 50.0, base: float = 0.5
) -> Tensor:
    """1/α log(1 + Σ_p e^{−α(s−λ)}) + 1/β log(1 + Σ_n e^{β(s−λ)}), of the last dimension."""
    pull = torch.log(1 + torch.where(positive, torch.exp(-alpha * (s - base)), 0).sum(-1)) / alpha
    return pull + torch.log(1 + torch.where(negative, torch.exp(beta * (s - base)), 0).sum(-1)) / beta


@pytest.mark.parametrize(("alpha", "beta", "base"), [(2.0, 50.0, 0.5), (1.0, 4.0, 0.2)])
def test_multi_similarity_without_mining(alpha: float, beta: float, base: float) -> None:
    masks = pair_masks(PAIR_LABELS)
    agree(
        (PAIR_X,),
        lambda x: multi_similarity(cosines(x, x), *masks, alpha, beta, base).mean(),
        lambda x: losses.MultiSimilarityLoss(alpha, beta, base, epsilon=None)(x, PAIR_LABELS),
    )


@pytest.mark.parametrize(
    ("epsilon", "kept"),
    [
        (0.1, [False, True, False, True]),  # s_p = 0.8 is above 0.5 + 0.1, s_n = 0.1 below 0.3 − 0.1
        (0.25, [False, True, True, True]),
        (0.4, [True, True, True, True]),
        (-0.3, [False, False, False, False]),
    ],
)
def test_multi_similarity_mining_drops_pairs(epsilon: float, kept: list[bool]) -> None:
    """Positives 0.8, 0.3, negatives 0.1, 0.5: s_p < max s_n + ε and s_n > min s_p − ε are kept; what is dropped has a gradient of 0."""
    s, positive, kept_pairs = tensor(0.8, 0.3, 0.1, 0.5), torch.tensor([True, True, False, False]), torch.tensor(kept)
    value, gradient = with_gradients(of_similarities(losses.MultiSimilarityLoss(epsilon=epsilon), 2), s)
    close(value, multi_similarity(s, positive & kept_pairs, ~positive & kept_pairs))
    assert (gradient != 0).tolist() == kept


@pytest.mark.parametrize("seed", range(5))
def test_multi_similarity_mining_is_its_definition(seed: int) -> None:
    s_p, s_n = uniform(-0.1, 0.9, 6, seed), uniform(-0.6, 0.5, 8, seed + 100)
    s = torch.cat([s_p, s_n])
    kept = torch.cat([s_p < s_n.max() + 0.1, s_n > s_p.min() - 0.1])
    positive = torch.arange(len(s)) < 6
    assert 0 < (kept & positive).sum() < 6 or 0 < (kept & ~positive).sum() < 8
    mined = of_similarities(losses.MultiSimilarityLoss(epsilon=0.1), 6)
    agree((s,), lambda s: multi_similarity(s, kept & positive, kept & ~positive), mined)
    assert torch.equal(with_gradients(mined, s)[1] != 0, kept)


# ---- Distances and norms
# -----------------------------------------------------------------------------------------------------------------

DISTANCES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "l2": lambda a, b: (a - b).norm(),
    "squared_l2": lambda a, b: (a - b).square().sum(),
    "cosine": lambda a, b: 1 - a @ b,
}


@pytest.mark.parametrize("distance", DISTANCES)
@pytest.mark.parametrize("smooth_loss", [False, True])
def test_batch_hard_triplet_of_distances(distance: str, smooth_loss: bool) -> None:
    """[max d_p − min d_n + m]_+ or its softplus; between unit vectors d = √(2 − 2s), 2 − 2s and 1 − s."""
    positive, negative = pair_masks(PAIR_LABELS)

    def formula(x: Tensor) -> Tensor:
        x, rows = unit(x), []
        for i in range(len(x)):
            d_p = torch.stack([DISTANCES[distance](x[i], x[j]) for j in positive[i].nonzero()[:, 0]])
            d_n = torch.stack([DISTANCES[distance](x[i], x[j]) for j in negative[i].nonzero()[:, 0]])
            argument = d_p.max() - d_n.min() + 0.2
            rows.append(torch.log(1 + argument.exp()) if smooth_loss else argument.clamp_min(0))
        return torch.stack(rows).mean()

    agree(
        (PAIR_X,),
        formula,
        lambda x: losses.TripletMarginLoss(0.2, distance=distance, smooth_loss=smooth_loss)(x, PAIR_LABELS),
    )


@pytest.mark.parametrize("power", [1, 2])
@pytest.mark.parametrize("distance", DISTANCES)
def test_contrastive_averages_over_active_pairs(distance: str, power: int) -> None:
    """Σ_p [d − m_p]_+^q / #{d > m_p} + Σ_n [m_n − d]_+^q / #{d < m_n}, the counts being constants."""
    positive, negative = pair_masks(PAIR_LABELS)

    def formula(x: Tensor) -> Tensor:
        x = unit(x)
        pull = [(DISTANCES[distance](x[i], x[j]) - 0.3).clamp_min(0) for i, j in positive.nonzero()]
        push = [(1.2 - DISTANCES[distance](x[i], x[j])).clamp_min(0) for i, j in negative.nonzero()]
        assert any(t == 0 for t in pull + push)
        return sum(sum(t**power for t in side) / sum(t > 0 for t in side) for side in (pull, push))

    agree(
        (PAIR_X,), formula, lambda x: losses.ContrastiveLoss(0.3, 1.2, power=power, distance=distance)(x, PAIR_LABELS)
    )


def test_gradient_through_the_norm() -> None:
    """dL/dx = (g − (g·x̂)x̂)/‖x‖ with g = dL/dx̂: orthogonal to x, and inversely proportional to its length."""
    by_x = with_gradients(class_level(losses.NormFaceLoss, scale=16.0), X, W)[1]
    softmax = class_level(losses.SoftmaxLoss, bias=False)  # the same logits, of x̂ and 16 ŵ, with no norm to pass
    g = with_gradients(lambda x: softmax(x, 16 * unit(W)), unit(X))[1]
    close(by_x, (g - (g * unit(X)).sum(1, keepdim=True) * unit(X)) / X.norm(dim=1, keepdim=True))
    close((by_x * X).sum(1), torch.zeros(N))
    close(with_gradients(class_level(losses.NormFaceLoss, scale=16.0), 4 * X, W)[1], by_x / 4)


def test_zero_vector_has_similarity_zero_and_gradient_zero() -> None:
    x = X.clone()
    x[2] = 0
    value, by_x, _ = with_gradients(class_level(losses.NormFaceLoss, scale=16.0, reduction="sum"), x, W)
    rest = torch.arange(N) != 2
    others = evaluate(losses.NormFaceLoss(C, D, scale=16.0, reduction="sum"), x[rest], W, LABELS[rest])
    close(value - others, math.log(C))  # all logits 0
    assert (by_x[2] == 0).all()
    assert (by_x[rest] != 0).all()


# ---- Rows, weights, reductions
# -----------------------------------------------------------------------------------------------------------

ROW_LABELS = torch.tensor([0, 0, 0, 1, 1, 2])  # the last sample has no positive


@pytest.mark.parametrize(
    ("loss", "arguments", "share"),
    [
        (losses.UnifiedLoss, {"gamma": 4.0}, [1, 1, 1, 1, 1, 0]),  # rows with both kinds
        (losses.SupConLoss, {}, [1, 1, 1, 1, 1, 0]),  # rows with a positive
        (losses.NTXentLoss, {}, [2, 2, 2, 1, 1, 0]),  # positive pairs
        (losses.MultiSimilarityLoss, {"epsilon": None}, [1, 1, 1, 1, 1, 1]),  # all rows
    ],
)
def test_mean_is_over_the_rows_that_count(
    loss: type[losses.Loss], arguments: dict[str, float], share: list[float]
) -> None:
    """mean = Σ_r w_r k_r l_r / Σ_r w_r k_r, sum = Σ_r w_r l_r, none = (w_r l_r): w the sample weights, k the share of a row."""
    rows = loss(**arguments, reduction="none")(X, ROW_LABELS)
    for w in (torch.ones(N, dtype=torch.float64), tensor(1, 0, 2, 0.5, 3, 4)):
        by_reduction = {
            r: loss(**arguments, reduction=r)(X, ROW_LABELS, sample_weight=w) for r in ("mean", "sum", "none")
        }
        close(by_reduction["mean"], (w * tensor(*share) * rows).sum() / (w * tensor(*share)).sum())
        close(by_reduction["none"], w * rows)
        close(by_reduction["sum"], (w * rows).sum())
    assert (rows[:5] > 0).all()
    assert (rows[5] > 0) == bool(share[5])  # what does not count is 0


def test_joint_rows_need_a_negative_and_supcon_does_not() -> None:
    x, labels = X[:3], torch.zeros(3, dtype=torch.long)
    close(losses.SupConLoss(1.0)(unit(torch.ones_like(x)), labels), math.log(2))
    with pytest.warns(UserWarning, match="both a positive and a negative"):
        assert losses.UnifiedLoss()(x, labels) == 0


def test_proxy_anchor_sample_weight_multiplies_the_exponentials() -> None:
    """log(1 + Σ_x w_x e^{...}): a weight of 2 is the sample twice, a weight of 0 the sample left out."""
    loss = losses.ProxyAnchorLoss(C, D, alpha=8.0)

    def weighted(x: Tensor, w: Tensor) -> Tensor:
        return functional_call(loss, {"weight": w}, (x, LABELS), {"sample_weight": tensor(1, 2, 1, 0, 1, 1)})

    kept = torch.tensor([0, 1, 1, 2, 4, 5])  # sample 3, the only one of its class, is gone: |P⁺| = 3
    agree((X, W), lambda x, w: evaluate(loss, x[kept], w, LABELS[kept]), weighted)
    assert differs(weighted(X, W), evaluate(loss, X, W, LABELS))


@pytest.mark.parametrize(
    ("classes", "anchors", "positives"),
    [
        ([3, 1, 1, 3, 0, 7, 1, 3, 7], [0, 1, 5], [3, 2, 8]),  # class 0 has one sample
        ([3, 1, 1, 3, 7, 7, 1, 3, 7], [0, 1, 4], [3, 2, 5]),  # as many of each
    ],
)
def test_n_pairs_of_the_paper(classes: list[int], anchors: list[int], positives: list[int]) -> None:
    """One anchor and one positive per class are the first two samples; nothing else of the batch takes part."""
    x = torch.randn(9, 6, dtype=torch.float64, requires_grad=True)
    labels = torch.tensor(classes)
    weight = torch.rand(9, dtype=torch.float64)
    for reduction in ("mean", "sum", "none"):
        loss = losses.NPairsLoss(pairs="one_per_class", l2_weight=0.0, reduction=reduction)
        value = loss(x, labels, sample_weight=weight)
        z = x[anchors] @ x[positives].t()
        rows = weight[anchors] * torch.nn.functional.cross_entropy(z, torch.arange(3), reduction="none")
        expected = {"sum": rows.sum(), "mean": rows.sum() / weight[anchors].sum()}.get(reduction)
        if expected is None:
            expected = torch.zeros(9, dtype=torch.float64).index_add(0, torch.tensor(anchors), rows)
        torch.testing.assert_close(value, expected)
        upstream = torch.ones_like(value)
        torch.testing.assert_close(
            torch.autograd.grad(value, x, upstream)[0], torch.autograd.grad(expected, x, upstream, retain_graph=True)[0]
        )
    with pytest.raises(ValueError, match="takes no ref_emb"):
        losses.NPairsLoss(pairs="one_per_class")(x, labels, ref_emb=x, ref_labels=labels)
    with pytest.warns(UserWarning, match="both a positive and a negative"):
        assert losses.NPairsLoss(pairs="one_per_class", l2_weight=0.0)(x, torch.arange(9)) == 0
