"""The references of tuples, ranks, several columns per class and two towers, against values worked out by hand."""

import math
from math import acos, cos, exp, log, sin, sqrt
from typing import Any

import pytest
import torch
from torch import Tensor

from . import Case
from .proxy import center_update
from .test_reference import BEHIND, FOUR, ONE, WEIGHT, classes, evaluate, random_case, samples, softplus, tensor
from .tuples import dynamic_soft_margin_histogram, soft_histogram


def sigma(t: float) -> float:
    return 1 / (1 + exp(-t))


# The cosines of FOUR: 01 0.6, 02 0, 03 -1, 12 0.8, 13 -0.6, 23 0; only sample 2 is a negative of the others.
D01, D02, D03, D12, D13, D23 = sqrt(0.8), sqrt(2), 2, sqrt(0.4), sqrt(3.2), sqrt(2)


@pytest.mark.parametrize(
    ("name", "arguments", "losses", "weight"),
    [
        # Cosine distances: positives 0.4, 2 | 0.4, 1.6 | - | 2, 1.6; negatives 1 | 0.2 | - | 1.
        ("TripletMarginLoss", {"mining": "all"}, [1.2, (0.4 + 1.6) / 2, None, (1.2 + 0.8) / 2], [1, 4, 0, 8]),
        (
            "TripletMarginLoss",
            {"mining": "all", "margin": 0, "smooth_loss": True},
            [
                (softplus(-0.6) + softplus(1)) / 2,
                (softplus(0.2) + softplus(1.4)) / 2,
                None,
                (softplus(1) + softplus(0.6)) / 2,
            ],
            [2, 4, 0, 8],
        ),
        ("TripletMarginLoss", {"mining": "semihard", "margin": 0.8}, [0.2, 0, None, 0], [1, 0, 0, 0]),
        (
            "TripletMarginLoss",
            {"mining": "semihard", "margin": 0.8, "smooth_loss": True},
            [softplus(0.2), 0, None, 0],
            [1, 0, 0, 0],
        ),
        ("TripletMarginLoss", {"mining": "easy_positive"}, [0, 0.4, None, 0.8], [1, 2, 0, 4]),
        (
            "GeneralizedLiftedStructureLoss",
            {"neg_margin": 0.5, "pos_margin": 0.2},
            [
                log(exp(D01 - 0.2) + exp(D03 - 0.2)) + 0.5 - D02,
                log(exp(D01 - 0.2) + exp(D13 - 0.2)) + 0.5 - D12,
                None,
                log(exp(D03 - 0.2) + exp(D13 - 0.2)) + 0.5 - D23,
            ],
            [1, 2, 0, 4],
        ),
        ("GeneralizedLiftedStructureLoss", {"neg_margin": -9}, [0, 0, None, 0], [1, 2, 0, 4]),
        (
            "AngularLoss",  # tan(alpha) = 1: 4 (s_n + s_pn - s_p)
            {"alpha": math.pi / 4},
            [
                (softplus(0.8) + softplus(4)) / 2,
                (softplus(0.8) + softplus(5.6)) / 2,
                None,
                (softplus(4) + softplus(5.6)) / 2,
            ],
            [2, 4, 0, 8],
        ),
        (
            "AngularLoss",
            {"alpha": math.pi / 4, "npair_weight": 0.5},
            [
                (softplus(0.8) + softplus(4)) / 2 + (softplus(-0.6) + softplus(1)) / 4,
                (softplus(0.8) + softplus(5.6)) / 2 + (softplus(0.2) + softplus(1.4)) / 4,
                None,
                (softplus(4) + softplus(5.6)) / 2 + (softplus(1) + softplus(0.6)) / 4,
            ],
            [2, 4, 0, 8],
        ),
        (
            "NCALoss",
            {"softmax_scale": 0.5},
            [
                log(1 + 1 / (exp(0.6) + exp(-1))),
                log(1 + exp(0.8) / (exp(0.6) + exp(-0.6))),
                None,
                log(1 + 1 / (exp(-1) + exp(-0.6))),
            ],
            [1, 2, 0, 4],
        ),
        (
            "TupletMarginLoss",
            {"margin": 0.1, "scale": 2},
            [
                (softplus(-2 * (0.6 * cos(0.1) + 0.8 * sin(0.1))) + softplus(2 * cos(0.1))) / 2,
                (
                    softplus(2 * (0.8 - (0.6 * cos(0.1) + 0.8 * sin(0.1))))
                    + softplus(2 * (0.8 - (-0.6 * cos(0.1) + 0.8 * sin(0.1))))
                )
                / 2,
                None,
                (softplus(2 * cos(0.1)) + softplus(2 * (0.6 * cos(0.1) - 0.8 * sin(0.1)))) / 2,
            ],
            [2, 4, 0, 8],
        ),
        (
            "SmoothAPLoss",
            {"temperature": 1},
            [
                1 - 0.5 / (1 + sigma(-0.6) / (1 + sigma(-1.6))) - 0.5 / (1 + sigma(1) / (1 + sigma(1.6))),
                1 - 0.5 / (1 + sigma(0.2) / (1 + sigma(-1.2))) - 0.5 / (1 + sigma(1.4) / (1 + sigma(1.2))),
                None,
                1 - 0.5 / (1 + sigma(1) / (1 + sigma(0.4))) - 0.5 / (1 + sigma(0.6) / (1 + sigma(-0.4))),
            ],
            [1, 2, 0, 4],
        ),
        (
            "FastAPLoss",  # squared distances: positives 0.8, 4 | 0.8, 3.2 | - | 4, 3.2; negatives 2 | 0.4 | - | 2
            {"num_bins": 4},
            [
                1 - (0.2 + 0.8 + 2 / 3) / 2,
                1 - (0.2 * 0.2 / 0.8 + 0.8 / 2 + 0.8 * 1.8 / 2.8 + 0.2 * 2 / 3) / 2,
                None,
                1 - (0.8 * 0.8 / 1.8 + 1.2 * 2 / 3) / 2,
            ],
            [1, 2, 0, 4],
        ),
        (
            "RecallAtKLoss",
            {"ks": (1, 3), "rank_temperature": 1},
            [
                1 - (sigma(-sigma(-0.6)) + sigma(-sigma(1)) + (sigma(2 - sigma(-0.6)) + sigma(2 - sigma(1))) / 2) / 2,
                1 - (sigma(-sigma(0.2)) + sigma(-sigma(1.4)) + (sigma(2 - sigma(0.2)) + sigma(2 - sigma(1.4))) / 2) / 2,
                None,
                1 - (sigma(-sigma(1)) + sigma(-sigma(0.6)) + (sigma(2 - sigma(1)) + sigma(2 - sigma(0.6))) / 2) / 2,
            ],
            [1, 2, 0, 4],
        ),
        (
            "RecallAtKLoss",
            {"ks": (1,), "rank_temperature": 1, "k_temperature": 2, "among": "all"},
            [
                1 - sigma(-(sigma(-0.6) + sigma(-1.6)) / 2) - sigma(-(sigma(1) + sigma(1.6)) / 2),
                1 - sigma(-(sigma(0.2) + sigma(-1.2)) / 2) - sigma(-(sigma(1.4) + sigma(1.2)) / 2),
                None,
                1 - sigma(-(sigma(1) + sigma(0.4)) / 2) - sigma(-(sigma(0.6) + sigma(-0.4)) / 2),
            ],
            [1, 2, 0, 4],
        ),
        (
            "PNPLoss",
            {"anneal": 1},
            [
                (sigma(-0.6) + sigma(1) + sigma(-1)) / 3,
                (sigma(0.2) + sigma(1.4) + sigma(-0.2)) / 3,
                None,
                (sigma(1) + sigma(0.6) + sigma(-1)) / 3,
            ],
            [1, 2, 0, 4],
        ),
        (
            "PNPLoss",
            {"anneal": 1, "query": False, "variant": "Dq", "alpha": 3},
            [
                1 - ((1 + sigma(-0.6)) ** -3 + (1 + sigma(1)) ** -3) / 2,
                1 - ((1 + sigma(0.2)) ** -3 + (1 + sigma(1.4)) ** -3) / 2,
                None,
                1 - ((1 + sigma(1)) ** -3 + (1 + sigma(0.6)) ** -3) / 2,
            ],
            [1, 2, 0, 4],
        ),
        (
            "RankedListLoss",  # positives d > 0.8, negatives d < 1.2; four columns
            {"margin": 0.4, "Tp": 2, "Tn": 3, "imbalance": 0.25},
            [
                0.75 * ((D01 - 0.8) * exp(2 * D01 - 1.6) + 1.2 * exp(2.4)) / (exp(2 * D01 - 1.6) + exp(2.4) + 4e-5),
                0.75
                * ((D01 - 0.8) * exp(2 * D01 - 1.6) + (D13 - 0.8) * exp(2 * D13 - 1.6))
                / (exp(2 * D01 - 1.6) + exp(2 * D13 - 1.6) + 4e-5)
                + 0.25 * (1.2 - D12) / (1 + 4e-5 / exp(3.6 - 3 * D12)),
                0.25 * (1.2 - D12) / (1 + 4e-5 / exp(3.6 - 3 * D12)),
                0.75 * (1.2 * exp(2.4) + (D13 - 0.8) * exp(2 * D13 - 1.6)) / (exp(2.4) + exp(2 * D13 - 1.6) + 4e-5),
            ],
            [1, 2, 3, 4],
        ),
        (
            "P2SGradLoss",
            {},
            [(0.4**2 + 2**2) / 3, (0.4**2 + 1.6**2 + 0.8**2) / 3, None, (2**2 + 1.6**2) / 3],
            [1, 2, 0, 4],
        ),
    ],
)
def test_four_samples(name: str, arguments: dict[str, Any], losses: list[float | None], weight: list[float]) -> None:
    if name == "TripletMarginLoss":
        arguments = {**arguments, "distance": "cosine"}
    mean, rows = evaluate(name, FOUR, **arguments)
    expected = [0 if loss is None else loss for loss in losses]
    weighted = sum(w * loss for w, loss in zip(weight, expected, strict=True))
    assert mean.item() == pytest.approx(weighted / sum(weight), rel=1e-11)
    shares = WEIGHT.tolist()
    if arguments.get("mining") in ("all", "semihard"):  # the mean of the rows is the mean over the triplets
        shares = [w * sum(shares) / sum(weight) for w in weight]
    assert rows.tolist() == pytest.approx([w * e for w, e in zip(shares, expected, strict=True)], rel=1e-11)


@pytest.mark.parametrize(
    ("name", "arguments", "a", "b", "active"),
    [
        (
            "ThresholdConsistentMarginLoss",
            {"lambda_plus": 2, "lambda_minus": 3, "margin_plus": 0.5},
            [2 * 1.5, 2 * 1.1, 0, 2 * (1.5 + 1.1)],
            [0, 3 * 0.3, 3 * 0.3, 0],
            (1 + 2 + 4 * 2, 2 + 3),
        ),
        (  # the difference of the two coordinates: 1, -0.2, -1, -1; d = the square of their relative difference
            "SignalToNoiseRatioContrastiveLoss",
            {"pos_margin": 1},
            [0.44 + 3, 35 + 15, 0, 3],
            [0, 0, 0.36 + 1, 1],
            (1 * 2 + 2 * 2 + 4, 3 * 2 + 4),
        ),
        (
            "MarginLoss",
            {},
            [1, D13 - 1, 0, D13],
            [0, 1.4 - D12, 1.4 - D12, 0],
            (1 * 1 + 2 * 2 + 3 * 1 + 4 * 2,) * 2,
        ),
    ],
)
def test_averages_over_active_pairs(
    name: str, arguments: dict[str, Any], a: list[float], b: list[float], active: tuple[int, int]
) -> None:
    mean, rows = evaluate(name, FOUR, **arguments)
    expected = [10 * w * (p / active[0] + n / active[1]) for w, p, n in zip(WEIGHT.tolist(), a, b, strict=True)]
    assert rows.tolist() == pytest.approx(expected, rel=1e-11)
    assert mean.item() == pytest.approx(sum(expected) / 10, rel=1e-11)


def test_margin_of_each_class() -> None:
    beta = torch.tensor([1.2, 0.5], dtype=torch.float64, requires_grad=True)
    arguments = {"beta": beta, "labels": torch.tensor([0, 0, 1, 0]), "nu": 0.1}
    mean, rows = evaluate("MarginLoss", FOUR, **arguments)
    hinges = [1, D13 - 1 + 1.4 - D12, 0.7 - D12, D13]
    expected = [
        w * (10 * h / 16 + 0.1 * b) for w, h, b in zip(WEIGHT.tolist(), hinges, [1.2, 1.2, 0.5, 1.2], strict=True)
    ]
    assert rows.tolist() == pytest.approx(expected, rel=1e-11)
    assert mean.item() == pytest.approx(sum(expected) / 10, rel=1e-11)
    # Active pairs: weight 1 pulls, 2 pulls and pushes, 3 pushes, 4 pulls twice.
    slope = torch.autograd.grad(mean, beta)[0].tolist()
    assert slope == pytest.approx([(-1 - 2 + 2 - 8) / 16 + 0.1 * 0.7, 3 / 16 + 0.1 * 0.3], rel=1e-11)


def test_lifted_structure() -> None:
    pushes = log(exp(1 - D02) + exp(1 - D12)), log(2 * exp(1 - D02)), log(exp(1 - D12) + exp(1 - D23))
    squares = [(push + d) ** 2 for push, d in zip(pushes, (D01, D03, D13), strict=True)]
    mean, rows = evaluate("LiftedStructureLoss", FOUR)
    assert mean.item() == pytest.approx(sum(squares) / 6, rel=1e-11)
    assert len(rows) == 0
    assert evaluate("LiftedStructureLoss", FOUR, neg_margin=-2, pos_margin=1)[0].item() == 0


def test_histogram() -> None:
    mean, rows = evaluate("HistogramLoss", FOUR, n_bins=2)  # positives 0.6, -1, -0.6; negatives 0, 0.8, 0
    assert mean.item() == pytest.approx(2.2 / 3 * 2.4 / 3 + 0.8 / 3, rel=1e-11)
    assert len(rows) == 0
    apart = samples(tensor([1, 0], [1, 0], [-1, 0], [-1, 0]), [0, 0, 1, 1])
    assert evaluate("HistogramLoss", apart)[0].item() == 0
    ends = soft_histogram([torch.tensor(t, dtype=torch.float64) for t in (-1.0, 0.0, 0.25, 1.0)], -1, 1, 2)
    assert ends.tolist() == [1, 1.75, 1.25]


def test_intra_pair_variance() -> None:
    pull = (1 - 0.99 / 3) ** 2 + (0.6 - 0.99 / 3) ** 2  # the mean is -1/3
    push = (0.8 - 1.02 * 0.8 / 3) ** 2
    mean, rows = evaluate("IntraPairVarianceLoss", FOUR, neg_eps=0.02)
    assert mean.item() == pytest.approx((pull + push) / 3, rel=1e-11)
    assert len(rows) == 0


def test_dynamic_soft_margin() -> None:
    # Bins of width 1 from -2. Differences of rows 0, 1, 3, by bin; their weights 1, 2, 4.
    first, second, third = [D01 - D02], [D03 - D02, D01 - D12, D03 - D23, D13 - D23], [D13 - D12]
    counts = torch.zeros(4, dtype=torch.float64)
    for k, differences, weights in ((1, first, [1]), (2, second, [1, 2, 4, 4]), (3, third, [2])):
        for t, w in zip(differences, weights, strict=True):
            counts[k] += w * (1 - (t + 2 - k))
            counts[min(k + 1, 3)] += w * (t + 2 - k)
    before = tensor(0.4, 0.3, 0.2, 0.1)
    after = 0.75 * before + 0.25 * counts
    after /= after.sum()
    arguments: dict[str, Any] = {"num_bins": 4, "momentum": 0.25}
    torch.testing.assert_close(dynamic_soft_margin_histogram(FOUR, before, **arguments), after)
    torch.testing.assert_close(dynamic_soft_margin_histogram(FOUR, None, **arguments), counts / counts.sum())
    _, f1, f2, f3 = after.cumsum(0).tolist()
    mean, rows = evaluate("DynamicSoftMarginLoss", FOUR, histogram=before, **arguments)
    sums = [f1 * first[0] + f2 * second[0], f2 * second[1] + f3 * third[0], 0, f2 * (second[2] + second[3])]
    shares = [w * a / 14 for w, a in zip(WEIGHT.tolist(), sums, strict=True)]  # two triplets a row, of weight 1, 2, 4
    assert mean.item() == pytest.approx(sum(shares), rel=1e-11)
    assert rows.tolist() == pytest.approx([WEIGHT.sum().item() * a for a in shares], rel=1e-11)


def test_unknown_choices() -> None:
    with pytest.raises(ValueError, match="mining"):
        evaluate("TripletMarginLoss", FOUR, mining="none")
    with pytest.raises(ValueError, match="rivals"):
        evaluate("RecallAtKLoss", FOUR, among="none")


def test_recall_is_clipped() -> None:
    # Every positive is nearer than the negative, at s = -1: its rank is 1 + sigma(-2 / t).
    x = tensor([1, 0], [1, 0], [1, 0], [1, 0], [-1, 0]).requires_grad_()
    case = samples(x, [0, 0, 0, 0, 1])
    found = sigma(1 - sigma(-20)), sigma(3 - sigma(-20))
    mean, _ = evaluate("RecallAtKLoss", case, ks=(1, 2, 4), rank_temperature=0.1)
    assert mean.item() == pytest.approx(1 - (1 + min(3 * found[0], 2) / 2 + found[1]) / 3, rel=1e-11)
    clipped, _ = evaluate("RecallAtKLoss", case, ks=(1, 2))
    assert clipped.item() == 0
    assert not torch.autograd.grad(clipped, x)[0].any()


# x has cosines 0.6, 0.8 with the columns of its class, 0, 1 with those of the other
TWO_EACH = Case(
    tensor([2, 0]),
    tensor([3, 4], [4, 3], [0, 1], [5, 0]),
    torch.tensor([[True, False]]),
    torch.tensor([[False, True]]),
    sample_weight=torch.tensor([3.0], dtype=torch.float64),
)
S0 = (0.6 * exp(1.2) + 0.8 * exp(1.6)) / (exp(1.2) + exp(1.6))  # gamma = 0.5
S1 = exp(2) / (1 + exp(2))


def test_soft_triple() -> None:
    arguments = {"centers_per_class": 2, "la": 2, "gamma": 0.5, "margin": 0.1, "tau": 0.3}
    mean, rows = evaluate("SoftTripleLoss", TWO_EACH, **arguments)
    apart = 0.3 / 4 * (sqrt(2 - 2 * 0.96 + 1e-5) + sqrt(2 + 1e-5))
    assert mean.item() == pytest.approx(softplus(2 * (S1 - S0 + 0.1)) + apart, rel=1e-11)
    assert rows.tolist() == pytest.approx([3 * mean.item()], rel=1e-11)
    one = evaluate("SoftTripleLoss", ONE, centers_per_class=1, la=64, margin=0.35)[0]
    torch.testing.assert_close(one, evaluate("CosFaceLoss", ONE)[0])


def test_proxy_anchor_of_several_proxies() -> None:
    mean, rows = evaluate("ProxyAnchorLoss", TWO_EACH, alpha=2, proxies_per_class=2, gamma=0.5)
    pull, push = log(1 + 3 * exp(-2 * (S0 - 0.1))), log(1 + 3 * exp(2 * (S1 + 0.1)))
    assert mean.item() == pytest.approx(pull + push / 2, rel=1e-11)
    assert rows.tolist() == pytest.approx([2 * pull, push], rel=1e-11)


@pytest.mark.parametrize(
    ("name", "case", "arguments", "expected"),
    [
        ("SubCenterArcFaceLoss", TWO_EACH, {"sub_centers": 2, "scale": 4}, softplus(4 - 4 * cos(acos(0.8) + 0.5))),
        (
            "AdaFaceLoss",  # z = 0.5
            ONE,
            {"mean": 1, "std": 0.999, "h": 0.5, "scale": 4},
            softplus(4 * (0.8 - (cos(acos(0.6) - 0.2) - 0.6))),
        ),
        ("AdaFaceLoss", BEHIND, {"mean": 9, "std": 1, "h": 1, "scale": 1}, softplus(0.8 + cos(1e-3))),  # z = -1
        (
            "AdaFaceLoss",  # z = 1, theta - 1 < 0
            ONE,
            {"margin": 1, "mean": -9, "std": 1, "h": 1, "scale": 1},
            softplus(0.8 - (cos(1e-3) - 2)),
        ),
        (
            "MagFaceLoss",  # a = 2, m = 0.5
            ONE,
            {"l_a": 1, "u_a": 3, "l_margin": 0.4, "u_margin": 0.6, "scale": 4, "lambda_g": 9},
            softplus(4 * (0.8 - cos(acos(0.6) + 0.5))) + 2 + 4.5,
        ),
        ("MagFaceLoss", BEHIND, {"scale": 1}, softplus(0.8 + 0.96 + 0.45 * sin(0.45)) + 35 * (10 / 110**2 + 0.1)),
        ("CurricularFaceLoss", ONE, {"scale": 4, "t": 0.3}, softplus(4 * (0.8 * 1.1 - cos(acos(0.6) + 0.5)))),
        ("CurricularFaceLoss", ONE, {"scale": 4, "t": 0.3, "margin": -0.9}, softplus(4 * (0.8 - cos(acos(0.6) - 0.9)))),
        ("CurricularFaceLoss", BEHIND, {"scale": 1, "t": 0.3}, softplus(0.8 * 1.1 + 0.96 + 0.5 * sin(0.5))),
        ("InstanceLoss", ONE, {}, softplus(64 * 0.2)),
    ],
)
def test_faces(name: str, case: Case, arguments: dict[str, Any], expected: float) -> None:
    mean, rows = evaluate(name, case, **arguments)
    assert mean.item() == pytest.approx(expected, rel=1e-11)
    assert rows.tolist() == pytest.approx([case.sample_weight.item() * expected], rel=1e-11)


def test_center() -> None:
    x, centers = tensor([1, 2], [3, 0]).requires_grad_(), tensor([0, 0], [1, 1], [5, 5]).requires_grad_()
    weight = torch.tensor([1.0, 3.0], dtype=torch.float64)
    mean, rows = evaluate("CenterLoss", classes(x, centers, [1, 0], sample_weight=weight))
    assert rows.tolist() == pytest.approx([0.5, 13.5])
    assert mean.item() == pytest.approx(14 / 4)
    to_x, to_centers = torch.autograd.grad(mean, (x, centers))
    assert to_x.tolist() == [[0, 0.25], [2.25, 0]]
    assert not to_centers.any()
    moved = center_update(centers.detach(), x.detach(), torch.tensor([1, 1]), alpha=0.5)
    assert moved.tolist() == [[0, 0], [1 + 0.5 * 2 / 3, 1], [5, 5]]


# Cosines of x_i and y_j: 0.6, 0 | 0.8, 1
PAIRS = Case(
    tensor([2, 0], [0, 1]),
    tensor([3, 4], [0, 7]),
    torch.zeros(2, 2, dtype=torch.bool),
    torch.zeros(2, 2, dtype=torch.bool),
    sample_weight=torch.tensor([1.0, 3.0], dtype=torch.float64),
)


def test_info_nce() -> None:
    mean, rows = evaluate("InfoNCELoss", PAIRS, temperature=0.5)
    losses = (softplus(-1.2) + softplus(0.4)) / 2, (softplus(-0.4) + softplus(-2)) / 2
    assert rows.tolist() == pytest.approx([losses[0], 3 * losses[1]], rel=1e-11)
    assert mean.item() == pytest.approx((losses[0] + 3 * losses[1]) / 4, rel=1e-11)


def test_siglip() -> None:
    mean, rows = evaluate("SigLIPLoss", PAIRS, temperature=2, bias=-1)  # logits 0.2, -1 | 0.6, 1
    losses = softplus(-0.2) + softplus(-1), softplus(0.6) + softplus(-1)
    assert rows.tolist() == pytest.approx([losses[0], 3 * losses[1]], rel=1e-11)
    assert mean.item() == pytest.approx((losses[0] + 3 * losses[1]) / 4, rel=1e-11)


def test_vic_reg() -> None:
    x, y = tensor([0, 0], [2, 1]), tensor([0, 1], [1, 1])  # variances 2, 0.5 and 0.5, 0; covariances 1 and 0
    mean, rows = evaluate("VICRegLoss", Case(x, y, PAIRS.positive, PAIRS.negative), covariance_v=3)
    deviation = 2 * (1 - sqrt(0.5001)) + 1 - sqrt(1e-4)
    assert mean.item() == pytest.approx(25 * 0.5 + 25 / 2 * deviation / 2 + 3 * 2 / 2, rel=1e-11)
    assert len(rows) == 0


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        *(("TripletMarginLoss", {"mining": mining, "margin": 1}) for mining in ("all", "semihard", "easy_positive")),
        ("TripletMarginLoss", {"mining": "all", "smooth_loss": True}),
        ("LiftedStructureLoss", {}),
        ("HistogramLoss", {"n_bins": 7}),
        ("AngularLoss", {"npair_weight": 0.5}),
        ("IntraPairVarianceLoss", {}),
        ("DynamicSoftMarginLoss", {"momentum": 0, "histogram": tensor(*range(10)) / 45}),
        ("RecallAtKLoss", {"rank_temperature": 0.3, "among": "all"}),
        *(("PNPLoss", {"anneal": 0.2, "variant": variant}) for variant in ("Ds", "Dq", "Iu", "Ib")),
        ("RankedListLoss", {"Tp": 2, "imbalance": 0.3}),
        ("AdaFaceLoss", {"h": 1e9, "scale": 4, "mean": 1.5}),
        ("CurricularFaceLoss", {"scale": 4, "t": 0.3, "margin": 1.5}),
    ],
)
def test_gradients_of_samples(name: str, arguments: dict[str, Any]) -> None:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(6, 3, dtype=torch.float64, generator=generator, requires_grad=True)

    def mean(x: Tensor) -> Tensor:
        return evaluate(name, samples(x, [0, 0, 0, 1, 1, 2]), **arguments)[0]

    assert torch.autograd.grad(mean(x), x)[0].abs().max() > 1e-6
    assert torch.autograd.gradcheck(mean, (x,), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("SoftTripleLoss", {"centers_per_class": 2, "la": 4}),
        ("ProxyAnchorLoss", {"proxies_per_class": 2, "alpha": 4}),
        ("SubCenterArcFaceLoss", {"sub_centers": 2, "scale": 4}),
        ("MagFaceLoss", {"l_a": 0.1, "u_a": 9, "scale": 4}),
        ("InfoNCELoss", {}),
        ("SigLIPLoss", {}),
        ("VICRegLoss", {}),
    ],
)
def test_gradients_of_columns(name: str, arguments: dict[str, Any]) -> None:
    case = random_case(2, n=4, m=4)
    several = "_per_class" in str(arguments) or "sub_centers" in arguments
    positive = case.positive[:, :2] | case.positive[:, 2:] if several else case.positive

    def both(x: Tensor, columns: Tensor) -> tuple[Tensor, ...]:
        mean, rows = evaluate(name, Case(x, columns, positive, ~positive), **arguments)
        return (mean, rows) if len(rows) else (mean,)

    inputs = case.x.clone().requires_grad_(), case.columns.clone().requires_grad_()
    assert all(g.abs().max() > 1e-6 for g in torch.autograd.grad(both(*inputs)[0], inputs))
    assert torch.autograd.gradcheck(both, inputs, rtol=1e-5, atol=1e-6)


def test_gradients_of_learned_scalars() -> None:
    case = random_case(n=4)
    t, b = (torch.tensor(value, dtype=torch.float64, requires_grad=True) for value in (2.0, -1.0))
    assert torch.autograd.gradcheck(lambda t: evaluate("InfoNCELoss", case, temperature=t), (t,))
    assert torch.autograd.gradcheck(lambda t, b: evaluate("SigLIPLoss", case, temperature=t, bias=b), (t, b))
    assert torch.autograd.gradcheck(lambda b: evaluate("MarginLoss", case, beta=b + 2, nu=0.2), (b,))


@pytest.mark.parametrize("name", ["LiftedStructureLoss", "HistogramLoss", "IntraPairVarianceLoss"])
def test_whole_batches_without_pairs_and_degenerate_vectors(name: str) -> None:
    x = tensor([0, 0], [1, 2], [1, 2], [-1, -2], [-3, -6], [2, 1]).requires_grad_()
    mean, rows = evaluate(name, samples(x, [0, 0, 1, 1, 0, 1]))
    gradient = torch.autograd.grad(mean + rows.sum(), x)[0]
    assert mean.isfinite() and gradient.isfinite().all() and not gradient[0].any()
    alone = evaluate(name, samples(x, [0, 1, 2, 3, 4, 5]))[0]
    if name != "IntraPairVarianceLoss":
        assert alone.item() == 0 and not torch.autograd.grad(alone, x)[0].any()


@pytest.mark.parametrize("name", ["InfoNCELoss", "SigLIPLoss"])
def test_towers_with_zero_and_opposite_vectors(name: str) -> None:
    x, y = tensor([0, 0], [1, 2], [1, 2]).requires_grad_(), tensor([1, 2], [-1, -2], [0, 0]).requires_grad_()
    pairs = torch.zeros(3, 3, dtype=torch.bool)
    for result in evaluate(name, Case(x, y, pairs, pairs)):
        gradients = torch.autograd.grad(result.sum(), (x, y), retain_graph=True)
        assert all(t.isfinite().all() for t in (result, *gradients))
        assert not gradients[0][0].any() and not gradients[1][2].any()
