"""The numbers behind the boundaries: logits, limits and zones against the papers' closed forms."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from nearfar.studies import boundary, crossing, shapes
from nearfar.studies.boundary import Options
from nearfar.studies.margins import ANGLES, Member, arcs, family, zones
from nearfar.studies.toy import characters, class_loss, degrees, spread, train
from nearfar.training.config import LossConfig, TrainConfig
from nearfar.training.options import ConfigError, with_options
from tests.training.making import SMALL, patterns

S, M4, M_COS, M_ARC, M_CIRCLE = 24.0, 4.0, 0.35, 0.5, 0.25


@pytest.fixture(scope="module")
def members() -> dict[str, Member]:
    return {member.name: member for member in family(S, M4, M_COS, M_ARC, M_CIRCLE)}


def test_target_logits_are_those_of_the_papers(members: dict[str, Member]) -> None:
    cosine = np.cos(ANGLES)
    turned = np.where(math.pi >= ANGLES + M_ARC, np.cos(ANGLES + M_ARC), cosine - M_ARC * math.sin(M_ARC))
    expected = {
        "Softmax": cosine,
        "CosFace": cosine - M_COS,
        "ArcFace": turned,
        "Circle": (1 + M_CIRCLE - cosine) * (cosine - 1 + M_CIRCLE),
    }
    for name, values in expected.items():
        np.testing.assert_allclose(members[name].target, values, atol=1e-9, err_msg=name)


def test_psi_of_sphereface(members: dict[str, Member]) -> None:
    psi = members["SphereFace"].target
    np.testing.assert_allclose(psi[::45], [1, -1, -3, -5, -7], atol=1e-9)  # at multiples of π/4
    np.testing.assert_allclose(psi[:46], np.cos(4 * ANGLES[:46]), atol=1e-9)


def test_every_target_logit_falls_with_the_angle(members: dict[str, Member]) -> None:
    for member in members.values():
        assert (np.diff(member.target) < 1e-9).all(), member.name
        assert member.target[0] - member.target[-1] > 1.9, member.name


def test_other_logits_are_cosines_but_for_circle(members: dict[str, Member]) -> None:
    cosine = np.cos(ANGLES)
    for name in ("Softmax", "SphereFace", "CosFace", "ArcFace"):
        np.testing.assert_allclose(members[name].other, cosine, atol=1e-9, err_msg=name)
    np.testing.assert_allclose(
        members["Circle"].other, np.maximum(cosine + M_CIRCLE, 0) * (cosine - M_CIRCLE), atol=1e-9
    )


@pytest.mark.parametrize("other", [60.0, 80.0, 110.0])
def test_limits_of_two_classes(members: dict[str, Member], other: float) -> None:
    """The boundaries in closed form: θ_1 = θ_2, m θ_1 = θ_2, cos θ_1 - m = cos θ_2, θ_1 + m = θ_2, and the circle."""
    angle = math.radians(other)
    circle = 2 * M_CIRCLE**2 - max(math.cos(angle), -M_CIRCLE) ** 2
    expected = {
        "Softmax": angle,
        "SphereFace": angle / M4,
        "CosFace": math.acos(math.cos(angle) + M_COS),
        "ArcFace": angle - M_ARC,
        "Circle": math.acos(1 - math.sqrt(circle)) if circle >= 0 else math.nan,
    }
    for name, limit in expected.items():
        assert members[name].own_limit(angle) == pytest.approx(limit, abs=0.003, nan_ok=True), name
    assert math.isnan(expected["Circle"]) == (other == 60)


def test_arcs_lie_on_the_circle_between_the_boundaries(members: dict[str, Member]) -> None:
    """Four class vectors, 90° apart: with ArcFace a class keeps its margin as far as 45° - m/2 from its vector."""
    weight = np.array([[1, 0], [0, 1], [-1, 0], [0, -1.0]])
    limits = {
        "Softmax": math.pi / 4,
        "SphereFace": math.pi / 2 / 5,  # 4 θ = 90° - θ
        "ArcFace": math.pi / 4 - M_ARC / 2,
        "CosFace": math.pi / 4 - math.asin(M_COS / math.sqrt(2)),  # cos θ - sin θ = m
        "Circle": math.pi / 2 - math.acos(_circle_limit()),
    }
    for name, limit in limits.items():
        found = arcs(members[name], weight)
        assert sorted(label for label, *_ in found) == [0, 1, 2, 3], name
        for label, begin, end in found:
            middle = label * math.pi / 2
            assert (begin + end) / 2 % (2 * math.pi) == pytest.approx(middle % (2 * math.pi), abs=0.005), name
            assert (end - begin) / 2 == pytest.approx(limit, abs=0.005), name


def _circle_limit() -> float:
    """sin θ where sin² θ + (1 - cos θ)² = 2 m²: cos θ = 1 - m²."""
    return math.sqrt(1 - (1 - M_CIRCLE**2) ** 2)


def test_zones(members: dict[str, Member]) -> None:
    weight = np.eye(3)
    points = np.array([[1, 0, 0], [1, 0.9, 0], [0, 0.2, 1], [1, 0.9, 0.9]])
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    assert zones(members["Softmax"], weight, points).tolist() == [0, 0, 2, 0]
    assert zones(members["ArcFace"], weight, points).tolist() == [0, -1, 2, -1]
    assert arcs(members["Circle"], np.array([[1, 0], [math.cos(0.1), math.sin(0.1)]])) == []


def test_spread() -> None:
    corners = spread(5, 2)
    np.testing.assert_allclose(corners.norm(dim=1), 1)
    np.testing.assert_allclose(degrees(corners, corners)[0, 1], 72)
    ball = spread(7, 3)
    np.testing.assert_allclose(ball.norm(dim=1), 1)
    apart = degrees(ball, ball)
    assert apart[~np.eye(7, dtype=bool)].min() > 50
    with pytest.raises(ValueError, match="2 or 3 dimensions, not 4"):
        spread(5, 4)


def test_toys_are_trained_and_told_apart() -> None:
    toy = characters(3, seed=1)
    assert toy.images.shape == (240, 256) and toy.held_out.sum() == 60
    assert torch.equal(torch.bincount(toy.labels), torch.tensor([80, 80, 80]))
    ends = []
    for steps in (1, 60, 60):
        embeddings, loss = train(toy, lambda: class_loss(LossConfig("SoftmaxLoss"), 3, 2), 2, steps, seed=0)
        ends.append((embeddings, degrees(embeddings, loss.weight)[range(240), toy.labels].mean()))
    (_, before), (first, after), (second, _) = ends
    assert torch.equal(first, second)
    assert after < 25 < before


def test_shapes_all_pass_through_the_target() -> None:
    m = 0.25
    for name, member in shapes.shapes(m, 64.0).items():
        near = np.arccos(1 - m), np.arccos(m)
        turned = np.deg2rad(2.0)
        inside = member.accepted(np.array([near[0] - turned, near[0] + turned]), np.array([near[1]] * 2))
        assert inside.tolist() == [True, False], name


@pytest.mark.parametrize(("name", "slopes"), [("tall ellipse", (1.5, 0.5)), ("flat ellipse", (0.5, 1.5))])
def test_ellipses_are_ellipses(name: str, slopes: tuple[float, float]) -> None:
    """slope_n (s_n² - m²) + slope_p ((1 - s_p)² - m²) = 0, as read off the loss and as drawn."""
    m, (k_n, k_p) = 0.25, slopes
    member = shapes.shapes(m, 64.0)[name]
    for s_n in (0.0, 0.1, 0.2):
        s_p = 1 - math.sqrt(m**2 - k_n / k_p * (s_n**2 - m**2))
        limit = member.own_limit(math.acos(s_n))
        assert math.cos(limit) == pytest.approx(s_p, abs=5e-3)
        x, y = crossing.line(member)
        assert np.interp(s_n, x, y) == pytest.approx(s_p, abs=2e-3)


def test_what_is_said_of_shapes() -> None:
    end = {"inside": 0.9, "s_n": 0.2, "s_p": 0.8, "spread": 0.1}
    rows = [{"shape": "circle", **end, "recall@1": 0.8, "recall@1 ±": 0.01}]
    rows.append({"shape": "straight", **end, "inside": 0.1, "recall@1": 0.7, "recall@1 ±": 0.01})
    words = shapes.sentences(rows)
    assert "circle 90 % inside, about (0.20, 0.80), spread 0.100; straight 10 % inside" in words[0]
    assert words[2].startswith("Does the shape matter for unseen classes: yes: circle is 10.0 points above straight")
    assert words[2].endswith("1 have most of their pairs inside in the end: circle.")
    rows[1]["recall@1"] = 0.79
    assert "unclear" in shapes.sentences(rows)[2]


def test_the_study(tmp_path) -> None:
    options = replace(Options().small(), parts=("angles", "toys"))
    found = boundary.run(options, tmp_path, print)
    assert set(found.figures) == {"logits", "boundaries", "circle", "sphere"}
    assert len(found.tables["toys"]) == 10 and len(found.tables["logits"]) == 5 * 181
    assert "At 60° from another class" in found.sentences[0] and "Circle nowhere" in found.sentences[0]


def test_shapes_are_compared(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nearfar.studies.heads.reopen", lambda path, layout=None: patterns())
    config = with_options(TrainConfig(), {**SMALL, "path": "patterns", "options": {"width": 4}})
    options = replace(Options().small(), parts=("shapes",), steps=4, config=config)
    found = boundary.run(options, tmp_path, print)
    assert [row["shape"] for row in found.tables["shapes"]] == list(shapes.shapes(0.25, 64.0))
    assert set(found.figures) == {"shapes", "shapes-recall"}
    assert all(0 <= row["inside"] <= 1 and 0 < row["recall@1"] <= 1 for row in found.tables["shapes"])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [({"toy_classes": 2}, "at least 3 classes"), ({"parts": ("shape",)}, "no part shape"), ({"m": 0.6}, "is a target")],
)
def test_wrong_options(wrong: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Options(**wrong)
