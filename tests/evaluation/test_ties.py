"""Ties go against the model, whatever the rounding errors of a matrix product."""

import numpy as np
import pytest
import torch

from nearfar.evaluation import retrieval_metrics
from nearfar.evaluation.counting import count_at_least, tally
from tests.evaluation import reference

KS = (1, 5)
TOLERANCE = 8 * 2.0**-23


def collapsed(rows: int, dimension: int, seed: int = 0) -> np.ndarray:
    return np.tile(np.random.default_rng(seed).normal(size=dimension).astype(np.float32), (rows, 1))


@pytest.mark.parametrize("similarity", ["cosine", "dot", "l2"])
@pytest.mark.parametrize("dimension", [3, 512])
@pytest.mark.parametrize("options", [{}, {"tile": 50}, {"tile": 33, "memory_budget": 0}])
def test_a_collapsed_embedding_scores_what_it_deserves(similarity: str, dimension: int, options: dict) -> None:
    """All 196 negatives stand before the three matches of each query."""
    x, labels = collapsed(200, dimension), np.arange(200) // 4
    found = retrieval_metrics(x, labels, KS, similarity=similarity, **options)
    assert found["recall@1"] == found["recall@5"] == found["map@r"] == found["r_precision"] == 0
    assert found["mrr"] == pytest.approx(1 / 197)
    assert found["map"] == pytest.approx((1 / 197 + 2 / 198 + 3 / 199) / 3)
    kind = retrieval_metrics(x, labels, KS, similarity=similarity, ties="optimistic", **options)
    assert kind["recall@1"] == kind["map"] == kind["minp"] == 1


@pytest.mark.parametrize("ties", ["pessimistic", "optimistic"])
def test_equal_vectors_are_tied_wherever_they_are(ties: str) -> None:
    """Matrix products of equal vectors differ with their place in a tile; their lengths do not matter either."""
    g = np.random.default_rng(1)
    centres = g.normal(size=(3, 300)).astype(np.float32)
    which, labels = g.integers(3, size=260), g.integers(4, size=260)
    x = centres[which] * g.uniform(0.5, 2, size=(260, 1)).astype(np.float32)
    exact = np.equal.outer(which, which).astype(np.float64)  # 1 for equals; the order of the rest:
    cosine = reference.similarities(centres, centres, "cosine")[which][:, which]
    scores = np.where(exact == 1, 1.0, cosine)
    expected = reference.retrieval(
        scores, labels.tolist(), labels.tolist(), KS, ignored=lambda q, o: q == o, ties=ties, tolerance=1e-6
    )
    for tile in (7, 64, 100, 1024):
        found = retrieval_metrics(x, labels, KS, ties=ties, tile=tile)
        assert found == pytest.approx(expected), tile


@pytest.mark.parametrize("spread", [1e-7, 3e-7, 1e-6, 1e-5, 1e-4, 1e-3])
@pytest.mark.parametrize("classes", [5, 60])
def test_nearly_equal_vectors(spread: float, classes: int) -> None:
    """Where a float32 product cannot tell, float64 decides: whole tiles of doubts, and few."""
    g = np.random.default_rng(2)
    angle = np.sort(g.normal(size=240)) * np.sqrt(spread)  # cosines differ by about the spread
    x = np.zeros((240, 64), np.float32)
    x[:, 0], x[:, 1] = np.cos(angle), np.sin(angle)
    x = (x @ np.linalg.qr(g.normal(size=(64, 64)))[0]).astype(np.float32)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    labels = g.integers(classes, size=240)
    unit = torch.from_numpy(x)  # rounded as retrieval_metrics rounds it: what counts is the product of these
    unit = (unit / torch.linalg.vector_norm(unit.double(), dim=1).float()[:, None]).double().numpy()
    expected = reference.retrieval(
        unit @ unit.T, labels.tolist(), labels.tolist(), KS, ignored=lambda q, o: q == o, tolerance=TOLERANCE
    )
    for options in ({}, {"tile": 32}, {"tile": 50, "memory_budget": 0}):
        assert retrieval_metrics(x, labels, KS, **options) == pytest.approx(expected, abs=1e-12), options


def test_what_is_tied_and_what_is_not() -> None:
    """A negative 7 ulps of 1 below the match is tied with it, one of 10 is not."""
    for below, recall in ((-1, 0), (0, 0), (7, 0), (10, 1)):
        gallery = np.array([[1.0, 0.0], [1 - below * 2.0**-23, 0.0]], np.float32)
        found = retrieval_metrics(
            np.array([[1.0, 0.0]]), ["a"], similarity="dot", gallery=gallery, gallery_labels=["a", "b"], ks=[1]
        )
        assert found["recall@1"] == recall, below


@pytest.mark.parametrize("offset", [0.0, 30.0, 3000.0])
def test_distances_are_tied_by_the_lengths_of_the_vectors(offset: float) -> None:
    """Far from the origin distances are told apart still, as far as float32 coordinates tell them."""
    gallery = np.array([[1.0, 0], [0, 1.001], [-1, 0]], np.float32) + np.float32(offset)
    query = np.full((1, 2), offset, np.float32)
    labels = {"gallery_labels": ["a", "b", "b"], "ks": [1], "similarity": "l2"}
    near = retrieval_metrics(query, ["a"], gallery=gallery[:2], **labels | {"gallery_labels": ["a", "b"]})
    assert near["recall@1"] == (offset < 3000)  # where 8 ulps are more than a thousandth
    assert retrieval_metrics(query, ["a"], gallery=gallery, **labels)["recall@1"] == 0  # one is as near


def test_equal_vectors_tie_in_distance_however_long() -> None:
    g = np.random.default_rng(5)
    x = np.repeat(g.normal(size=(5, 40)) * 10.0 ** np.arange(5)[:, None], 20, 0).astype(np.float32)
    found = retrieval_metrics(x, np.tile(np.arange(10) // 2, 10), [1, 15], similarity="l2", tile=7)
    # Each of the five vectors is there 20 times, four of each label: 16 negatives stand before the three matches.
    assert (found["recall@1"], found["recall@15"]) == (0, 0) and found["mrr"] == pytest.approx(1 / 17)


def test_a_bound_is_never_decided_by_float32() -> None:
    """tally counts what is sure and names what is not, by comparing and by sorting."""
    g = torch.Generator().manual_seed(3)
    for bounds in (1, 5, 32, 33, 70):
        scores = torch.randn(40, 1000, generator=g)
        exact = torch.randn(40, bounds, generator=g).sort(1).values
        exact[3:, -(-bounds // 2) :] = torch.inf
        low, high = exact - 4e-3 / bounds, exact + 4e-3 / bounds
        for tile in (scores, scores.t().contiguous().t()):
            counted = tally(tile, low, high, torch.empty(scores.numel()))
            assert counted is not None
            counts, doubts = counted
            assert torch.equal(counts, (scores[:, None] >= high[:, :, None]).sum(2))
            open_pairs = (scores[:, None] >= low[:, :, None]) & (scores[:, None] < high[:, :, None])
            row, bound, column = open_pairs.nonzero().unbind(1)
            assert len(row) > 0
            assert sorted(doubts.tolist()) == sorted(torch.stack([row, column, bound], 1).tolist())
        assert tally(scores, exact - 1, exact + 1, torch.empty(scores.numel())) is None


def test_counting() -> None:
    g = torch.Generator().manual_seed(4)
    for bounds in (0, 1, 2, 31, 32, 33, 64, 100):
        scores = torch.randint(-20, 20, (7, 90), generator=g).double()
        rising = torch.randint(-22, 22, (7, bounds), generator=g).double().sort(1).values
        assert torch.equal(count_at_least(scores, rising), (scores[:, None] >= rising[:, :, None]).sum(2))
