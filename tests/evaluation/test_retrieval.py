"""Every metric against the naive way, in every protocol, and cases worked by hand."""

import functools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nearfar.evaluation import rank_metrics, retrieval_metrics
from nearfar.evaluation.metrics import AT_K, WHOLE
from tests.evaluation import reference

KS = (1, 2, 3, 10, 1000)


def whole_numbers(seed: int, rows: int, dimension: int = 3) -> np.ndarray:
    """Small ones, so that similarities are exact and ties are everywhere."""
    return np.random.default_rng(seed).integers(-2, 3, (rows, dimension)).astype(np.float32)


def check(found: dict, expected: dict) -> None:
    assert set(expected) == set(found)
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, abs=1e-12), name


def without_self(q: int, g: int) -> bool:
    return q == g


@functools.cache
def leave_one_out(ties: str, similarity: str, classes: int) -> dict[str, float]:
    x, labels = whole_numbers(0, 71), np.random.default_rng(1).integers(classes, size=71).tolist()
    return reference.retrieval(
        reference.similarities(x, x, similarity), labels, labels, KS, ignored=without_self, ties=ties
    )


@pytest.mark.parametrize("ties", ["pessimistic", "optimistic"])
@pytest.mark.parametrize("similarity", ["dot", "l2"])
@pytest.mark.parametrize("classes", [30, 2])  # of about 2 and 35 items: compared with, and sorted
@pytest.mark.parametrize(
    "options", [{}, {"tile": 16}, {"tile": 13, "memory_budget": 0}, {"tile": 33, "memory_budget": 900}]
)
def test_leave_one_out(ties: str, similarity: str, classes: int, options: dict) -> None:
    x, labels = whole_numbers(0, 71), np.random.default_rng(1).integers(classes, size=71)
    expected = leave_one_out(ties, similarity, classes)
    check(retrieval_metrics(x, labels, KS, similarity=similarity, ties=ties, **options), expected)


@pytest.mark.parametrize("ties", ["pessimistic", "optimistic"])
@pytest.mark.parametrize("options", [{}, {"tile": 10}, {"tile": 13, "memory_budget": 0}])
def test_cosine(ties: str, options: dict) -> None:
    x, labels = np.random.default_rng(2).normal(size=(90, 5)), np.random.default_rng(3).integers(35, size=90)
    x[7] = 0  # similarity 0 with everything
    x[8] = 3 * x[9]  # one direction
    scores = reference.similarities(x, x, "cosine")
    expected = reference.retrieval(
        scores, labels.tolist(), labels.tolist(), KS, ignored=without_self, ties=ties, tolerance=8 * 2.0**-23
    )
    assert expected["queries_without_match"] > 0
    check(retrieval_metrics(x, labels, KS, ties=ties, **options), expected)


@pytest.mark.parametrize("ties", ["pessimistic", "optimistic"])
@pytest.mark.parametrize("similarity", ["dot", "l2"])
@pytest.mark.parametrize("options", [{}, {"tile": 16}, {"tile": 7, "memory_budget": 0}])
def test_query_against_gallery(ties: str, similarity: str, options: dict) -> None:
    g = np.random.default_rng(4)
    x, y = whole_numbers(5, 60), whole_numbers(6, 150)
    labels, others = g.integers(30, size=60), g.integers(25, size=150)
    ids, other_ids = g.integers(40, size=60), g.integers(40, size=150)
    scores = reference.similarities(x, y, similarity)
    expected = reference.retrieval(
        scores, labels.tolist(), others.tolist(), KS, ignored=lambda q, g: ids[q] == other_ids[g], ties=ties
    )
    options |= {"gallery": y, "gallery_labels": others, "ids": ids, "gallery_ids": other_ids, "ties": ties}
    check(retrieval_metrics(x, labels, KS, similarity=similarity, **options), expected)


@pytest.mark.parametrize("options", [{}, {"tile": 16}, {"tile": 7, "memory_budget": 0}])
def test_leave_one_out_with_everything_to_ignore(options: dict) -> None:
    g = np.random.default_rng(7)
    x, labels = whole_numbers(8, 120), g.integers(-1, 12, size=120)
    cameras, ids = g.integers(3, size=120), g.integers(100, size=120)

    def ignored(q: int, o: int) -> bool:
        same_camera = labels[q] == labels[o] and cameras[q] == cameras[o]
        return q == o or labels[o] == -1 or same_camera or ids[q] == ids[o]

    scores = reference.similarities(x, x, "dot")
    expected = reference.retrieval(scores, labels.tolist(), labels.tolist(), KS, ignored=ignored)
    found = retrieval_metrics(x, labels, KS, similarity="dot", cameras=cameras, ids=ids, **options)
    check(found, expected)
    check(
        rank_metrics(lambda rows: torch.from_numpy(scores)[rows], labels, ks=KS, cameras=cameras, ids=ids, block=11),
        expected,
    )


@pytest.mark.parametrize("ties", ["pessimistic", "optimistic"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.int64, torch.int16])
@pytest.mark.parametrize("classes", [20, 2])
def test_scores_by_blocks(ties: str, dtype: torch.dtype, classes: int) -> None:
    g = np.random.default_rng(9)
    scores = g.integers(-9, 10, (50, 130))
    labels, others = g.integers(classes, size=50), g.integers(classes, size=130)
    expected = reference.retrieval(scores, labels.tolist(), others.tolist(), KS, ignored=lambda q, o: False, ties=ties)
    given_scores = torch.from_numpy(scores).to(dtype)
    before = given_scores.clone()
    asked = []

    def rows(part: slice) -> torch.Tensor:
        asked.append((part.start, part.stop))
        return given_scores[part]

    check(rank_metrics(rows, labels, others, KS, ties=ties, block=20), expected)
    assert asked == [(0, 20), (20, 40), (40, 50)]
    assert torch.equal(given_scores, before)  # not overwritten


def test_tolerance_of_scores() -> None:
    scores = torch.tensor([[0.5, 0.4, 0.3]])
    for tolerance, rank in ((0.0, 2), (0.05, 2), (0.15, 3)):
        found = rank_metrics(lambda rows: scores[rows], ["a"], ["b", "a", "b"], tolerance=tolerance)
        assert found["mrr"] == pytest.approx(1 / rank)
    assert (
        rank_metrics(lambda rows: scores[rows], ["a"], ["b", "a", "b"], tolerance=0.15, ties="optimistic")["mrr"] == 1
    )


# Worked by hand. The query's gallery, nearest first: negative, match, match, negative, match.
BY_HAND = {
    "recall@1": 0,
    "recall@2": 1,
    "precision@1": 0,
    "precision@2": 1 / 2,
    "precision@4": 2 / 4,
    "ndcg@2": (1 / np.log2(3)) / (1 + 1 / np.log2(3)),
    "ndcg@4": (1 / np.log2(3) + 1 / 2) / (1 + 1 / np.log2(3) + 1 / 2),
    "map@r": (1 / 2 + 2 / 3) / 3,
    "r_precision": 2 / 3,
    "map": (1 / 2 + 2 / 3 + 3 / 5) / 3,
    "map_trapezoid": ((0 / 1 + 1 / 2) / 2 + (1 / 2 + 2 / 3) / 2 + (2 / 4 + 3 / 5) / 2) / 3,
    "mrr": 1 / 2,
    "minp": 3 / 5,
}


def test_by_hand() -> None:
    angles = np.radians([10, 20, 30, 40, 50])
    gallery = np.stack([np.cos(angles), np.sin(angles)], 1)
    found = retrieval_metrics(
        np.array([[2.0, 0.0]]), ["a"], gallery=gallery, gallery_labels=["b", "a", "a", "c", "a"], metrics=list(BY_HAND)
    )
    assert found == pytest.approx(BY_HAND | {"queries": 1, "queries_without_match": 0})


def test_the_last_is_found_at_once() -> None:
    """All matches before all negatives: everything is 1, precision@k apart."""
    x = np.repeat(np.eye(5, dtype=np.float32), 4, 0)
    found = retrieval_metrics(x, np.repeat(np.arange(5), 4), (1, 3, 6))
    for name in [*WHOLE, *(f"{name}@{k}" for name in AT_K for k in (1, 3, 6))]:
        assert found[name] == (3 / 6 if name == "precision@6" else 1.0), name


def test_default_metrics_are_all_but_clustering() -> None:
    x, labels = whole_numbers(10, 20), np.arange(20) % 5
    found = retrieval_metrics(x, labels)
    assert set(found) == {*(f"{n}@{k}" for n in AT_K for k in (1, 2, 4, 8)), *WHOLE, "queries", "queries_without_match"}
    chosen = retrieval_metrics(x, labels, ks=(5,), metrics=("recall", "precision@3", "map"))
    assert set(chosen) == {"recall@5", "precision@3", "map", "queries", "queries_without_match"}
    assert chosen["map"] == found["map"]
    assert set(retrieval_metrics(x, labels, metrics="mrr")) == {"mrr", "queries", "queries_without_match"}


def test_per_query_values() -> None:
    x, labels = whole_numbers(11, 30), np.array([*np.arange(28) % 7, 98, 99])
    found = retrieval_metrics(x, labels, per_query=True)
    assert (found["queries"], found["queries_without_match"]) == (28, 2)
    for name, values in found["per_query"].items():
        assert values.shape == (30,)
        assert np.isnan(values[28:]).all() and not np.isnan(values[:28]).any()
        assert values[:28].mean() == pytest.approx(found[name], abs=1e-12)
    alone = retrieval_metrics(x[3:4], labels[3:4], gallery=np.delete(x, 3, 0), gallery_labels=np.delete(labels, 3))
    assert found["per_query"]["map"][3] == alone["map"]


@settings(max_examples=20)
@given(st.integers(0, 2**32 - 1), st.integers(5, 40), st.sampled_from([0, 300, 2**28]), st.booleans())
def test_neither_order_nor_tiles_matter(seed: int, tile: int, memory_budget: int, gallery: bool) -> None:
    g = np.random.default_rng(seed)
    n = int(g.integers(8, 60))
    # Some vectors are equal, some differ by a few units in the last place, some are apart.
    x = g.normal(size=(6, 4)).astype(np.float32)[g.integers(6, size=n)]
    x *= 1 + g.integers(-2, 3, size=(n, 1)).astype(np.float32) * np.float32(1e-7)
    labels = g.integers(3, size=n)
    labels[:4] = [0, 0, 1, 1]
    order = g.permutation(n)
    options = {"tile": tile, "memory_budget": memory_budget}
    if gallery:
        half = n // 2
        base = retrieval_metrics(x, labels, gallery=x[:half], gallery_labels=labels[:half])
        inner = g.permutation(half)
        moved = retrieval_metrics(
            x[order], labels[order], gallery=x[:half][inner], gallery_labels=labels[:half][inner], **options
        )
    else:
        base, moved = retrieval_metrics(x, labels), retrieval_metrics(x[order], labels[order], **options)
    assert base == pytest.approx(moved, abs=1e-12)


def test_agrees_with_pytorch_metric_learning() -> None:
    """Where both are right: without ties, with small class ids, k the largest class."""
    from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator

    g = torch.Generator().manual_seed(0)
    labels = torch.randint(30, (300,), generator=g)
    x = torch.nn.functional.normalize(torch.randn(30, 16, generator=g)[labels] + torch.randn(300, 16, generator=g))
    names = (
        "precision_at_1",
        "r_precision",
        "mean_average_precision_at_r",
        "mean_average_precision",
        "mean_reciprocal_rank",
    )
    theirs = AccuracyCalculator(include=names, k=None, device=torch.device("cpu")).get_accuracy(x, labels)
    ours = retrieval_metrics(x, labels)
    assert 0.1 < ours["recall@1"] < 0.9
    for name, own in zip(names, ("recall@1", "r_precision", "map@r", "map", "mrr"), strict=True):
        assert ours[own] == pytest.approx(theirs[name], abs=1e-6), name


def test_ndcg_and_average_precision_agree_with_scikit_learn() -> None:
    from sklearn.metrics import average_precision_score, ndcg_score

    g = np.random.default_rng(12)
    x, labels = g.normal(size=(60, 8)), g.integers(6, size=60)
    scores = reference.similarities(x, x, "cosine")
    found = retrieval_metrics(x, labels, ks=(3, 7), per_query=True)["per_query"]
    for q in range(60):
        others = np.arange(60) != q
        relevant, own = (labels == labels[q])[others], scores[q, others]
        assert found["map"][q] == pytest.approx(average_precision_score(relevant, own))
        for k in (3, 7):
            assert found[f"ndcg@{k}"][q] == pytest.approx(ndcg_score(relevant[None], own[None], k=k))
