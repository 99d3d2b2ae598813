"""The references against values worked out by hand, known identities and numerical derivatives."""

import dataclasses
import math
from math import cos, exp, log, sin, sqrt
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

from . import REFERENCES, Case
from .geometry import EPS, distance, of_angle
from .softmax import annealed, extended_cosine

ARGUMENTS: dict[str, dict[str, Any]] = {  # the required ones, and one column per class
    "L2SoftmaxLoss": {"scale": 3.0},
    "RankedListLoss": {"margin": 0.4, "Tn": 10},
    "SoftTripleLoss": {"centers_per_class": 1},
    "SubCenterArcFaceLoss": {"sub_centers": 1},
}
WHOLE = ("LiftedStructureLoss", "HistogramLoss", "IntraPairVarianceLoss")  # not split into rows
TOWERS = ("InfoNCELoss", "SigLIPLoss", "VICRegLoss")
BY_ROW = [name for name in REFERENCES if name not in WHOLE + TOWERS]
DETACHED = ("CircleLoss", "CenterLoss", "AdaFaceLoss", "DynamicSoftMarginLoss")  # parts are constants in the gradient
DOT_PRODUCT = ("SoftmaxLoss", "ModifiedSoftmaxLoss", "L2SoftmaxLoss", "NPairsLoss", "CenterLoss")  # not cosines alone
PSI = 0.8432 - 2  # psi(theta) of m = 4 at cos(theta) = 0.6: cos(4 theta) = -0.8432, 4 theta between pi and 2 pi


def tensor(*rows: Any) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def classes(x: Tensor, columns: Tensor, labels: list[int], **fields: Any) -> Case:
    """Samples against classes, one positive each; the label -1 has none."""
    positive = torch.tensor(labels)[:, None] == torch.arange(len(columns))
    return Case(x, columns, positive, ~positive, **fields)


def samples(x: Tensor, labels: list[int], **fields: Any) -> Case:
    """Samples against themselves."""
    same = torch.tensor(labels)[:, None] == torch.tensor(labels)
    return Case(x, x, same & ~torch.eye(len(x), dtype=torch.bool), ~same, **fields)


def random_case(seed: int = 0, n: int = 5, m: int = 4, **fields: Any) -> Case:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 3, dtype=torch.float64, generator=generator)
    columns = torch.randn(m, 3, dtype=torch.float64, generator=generator)
    return classes(x, columns, [i % m for i in range(n)], **fields)


def evaluate(name: str, case: Case, **arguments: Any) -> tuple[Tensor, Tensor]:
    return REFERENCES[name](case, **{**ARGUMENTS.get(name, {}), **arguments})


def softplus(t: float) -> float:
    return log(1 + exp(t))


# |x| = 2; target: cosine 0.6, |w| = 5, dot product 6; other: cosine 0.8, |w| = 10, dot product 16
ONE = classes(tensor([2, 0]), tensor([3, 4], [8, 6]), [0])
BIASED = dataclasses.replace(ONE, bias=torch.tensor([1.0, -2.0], dtype=torch.float64))
LATE = dataclasses.replace(ONE, iteration=10**6)
BEHIND = classes(tensor([1, 0]), tensor([-24, 7], [8, 6]), [0])  # target: cosine -0.96; theta + 0.5 > pi


@pytest.mark.parametrize(
    ("name", "case", "arguments", "expected"),
    [
        ("UnifiedLoss", ONE, {"gamma": 4}, softplus(4 * (0.8 - 0.6 + 0.25))),
        ("UnifiedLoss", ONE, {"m": 0, "gamma": 1}, softplus(0.2)),
        ("CircleLoss", ONE, {"gamma": 2}, softplus(2 * 1.2 * 0.4 - 2 * 0.8 * 0)),
        ("CircleLoss", ONE, {"m": 0.25, "gamma": 4}, softplus(4 * 1.05 * 0.55 + 4 * 0.65 * 0.15)),
        (
            "CircleLoss",
            ONE,
            {"gamma": 3, "O_p": 1, "O_n": 0, "delta_p": 0.9, "delta_n": 0.2},
            softplus(3 * 0.8 * 0.6 + 3 * 0.4 * 0.3),
        ),
        ("CircleLoss", BEHIND, {"m": 0.4, "gamma": 1, "O_n": 0.9}, softplus(0 + 2.36 * 1.56)),
        ("SoftmaxLoss", ONE, {}, softplus(16 - 6)),
        ("SoftmaxLoss", BIASED, {}, softplus(14 - 7)),
        ("ModifiedSoftmaxLoss", ONE, {}, softplus(1.6 - 1.2)),
        ("L2SoftmaxLoss", ONE, {"scale": 0.5}, softplus(4 - 1.5)),
        ("L2SoftmaxLoss", BIASED, {"scale": 0.5}, softplus(2 - 2.5)),
        ("NormFaceLoss", ONE, {}, softplus(30 * 0.2)),
        ("NormalizedSoftmaxLoss", ONE, {}, softplus(0.2 / 0.05)),
        ("CosFaceLoss", ONE, {}, softplus(64 * (0.8 - 0.25))),
        ("AMSoftmaxLoss", ONE, {}, softplus(30 * (0.8 - 0.25))),
        ("ArcFaceLoss", ONE, {"scale": 4}, softplus(4 * (0.8 - (0.6 * cos(0.5) - 0.8 * sin(0.5))))),
        (
            "ArcFaceLoss",
            ONE,
            {"scale": 4, "easy_margin": True},
            softplus(4 * (0.8 - (0.6 * cos(0.5) - 0.8 * sin(0.5)))),
        ),
        ("ArcFaceLoss", BEHIND, {"scale": 1}, softplus(0.8 + 0.96 + 0.5 * sin(0.5))),
        ("ArcFaceLoss", BEHIND, {"scale": 1, "easy_margin": True}, softplus(0.8 + 0.96)),
        (
            "CombinedMarginLoss",  # cos(2 theta) = -0.28, sin(2 theta) = 0.96
            ONE,
            {"m1": 2, "m2": 0.3, "m3": 0.1, "scale": 2},
            softplus(2 * (0.8 - (-0.28 * cos(0.3) - 0.96 * sin(0.3) - 0.1))),
        ),
        (
            "CombinedMarginLoss",  # cos(3 theta) = -0.936, sin(3 theta) = 0.352; 3 theta + 0.5 > pi
            ONE,
            {"m1": 3, "scale": 2},
            softplus(2 * (0.8 - (0.936 * cos(0.5) + 0.352 * sin(0.5) - 2))),
        ),
        ("SphereFaceLoss", ONE, {}, softplus(1.6 - 2 * (1000 * 0.6 + PSI) / 1001)),
        ("SphereFaceLoss", LATE, {"scale": 2}, softplus(2 * (1.6 - 2 * (5 * 0.6 + PSI) / 6))),
        ("SphereFaceLoss", LATE, {"margin": 1.0}, softplus(1.6 - 1.2)),
        (
            "SphereFaceLoss",
            LATE,
            {"margin": 1.5, "base": 0, "lambda_min": 0},
            softplus(1.6 - 2 * cos(1.5 * math.acos(0.6))),
        ),
        ("LargeMarginSoftmaxLoss", ONE, {"scale": 0.5}, softplus(8 - 5 * (1000 * 0.6 + PSI) / 1001)),
        ("LargeMarginSoftmaxLoss", LATE, {}, softplus(16 - 10 * PSI)),
        ("ProxyNCALoss", ONE, {}, softplus(0.4)),
        ("ProxyNCALoss", ONE, {"softmax_scale": 9}, softplus(3.6)),
        ("ProxyNCALoss", ONE, {"exclude_positive": True}, 0.4),
    ],
)
def test_one_positive_and_one_negative(name: str, case: Case, arguments: dict[str, Any], expected: float) -> None:
    mean, rows = evaluate(name, case, **arguments)
    assert mean.item() == pytest.approx(expected, rel=1e-11)
    assert rows.tolist() == pytest.approx([expected], rel=1e-11)


# Cosines: 01 0.6, 02 0, 03 -1, 12 0.8, 13 -0.6, 23 0. Row 2 has no positive.
WEIGHT = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64)
FOUR = samples(tensor([1, 0], [3, 4], [0, 2], [-1, 0]), [0, 0, 1, 0], sample_weight=WEIGHT)


@pytest.mark.parametrize(
    ("name", "arguments", "losses", "weight"),
    [
        (
            "UnifiedLoss",
            {"m": 0.5, "gamma": 1},
            [
                log(1 + exp(0.5) * (exp(-0.6) + exp(1))),
                log(1 + exp(1.3) * (exp(-0.6) + exp(0.6))),
                None,
                log(1 + exp(0.5) * (exp(1) + exp(0.6))),
            ],
            [1, 2, 0, 4],
        ),
        (
            "CircleLoss",  # a_p (s_p - 0.6): 0 at 0.6, 2 (-1.2) at -0.6, 2.4 (-1.6) at -1; a_n (s_n - 0.4): -0.16, 0.48
            {"gamma": 1},
            [
                log(1 + exp(-0.16) * (1 + exp(3.84))),
                log(1 + exp(0.48) * (1 + exp(2.4))),
                None,
                log(1 + exp(-0.16) * (exp(3.84) + exp(2.4))),
            ],
            [1, 2, 0, 4],
        ),
        ("TripletMarginLoss", {}, [2 - sqrt(2) + 0.2, sqrt(3.2) - sqrt(0.4) + 0.2, None, 2.2 - sqrt(2)], [1, 2, 0, 4]),
        ("TripletMarginLoss", {"distance": "cosine", "margin": -1.2}, [0, 0.2, None, 0], [1, 2, 0, 4]),
        ("TripletMarginLoss", {"distance": "squared_l2"}, [2.2, 3, None, 2.2], [1, 2, 0, 4]),
        (
            "TripletMarginLoss",
            {"distance": "cosine", "margin": 0, "smooth_loss": True},
            [softplus(1), softplus(1.4), None, softplus(1)],
            [1, 2, 0, 4],
        ),
        (
            "NTXentLoss",
            {"temperature": 0.5},
            [
                (softplus(-1.2) + softplus(2)) / 2,
                (softplus(0.4) + softplus(2.8)) / 2,
                None,
                (softplus(2) + softplus(1.2)) / 2,
            ],
            [2, 4, 0, 8],
        ),
        (
            "SupConLoss",
            {"temperature": 0.5},
            [
                log(exp(1.2) + exp(-2) + 1) - (1.2 - 2) / 2,
                log(exp(1.2) + exp(-1.2) + exp(1.6)),
                None,
                log(exp(-2) + exp(-1.2) + 1) - (-2 - 1.2) / 2,
            ],
            [1, 2, 0, 4],
        ),
        (
            "MultiSimilarityLoss",  # kept positives: s < 0.1, s < 0.9, -, s < 0.1; kept negatives: all but row 2's
            {"beta": 10},
            [
                log(1 + exp(3)) / 2 + log(1 + exp(-5)) / 10,
                log(1 + exp(-0.2) + exp(2.2)) / 2 + log(1 + exp(3)) / 10,
                0,
                log(1 + exp(3) + exp(2.2)) / 2 + log(1 + exp(-5)) / 10,
            ],
            [1, 2, 3, 4],
        ),
        (
            "MultiSimilarityLoss",  # only row 1 keeps pairs: -0.6 < 0.8 - 1.2 and 0.8 > -0.6 + 1.2
            {"beta": 10, "epsilon": -1.2},
            [0, log(1 + exp(2.2)) / 2 + log(1 + exp(3)) / 10, 0, 0],
            [1, 2, 3, 4],
        ),
        (
            "MultiSimilarityLoss",
            {"alpha": 1, "beta": 10, "base": 0, "epsilon": None},
            [
                log(1 + exp(-0.6) + exp(1)) + log(2) / 10,
                log(1 + exp(-0.6) + exp(0.6)) + log(1 + exp(8)) / 10,
                log(1 + 1 + exp(8) + 1) / 10,
                log(1 + exp(1) + exp(0.6)) + log(2) / 10,
            ],
            [1, 2, 3, 4],
        ),
    ],
)
def test_four_samples(name: str, arguments: dict[str, Any], losses: list[float | None], weight: list[float]) -> None:
    mean, rows = evaluate(name, FOUR, **arguments)
    expected = [0 if loss is None else loss for loss in losses]
    weighted = sum(w * loss for w, loss in zip(weight, expected, strict=True))
    assert mean.item() == pytest.approx(weighted / sum(weight), rel=1e-11)
    assert rows.tolist() == pytest.approx([w * e for w, e in zip(WEIGHT.tolist(), expected, strict=True)], rel=1e-11)


def test_nt_xent_averages_over_pairs() -> None:
    positive = FOUR.positive.clone()
    positive[0, 3] = False
    mean, _ = evaluate("NTXentLoss", dataclasses.replace(FOUR, positive=positive), temperature=0.5)
    per_row = softplus(-1.2), softplus(0.4) + softplus(2.8), softplus(2) + softplus(1.2)
    assert mean.item() == pytest.approx((per_row[0] + 2 * per_row[1] + 4 * per_row[2]) / (1 + 4 + 8), rel=1e-11)


def test_n_pairs() -> None:
    # Dot products: 01 3, 02 0, 03 -1, 12 8, 13 -3, 23 0; squared norms 1, 25, 4, 1.
    mean, rows = evaluate("NPairsLoss", FOUR, l2_weight=0.01)
    a, b, d = (
        (softplus(-3) + softplus(1)) / 2,
        (softplus(5) + softplus(11)) / 2,
        (softplus(1) + softplus(3)) / 2,
    )
    assert mean.item() == pytest.approx((2 * a + 4 * b + 8 * d) / 14 + 0.01 * (1 + 50 + 12 + 4) / 10, rel=1e-11)
    assert rows.tolist() == pytest.approx([a + 0.01, 2 * (b + 0.25), 3 * 0.04, 4 * (d + 0.01)], rel=1e-11)


@pytest.mark.parametrize("power", [1, 2])
def test_contrastive(power: int) -> None:
    # Cosine distances: 01 0.4, 02 1, 03 2, 12 0.2, 13 1.6, 23 1. Active positives: 1, 1, 0, 2; negatives: 0, 1, 1, 0.
    mean, rows = evaluate("ContrastiveLoss", FOUR, pos_margin=0.5, neg_margin=0.9, power=power, distance="cosine")
    a = [1.5**power, 1.1**power, 0, 1.5**power + 1.1**power]
    b = [0, 0.7**power, 0.7**power, 0]
    over_a, over_b = 1 + 2 + 4 * 2, 2 + 3
    expected = (a[0] + 2 * a[1] + 4 * a[3]) / over_a + (2 * b[1] + 3 * b[2]) / over_b
    assert mean.item() == pytest.approx(expected, rel=1e-11)
    assert rows.tolist() == pytest.approx(
        [w * 10 * (a[r] / over_a + b[r] / over_b) for r, w in enumerate(WEIGHT.tolist())], rel=1e-11
    )


def test_contrastive_defaults() -> None:
    # Squared l2 distances: positives 0.8, 4 | 0.8, 3.2 | - | 4, 3.2; the only active negative: 0.4, in rows 1 and 2.
    mean, _ = evaluate("ContrastiveLoss", FOUR)
    assert mean.item() == pytest.approx((4.8 + 2 * 4 + 4 * 7.2) / 14 + (1 - sqrt(0.4)) ** 2, rel=1e-11)


def test_proxy_anchor() -> None:
    # Cosines with the proxies (1, 0), (0, 1), (-1, 0): 1, 0, -1 | 0.6, 0.8, -0.6 | -0.8, 0.6, 0.8; the last is absent.
    x, proxies = tensor([2, 0], [3, 4], [-4, 3]), tensor([1, 0], [0, 5], [-1, 0])
    weight = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    mean, rows = evaluate("ProxyAnchorLoss", classes(x, proxies, [0, 0, 1], sample_weight=weight), alpha=2)
    pull = [log(1 + exp(-1.8) + 2 * exp(-1)), log(1 + 3 * exp(-1)), 0]
    push = [
        log(1 + 3 * exp(-1.4)),
        log(1 + exp(0.2) + 2 * exp(1.8)),
        log(1 + exp(-1.8) + 2 * exp(-1) + 3 * exp(1.8)),
    ]
    assert mean.item() == pytest.approx(sum(pull) / 2 + sum(push) / 3, rel=1e-11)
    assert rows.tolist() == pytest.approx([3 / 2 * a + b for a, b in zip(pull, push, strict=True)], rel=1e-11)
    unweighted = dataclasses.replace(classes(x, proxies, [0, 0, 1]), sample_weight=torch.zeros(3, dtype=torch.float64))
    assert evaluate("ProxyAnchorLoss", unweighted)[0].item() == 0


def logits(name: str, case: Case) -> Tensor:
    """The logits (N, M) of a loss with its defaults, without loops."""
    x, w = case.x, case.columns
    s = normalize(x) @ normalize(w).T
    theta, target = s.acos(), case.positive
    length = x.norm(dim=1, keepdim=True)
    bias = 0 if case.bias is None else case.bias
    z: dict[str, Tensor] = {
        "SoftmaxLoss": x @ w.T + bias,
        "ModifiedSoftmaxLoss": length * s,
        "L2SoftmaxLoss": 3 * normalize(x) @ w.T + bias,
        "NormFaceLoss": 30 * s,
        "NormalizedSoftmaxLoss": s / 0.05,
        "CosFaceLoss": 64 * (s - 0.35 * target.double()),
        "AMSoftmaxLoss": 30 * (s - 0.35 * target.double()),
        "ProxyNCALoss": 2 * s,
        "UnifiedLoss": 64 * (s - 0.25 * target.double()),
        "CircleLoss": 80 * torch.where(target, (1.4 - s).relu() * (s - 0.6), (s + 0.4).relu() * (s - 0.4)),
        "NTXentLoss": s / 0.07,
        "SupConLoss": s / 0.1,
    }
    far = theta + 0.5 > math.pi
    z["ArcFaceLoss"] = 64 * torch.where(target, torch.where(far, s - 0.5 * sin(0.5), (theta + 0.5).cos()), s)
    z["CombinedMarginLoss"] = 64 * torch.where(
        target, torch.where(far, -(theta + 0.5).cos() - 2, (theta + 0.5).cos()), s
    )
    k = (4 * theta / math.pi).floor()
    psi = torch.where(k % 2 == 0, 1.0, -1.0) * (4 * theta).cos() - 2 * k
    annealed_psi = torch.where(target, (1000 * s + psi) / 1001, s)
    z["SphereFaceLoss"] = length * annealed_psi
    z["LargeMarginSoftmaxLoss"] = length * w.norm(dim=1) * annealed_psi
    return z[name]


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(
    "name",
    [
        *("SoftmaxLoss", "ModifiedSoftmaxLoss", "L2SoftmaxLoss", "NormFaceLoss", "NormalizedSoftmaxLoss"),
        *("CosFaceLoss", "AMSoftmaxLoss", "ArcFaceLoss", "CombinedMarginLoss", "SphereFaceLoss"),
        *("LargeMarginSoftmaxLoss", "ProxyNCALoss", "UnifiedLoss", "CircleLoss", "NTXentLoss", "SupConLoss"),
    ],
)
def test_one_positive_is_cross_entropy(name: str, seed: int) -> None:
    case = random_case(seed, n=6, bias=tensor(0.3, -0.2, 0.1, 0.5))
    target = case.positive.int().argmax(1)
    mean, rows = evaluate(name, case)
    torch.testing.assert_close(mean, cross_entropy(logits(name, case), target), rtol=1e-10, atol=1e-13)
    expected = cross_entropy(logits(name, case), target, reduction="none")
    torch.testing.assert_close(rows, expected, rtol=1e-10, atol=1e-13)


def test_n_pairs_is_cross_entropy_of_dot_products() -> None:
    case = random_case()
    expected = cross_entropy(case.x @ case.columns.T, case.positive.int().argmax(1))
    torch.testing.assert_close(evaluate("NPairsLoss", case, l2_weight=0)[0], expected)


def test_circle_with_unit_weights_is_unified() -> None:
    unit = evaluate("CircleLoss", ONE, m=0.4, gamma=5, O_p=1.6, O_n=-0.2)[0]  # one pair: both weights are 1
    assert unit.item() == pytest.approx(evaluate("UnifiedLoss", ONE, m=1 - 2 * 0.4, gamma=5)[0].item(), rel=1e-11)
    flat = evaluate("CircleLoss", FOUR, m=0.3, gamma=5e-9, O_p=1e9, O_n=-1e9)[0]  # all weights 1e9, nearly
    assert flat.item() == pytest.approx(evaluate("UnifiedLoss", FOUR, m=0.4, gamma=5)[0].item(), rel=1e-7)


def test_circle_is_log_2_on_its_circle() -> None:
    m = sqrt((0.8**2 + (0.6 - 1) ** 2) / 2)  # s_n^2 + (s_p - 1)^2 = 2 m^2
    assert evaluate("CircleLoss", ONE, m=m)[0].item() == pytest.approx(log(2), rel=1e-11)


def test_circle_weights_are_constants_in_the_gradient() -> None:
    # dL/ds_n = Z gamma (s_n + m) softmax, dL/ds_p = Z gamma (s_p - 1 - m) softmax, Z = 1 - exp(-L); and ds/dw by hand.
    m, gamma = 0.4, 3.0
    x, w = tensor([1, 0, 0]), tensor([3, 4, 0], [8, 0, 6], [0.6, 0, -0.8], [2, 2, 1]).requires_grad_()
    positive = torch.tensor([[True, True, False, False]])
    loss = evaluate("CircleLoss", Case(x, w, positive, ~positive), m=m, gamma=gamma)[0]
    (gradient,) = torch.autograd.grad(loss, w)
    s, norm = tensor(0.6, 0.8, 0.6, 2 / 3), tensor(5, 10, 1, 3)
    z = 1 - exp(-loss.item())
    p, n = s[:2], s[2:]
    slope_p = z * gamma * (p - 1 - m) * (-gamma * (1 + m - p) * (p - 1 + m)).softmax(0)
    slope_n = z * gamma * (n + m) * (gamma * (n + m) * (n - m)).softmax(0)
    direction = (x - s[:, None] * normalize(w.detach())) / norm[:, None]
    torch.testing.assert_close(gradient, torch.cat([slope_p, slope_n])[:, None] * direction)


def test_unified_tends_to_the_hinge() -> None:
    assert evaluate("UnifiedLoss", ONE, gamma=1e4)[0].item() / 1e4 == pytest.approx(0.8 - 0.6 + 0.25, rel=1e-11)
    assert evaluate("UnifiedLoss", ONE, m=-0.3, gamma=1e4)[0].item() / 1e4 == 0


def test_large_scales_do_not_overflow() -> None:
    case = classes(tensor([1, 0]), tensor([-2, 0], [3, 0]), [0])  # s_p = -1, s_n = 1
    circle = evaluate("CircleLoss", case, m=0.25, gamma=1024)[0]
    assert circle.item() == pytest.approx(1024 * (1.25 * 0.75 + 2.25 * 1.75), rel=1e-11)
    anchor = evaluate("ProxyAnchorLoss", case, alpha=1024)[0]
    assert anchor.item() == pytest.approx(1024 * 1.1 + 1024 * 1.1 / 2, rel=1e-11)


def test_psi() -> None:
    values = [extended_cosine(4 * (k * math.pi / 4)) for k in range(5)]
    assert values == pytest.approx([1, -1, -3, -5, -7], rel=1e-11)
    curve = [extended_cosine(1.35 * i * math.pi / 100) for i in range(101)]
    assert curve == sorted(curve, reverse=True)


def test_annealing() -> None:
    assert annealed(0, 1000, 0.12, 1, 5) == 1000
    assert annealed(100, 1000, 0.12, 1, 5) == pytest.approx(1000 / 13)
    assert annealed(1658, 1000, 0.12, 1, 5) > 5 == annealed(1659, 1000, 0.12, 1, 5)
    assert annealed(40_000, 1000, 2.5e-5, 35, 0) == pytest.approx(1000 / 2**35)


def test_slopes_are_capped() -> None:
    for s, d in [(1.0, sqrt(4 * EPS)), (0.5, 1.0), (-1.0, 2.0)]:
        t = torch.tensor(s, dtype=torch.float64, requires_grad=True)
        length = distance(t, "l2")
        assert (length.item(), torch.autograd.grad(length, t)[0].item()) == pytest.approx((d, -1 / d), rel=1e-11)
    for s, sine in [(1.0, sqrt(EPS)), (1 + EPS, sqrt(EPS)), (0.6, 0.8), (-1.0, sqrt(EPS))]:
        t = torch.tensor(s, dtype=torch.float64, requires_grad=True)
        h = of_angle(t, lambda theta: 3 * theta, lambda theta: 3)
        expected = (3 * math.acos(min(s, 1)), -3 / sine)
        assert (h.item(), torch.autograd.grad(h, t)[0].item()) == pytest.approx(expected, rel=1e-11)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        *((name, {}) for name in BY_ROW if name not in (*DETACHED, "SmoothAPLoss", "RecallAtKLoss")),
        ("SmoothAPLoss", {"temperature": 0.3}),  # by default too steep to see
        ("RecallAtKLoss", {"rank_temperature": 0.3}),
        ("ArcFaceLoss", {"easy_margin": True, "scale": 4}),
        ("CombinedMarginLoss", {"m1": 1.7, "m2": 0.3, "m3": 0.1, "scale": 4}),
        ("SphereFaceLoss", {"margin": 1.35, "scale": 2, "base": 0, "lambda_min": 0}),
        ("LargeMarginSoftmaxLoss", {"base": 0}),
        ("ProxyNCALoss", {"exclude_positive": True, "softmax_scale": 3}),
        ("TripletMarginLoss", {"smooth_loss": True, "distance": "squared_l2"}),
        ("TripletMarginLoss", {"distance": "cosine"}),
        ("ContrastiveLoss", {"power": 1, "pos_margin": 0.3}),
        ("ContrastiveLoss", {"distance": "cosine"}),
        ("MultiSimilarityLoss", {"epsilon": None}),
    ],
)
def test_gradients_are_the_derivatives(name: str, arguments: dict[str, Any]) -> None:
    case = random_case(3, bias=tensor(0.3, -0.2, 0.1, 0.5), sample_weight=tensor(1, 2, 0.5, 1, 3))

    def both(x: Tensor, columns: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        return evaluate(name, dataclasses.replace(case, x=x, columns=columns, bias=bias), **arguments)

    assert case.bias is not None
    inputs = tuple(t.clone().requires_grad_() for t in (case.x, case.columns, case.bias))
    assert any(g.abs().max() > 1e-6 for g in torch.autograd.grad(both(*inputs)[0], inputs))
    assert torch.autograd.gradcheck(both, inputs, rtol=1e-5, atol=1e-6)


def test_gradient_of_the_learned_scale() -> None:
    scale = torch.tensor(3.0, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda t: evaluate("L2SoftmaxLoss", random_case(), scale=t), (scale,))
    nothing = classes(tensor([1, 0]), tensor([1, 1]), [0])
    assert torch.autograd.grad(evaluate("L2SoftmaxLoss", nothing, scale=scale)[0], scale)[0].item() == 0


@pytest.mark.parametrize("name", BY_ROW)
def test_zero_identical_and_opposite_vectors(name: str) -> None:
    x = tensor([0, 0], [1, 2], [1, 2], [-1, -2], [-3, -6], [2, 1]).requires_grad_()
    w = tensor([1, 2], [-1, -2], [0, 0]).requires_grad_()
    for case in (samples(x, [0, 0, 1, 1, 0, 1]), classes(x, w, [0, 0, 1, 0, 2, 2])):
        for result in evaluate(name, case):
            gradients = torch.autograd.grad(result.sum(), (x, case.columns), retain_graph=True)
            assert all(t.isfinite().all() for t in (result, *gradients))
            if name not in DOT_PRODUCT:
                assert not gradients[0][0].any()  # of the zero sample


@pytest.mark.parametrize("name", BY_ROW)
def test_nothing_to_learn_from_is_zero(name: str) -> None:
    x, columns = random_case().x.requires_grad_(), random_case().columns.requires_grad_()
    none = torch.zeros(5, 4, dtype=torch.bool)
    weightless = torch.zeros(5, dtype=torch.float64)
    for case in (Case(x, columns, none, none), Case(x, columns, ~none, none, sample_weight=weightless)):
        arguments = {"l2_weight": 0} if name == "NPairsLoss" else {}
        for result in evaluate(name, case, **arguments):
            assert not result.any()
            for gradient in torch.autograd.grad(result.sum(), (x, columns), retain_graph=True):
                assert not gradient.any()


SPLIT = (
    "DynamicSoftMarginLoss",
    *("MultiSimilarityLoss", "ContrastiveLoss", "SignalToNoiseRatioContrastiveLoss", "ThresholdConsistentMarginLoss"),
    *("ProxyAnchorLoss", "MarginLoss", "RankedListLoss", "CenterLoss"),
)


@pytest.mark.parametrize("name", [name for name in BY_ROW if name not in SPLIT])
def test_rows_without_a_positive_or_a_negative(name: str) -> None:
    case = random_case()
    without = case.positive.clone()
    without[0] = False
    alone = case.negative.clone()
    alone[1] = False
    cut = dataclasses.replace(case, positive=without, negative=alone)
    mean, rows = evaluate(name, cut, **({"l2_weight": 0} if name == "NPairsLoss" else {}))
    assert rows[:2].tolist() == pytest.approx([0, 0], abs=1e-12)  # SupCon's row 1 counts: its only column is certain
    assert mean.item() == pytest.approx(rows.sum().item() / (4 if name == "SupConLoss" else 3), rel=1e-11)


@pytest.mark.parametrize("name", BY_ROW)
def test_a_weight_is_a_repetition(name: str) -> None:
    times = torch.tensor([1, 3, 0, 2, 1])
    case = random_case(5)
    x, positive, negative = (t.repeat_interleave(times, 0) for t in (case.x, case.positive, case.negative))
    repeated = Case(x, case.columns, positive, negative)
    weighted = dataclasses.replace(case, sample_weight=times.double())
    mean, rows = evaluate(name, weighted)
    torch.testing.assert_close(mean, evaluate(name, repeated)[0])
    assert mean.item() > 0
    over = len(rows) if name == "ProxyAnchorLoss" else times.sum()
    torch.testing.assert_close(rows.sum() / over, mean)  # one positive per row: all rows count alike
