"""Boundaries against the losses themselves: of one positive and one negative, a softplus loss is log 2 just there."""

import math

import numpy as np
import pytest
import torch

from nearfar import losses
from nearfar.report.boundaries import boundary

ARGUMENTS = {info.name: info.arguments for info in losses.list_losses()}


def line(name: str, **given) -> tuple[np.ndarray, np.ndarray]:
    found = boundary(name, {**ARGUMENTS[name], **given})
    assert found is not None
    (points,) = found.lines
    assert len(points[0]) > 50  # the test below would be vacuous
    return points


def unit(*cosines: float) -> torch.Tensor:
    """Rows at these cosines to the first axis, each with its remainder on an axis of its own."""
    rows = torch.zeros(len(cosines), len(cosines) + 1, dtype=torch.float64)
    for i, c in enumerate(cosines):
        rows[i, 0], rows[i, i + 1] = c, math.sqrt(max(0.0, 1 - c * c))
    return rows


def class_level(loss: torch.nn.Module, s_n: float, s_p: float) -> float:
    """The loss of one sample of class 0 with these similarities to two classes."""
    with torch.no_grad():
        loss.double().weight.copy_(unit(s_p, s_n))
    sample = torch.tensor([[1.0, 0, 0]], dtype=torch.float64)
    return loss(sample, torch.tensor([0])).item()


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("AMSoftmaxLoss", {"margin": 0.35, "scale": 10.0}),
        ("CosFaceLoss", {"margin": 0.2, "scale": 10.0}),
        ("NormFaceLoss", {"scale": 10.0}),
        ("NormalizedSoftmaxLoss", {"temperature": 0.1}),
        ("ArcFaceLoss", {"margin": 0.5, "scale": 10.0}),
        ("CombinedMarginLoss", {"m1": 1.1, "m2": 0.2, "m3": 0.1, "scale": 10.0}),
        ("CircleLoss", {"m": 0.25, "gamma": 10.0}),
        ("CircleLoss", {"m": 0.4, "gamma": 10.0, "O_p": 1.2, "delta_n": 0.3}),
        ("UnifiedLoss", {"m": 0.25, "gamma": 10.0}),
        ("ProxyNCALoss", {}),
    ],
)
def test_class_level_loss_is_log_2_on_its_boundary(name: str, given: dict) -> None:
    x, y = line(name, **given)
    loss = getattr(losses, name)(num_classes=2, embedding_size=3, **given)
    for place in np.linspace(2, len(x) - 3, 7).astype(int):
        assert class_level(loss, x[place], y[place]) == pytest.approx(math.log(2), abs=1e-4)


def pair_level(loss: torch.nn.Module, s_n: float, s_p: float) -> float:
    """The loss of one anchor with one positive and one negative; the other rows are references alone."""
    anchor = torch.tensor([[1.0, 0, 0]], dtype=torch.float64)
    value = loss(anchor, torch.tensor([0]), ref_emb=unit(s_p, s_n), ref_labels=torch.tensor([0, 1]))
    return value.item()


@pytest.mark.parametrize(
    ("name", "given"),
    [("NTXentLoss", {"temperature": 0.1}), ("TupletMarginLoss", {"margin": 0.1, "scale": 10.0}), ("CircleLoss", {})],
)
def test_pair_level_loss_is_log_2_on_its_boundary(name: str, given: dict) -> None:
    x, y = line(name, **given)
    loss = getattr(losses, name)(**given)
    for place in np.linspace(2, len(x) - 3, 7).astype(int):
        assert pair_level(loss, x[place], y[place]) == pytest.approx(math.log(2), abs=1e-4)


@pytest.mark.parametrize("distance", ["l2", "squared_l2", "cosine"])
def test_triplet_is_content_above_its_boundary_and_not_below(distance: str) -> None:
    x, y = line("TripletMarginLoss", distance=distance, margin=0.3)
    loss = losses.TripletMarginLoss(distance=distance, margin=0.3)
    for place in np.linspace(2, len(x) - 12, 7).astype(int):
        assert pair_level(loss, x[place], y[place] - 0.004) > 0
        assert pair_level(loss, x[place], min(y[place] + 0.004, 1)) == 0


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("ContrastiveLoss", {"pos_margin": 0.4, "neg_margin": 0.9}),
        ("ContrastiveLoss", {"pos_margin": 0.4, "neg_margin": 0.9, "distance": "cosine"}),
        ("MarginLoss", {"beta": 1.0, "margin": 0.2}),
        ("ThresholdConsistentMarginLoss", {"margin_plus": 0.8, "margin_minus": 0.3}),
    ],
)
def test_losses_that_judge_each_side_alone_have_a_corner(name: str, given: dict) -> None:
    found = boundary(name, {**ARGUMENTS[name], **given})
    assert found is not None
    (_, across), (down, _) = found.lines
    s_p, s_n = across[0], down[0]
    loss = getattr(losses, name)(**given)
    assert pair_level(loss, s_n - 0.01, s_p + 0.01) == 0
    assert pair_level(loss, s_n + 0.01, s_p + 0.01) > 0
    assert pair_level(loss, s_n - 0.01, s_p - 0.01) > 0


def test_circle_is_the_circle_of_the_paper() -> None:
    x, y = line("CircleLoss", m=0.25)
    on = x >= -0.25  # further left, the negative's weight is zero
    np.testing.assert_allclose(x[on] ** 2 + (1 - y[on]) ** 2, 2 * 0.25**2, atol=1e-12)
    np.testing.assert_allclose(y[~on], 0.75)


def test_corners_by_hand() -> None:
    anchor = boundary("ProxyAnchorLoss", ARGUMENTS["ProxyAnchorLoss"])
    similarity = boundary("MultiSimilarityLoss", {**ARGUMENTS["MultiSimilarityLoss"], "base": 0.6})
    assert anchor is not None and similarity is not None
    assert anchor.formula == "s_p ≥ 0.1 and s_n ≤ -0.1"
    assert similarity.formula == "s_p ≥ 0.6 and s_n ≤ 0.6"


def test_losses_without_a_boundary_have_none() -> None:
    assert boundary("SmoothAPLoss", ARGUMENTS["SmoothAPLoss"]) is None
    assert boundary("a loss of one's own", {}) is None
    assert boundary("MarginLoss", {**ARGUMENTS["MarginLoss"], "learn_beta": True}) is None


@pytest.mark.parametrize("name", sorted(ARGUMENTS))
def test_lines_stay_within_the_plane(name: str) -> None:
    found = boundary(name, ARGUMENTS[name])
    for points in found.lines if found is not None else ():
        for values in points:
            assert np.abs(values).max() <= 1
