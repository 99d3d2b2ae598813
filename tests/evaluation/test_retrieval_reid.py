"""Person re-identification: cameras, junk, distractors, several pictures to a query."""

import numpy as np
import pytest

from nearfar.evaluation import retrieval_metrics
from tests.evaluation import reference

KS = (1, 5, 10)


def on_circle(degrees: list[float]) -> np.ndarray:
    angle = np.radians(degrees)
    return np.stack([np.cos(angle), np.sin(angle)], 1).astype(np.float32)


def test_by_hand() -> None:
    """Nearest first: same camera (ignored), junk (ignored), distractor, match, other person, match."""
    gallery = on_circle([1, 2, 3, 4, 5, 6])
    persons, cameras = [7, -1, 0, 7, 8, 7], [1, 2, 2, 2, 1, 3]
    found = retrieval_metrics(
        on_circle([0]), [7], gallery=gallery, gallery_labels=persons, cameras=[1], gallery_cameras=cameras, ks=(1, 2)
    )
    assert found["recall@1"] == 0 and found["recall@2"] == 1  # CMC
    assert found["map"] == pytest.approx((1 / 2 + 2 / 4) / 2)
    assert found["map_trapezoid"] == pytest.approx(((0 + 1 / 2) / 2 + (1 / 3 + 2 / 4) / 2) / 2)
    assert found["minp"] == pytest.approx(2 / 4)
    kept = retrieval_metrics(
        on_circle([0]), [7], gallery=gallery, gallery_labels=persons, cameras=[1], gallery_cameras=cameras, junk=()
    )
    assert kept["map"] == pytest.approx((1 / 3 + 2 / 5) / 2)  # −1 is a label like any other
    both = retrieval_metrics(
        on_circle([0]), [7], gallery=gallery, gallery_labels=persons, cameras=[1], gallery_cameras=cameras, junk=(-1, 0)
    )
    assert both["map"] == pytest.approx((1 / 1 + 2 / 3) / 2)


def test_junk_without_cameras_and_as_strings() -> None:
    gallery, query = on_circle([1, 2, 3]), on_circle([0])
    found = retrieval_metrics(query, ["a"], gallery=gallery, gallery_labels=["junk", "a", "b"], junk="junk", ks=[1])
    assert found["recall@1"] == 1
    plain = retrieval_metrics(query, [5], gallery=gallery, gallery_labels=[-1, 5, 6], ks=[1])
    assert plain["recall@1"] == 0  # −1 is junk only where there are cameras


@pytest.mark.parametrize("ties", ["pessimistic", "optimistic"])
@pytest.mark.parametrize("options", [{}, {"tile": 16}, {"tile": 20, "memory_budget": 0}])
def test_against_the_naive_way(ties: str, options: dict) -> None:
    g = np.random.default_rng(0)
    x, y = (g.integers(-2, 3, (rows, 3)).astype(np.float32) for rows in (50, 140))
    persons, others = g.integers(1, 12, size=50), g.integers(-1, 11, size=140)
    cameras, other_cameras = g.integers(1, 4, size=50), g.integers(1, 4, size=140)

    def ignored(q: int, o: int) -> bool:
        return others[o] == -1 or (persons[q] == others[o] and cameras[q] == other_cameras[o])

    scores = reference.similarities(x, y, "dot")
    expected = reference.retrieval(scores, persons.tolist(), others.tolist(), KS, ignored=ignored, ties=ties)
    assert expected["queries_without_match"] > 0  # person 11
    found = retrieval_metrics(
        x,
        persons,
        KS,
        gallery=y,
        gallery_labels=others,
        cameras=cameras,
        gallery_cameras=other_cameras,
        similarity="dot",
        ties=ties,
        **options,
    )
    assert found == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("how", ["mean", "max"])
def test_several_pictures_to_a_query(how: str) -> None:
    g = np.random.default_rng(1)
    x, y = g.normal(size=(40, 6)), g.normal(size=(90, 6))
    persons, cameras = g.integers(6, size=40), np.array(["left", "right"])[g.integers(2, size=40)]
    others, other_cameras = g.integers(6, size=90), np.array(["left", "right", "door"])[g.integers(3, size=90)]
    groups = list(dict.fromkeys(zip(persons.tolist(), cameras.tolist(), strict=True)))
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    pool = np.mean if how == "mean" else np.max
    pooled = np.stack([pool(unit[(persons == p) & (cameras == c)], axis=0) for p, c in groups])
    options = {"gallery": y, "gallery_labels": others, "gallery_cameras": other_cameras, "per_query": True}
    expected = retrieval_metrics(pooled, [p for p, _ in groups], cameras=[c for _, c in groups], **options)
    found = retrieval_metrics(x, persons, cameras=cameras, multi_query=how, **options)
    assert found["queries"] == len(groups) < 40
    for name, values in expected["per_query"].items():
        np.testing.assert_allclose(found["per_query"][name], values)


def test_pooling_leaves_lengths_alone_where_they_count() -> None:
    x, cameras = np.array([[3.0, 0.0], [0.0, 1.0]]), [1, 1]
    gallery = on_circle([45, 10])  # the mean of the two points at 18.4 degrees, that of unit vectors at 45
    options = {"gallery": gallery, "gallery_labels": ["b", "a"], "cameras": cameras, "gallery_cameras": [2, 2]}
    assert retrieval_metrics(x, ["a", "a"], [1], multi_query="mean", **options)["recall@1"] == 0
    assert retrieval_metrics(x, ["a", "a"], [1], multi_query="mean", similarity="dot", **options)["recall@1"] == 1


def test_what_multi_query_needs() -> None:
    x = on_circle([0, 1, 2])
    with pytest.raises(ValueError, match="needs a gallery and cameras"):
        retrieval_metrics(x, [0, 0, 1], cameras=[1, 2, 3], multi_query="mean")
    with pytest.raises(ValueError, match="multi_query must be one of"):
        retrieval_metrics(x, [0, 0, 1], multi_query="median")
