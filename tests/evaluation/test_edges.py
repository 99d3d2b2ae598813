"""Queries without a match in every place they can stand, vectors of nothing, and packages that are not there."""

import math
import sys

import numpy as np
import pytest
import torch

from nearfar.evaluation import (
    KReciprocal,
    clustering_metrics,
    diagnose,
    pack_bits,
    pair_scores,
    pool_templates,
    rank_metrics,
    retrieval_metrics,
)
from nearfar.evaluation.spectrum import spectrum
from nearfar.evaluation.vectors import Vectors

G = np.random.default_rng(3)
X = G.normal(size=(8, 5)).astype(np.float32)


def naive_ranks(s: np.ndarray, matches: np.ndarray, ignored: np.ndarray) -> list[list[int]]:
    """The ranks of every query's matches, by sorting its row."""
    found = []
    for row, match, left_out in zip(s, matches, ignored, strict=True):
        order = [int(j) for j in np.argsort(-row) if not left_out[j]]
        found.append([place for place, j in enumerate(order, 1) if match[j]])
    return found


def naive_metrics(ranks: list[list[int]]) -> tuple[float, float]:
    """recall@1 and mean average precision of the queries that have a match."""
    some = [own for own in ranks if own]
    first = sum(own[0] == 1 for own in some) / len(some)
    precisions = [sum(i / r for i, r in enumerate(own, 1)) / len(own) for own in some]
    return first, sum(precisions) / len(some)


def cosines(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    a, b = a.astype(np.float64), b.astype(np.float64)
    return a @ b.T / np.linalg.norm(a, axis=1)[:, None] / np.linalg.norm(b, axis=1)


def test_a_whole_part_of_the_queries_has_no_match() -> None:
    """The first four queries are looked up together, and none of them has anything to find."""
    labels, gallery, gallery_labels = np.array([7, 7, 8, 9, 0, 1, 0, 1]), G.normal(size=(6, 5)), np.arange(6) % 2
    found = retrieval_metrics(
        X, labels, (1,), gallery=gallery.astype(np.float32), gallery_labels=gallery_labels, memory_budget=0, tile=4
    )
    ranks = naive_ranks(
        cosines(X, gallery.astype(np.float32)), labels[:, None] == gallery_labels, np.zeros((8, 6), bool)
    )
    assert (found["recall@1"], found["map"]) == pytest.approx(naive_metrics(ranks))
    assert (found["queries"], found["queries_without_match"]) == (4, 4)


def test_a_whole_tile_of_single_items() -> None:
    """Leave-one-out, in tiles of four: those that are alone in their class fill one."""
    labels = np.array([0, 1, 2, 3, 4, 4, 5, 5])
    found = retrieval_metrics(X, labels, (1,), tile=4)
    own = np.eye(8, dtype=bool)
    ranks = naive_ranks(cosines(X, X), (labels[:, None] == labels) & ~own, own)
    assert (found["recall@1"], found["map"]) == pytest.approx(naive_metrics(ranks))
    assert (found["queries"], found["queries_without_match"]) == (4, 4)


@pytest.mark.parametrize(("budget", "held"), [(2 * 6 * 5 * 4, True), (2 * 6 * 5 * 4 - 1, False)])
def test_a_gallery_is_held_if_it_takes_half_the_budget_at_most(
    budget: int, held: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[int] = []
    hold = Vectors.hold
    monkeypatch.setattr(Vectors, "hold", lambda self: (kept.append(len(self)), hold(self))[1])
    gallery = G.normal(size=(6, 5)).astype(np.float32)
    options = {"gallery": gallery, "gallery_labels": np.arange(6) % 2}
    found = retrieval_metrics(X, np.arange(8) % 2, (1,), memory_budget=budget, **options)
    assert kept == [6] * held
    assert found == retrieval_metrics(X, np.arange(8) % 2, (1,), memory_budget=2**20, **options)


def test_rounding_grows_with_the_lengths_of_vectors() -> None:
    """Negatives that crowd around where a tie ends, nearer than float32 products can tell, are judged alike whether the
    gallery is held or read again, and where all vectors are 1024 times as long (float32 but for the exponent the same).
    """
    half, other = np.abs(G.normal(size=(2, 30, 128)))  # the second half of a product takes back the first
    queries, near = np.hstack([half, half]), np.hstack([other, -other - 0.02 * G.normal(size=(30, 128))])
    tie = 8 * 2.0**-23 * np.linalg.norm(near, axis=1) / np.linalg.norm(queries, axis=1)
    crowd = (near - tie[:, None] * queries)[:, None] + G.normal(size=(30, 40, 256)) * 2e-7
    gallery = np.concatenate([near, crowd.reshape(-1, 256)]).astype(np.float32)
    labels = np.concatenate([np.arange(30), np.full(1200, 99)])
    found = [
        retrieval_metrics(
            queries.astype(np.float32) * scale,
            np.arange(30),
            (1,),
            gallery=gallery * scale,
            gallery_labels=labels,
            similarity="dot",
            memory_budget=memory_budget,
            per_query=True,
        )["per_query"]["mrr"].tolist()
        for scale in (np.float32(1), np.float32(1024))
        for memory_budget in (0, 2**28)
    ]
    assert len(set(found[0])) > 5  # how many of the crowd come first is different from query to query
    assert found[1:] == found[:1] * 3


def test_what_an_index_does_not_list_is_not_found() -> None:
    """Two far groups, of which the index looks through one: its list ends early, and the match is in the other."""
    gallery = G.normal(size=(200, 4)) * 0.01 + np.where(np.arange(200) % 2, -1, 1)[:, None] * np.eye(4)[0]
    labels = np.zeros(200, int)
    labels[1] = 1
    queries, wanted = gallery[[0, 2]] + 0.01, [1, 1]
    options = {"gallery": gallery.astype(np.float32), "gallery_labels": labels, "metrics": ["recall@200", "map"]}
    exact = retrieval_metrics(queries.astype(np.float32), wanted, **options)
    assert exact["recall@200"] == 1
    found = retrieval_metrics(queries.astype(np.float32), wanted, index="IVF2,Flat;nprobe=1", **options)
    assert found["recall@200"] == found["map"] == 0


def test_the_spectrum_of_nothing() -> None:
    nothing = spectrum(torch.zeros(6, 3))
    assert math.isnan(nothing.decay)
    assert nothing.effective_rank == 0
    assert nothing.singular_values.tolist() == [0, 0, 0]
    assert nothing.collapsed_dimensions == 3


def test_a_zero_vector_is_zero_in_every_coordinate() -> None:
    x = np.concatenate([np.eye(5), np.ones((2, 5)), np.zeros((2, 5))]).astype(np.float32)
    assert diagnose(x, np.arange(9) % 3).zero_vectors == 2


def test_directions_are_clustered_unless_told_otherwise() -> None:
    """Long and short vectors of two directions: lengths are forgotten."""
    x = np.array([[1, 0], [20, 0.1], [0, 1], [0.1, 1.1]])
    assert clustering_metrics(x, [0, 0, 1, 1])["nmi"] == pytest.approx(1)
    assert clustering_metrics(x, [0, 0, 1, 1], normalize=False)["nmi"] < 0.9


def test_lengths_weigh_in_templates_unless_told_otherwise() -> None:
    """Pictures (3, 0) and (0, 1) of two media: their sum, or that of their directions."""
    x = np.array([[3.0, 0], [0, 1]], np.float32)
    by_length = pool_templates(x, ["a", "a"], [1, 2]).embeddings
    by_direction = pool_templates(x, ["a", "a"], [1, 2], keep_norms=False).embeddings
    assert np.asarray(by_length)[0] == pytest.approx(np.array([3, 1]) / math.sqrt(10))
    assert np.asarray(by_direction)[0] == pytest.approx(np.array([1, 1]) / math.sqrt(2))


def test_what_cannot_be_clustered() -> None:
    labels = np.arange(8) // 2
    with pytest.raises(ValueError, match="nmi need real vectors, not binary codes"):
        retrieval_metrics(pack_bits(X), labels, similarity="hamming", metrics=["nmi", "map"])
    with pytest.raises(ValueError, match="nmi and ami need embeddings, not similarities: use clustering_metrics"):
        rank_metrics(lambda part: torch.zeros(8, 8)[part], labels, metrics=["nmi", "ami"])


@pytest.mark.parametrize(
    ("pairs", "error", "message"),
    [
        (np.zeros((3, 3), int), ValueError, r"pairs must be \(n, 2\) row numbers, not \(3, 3\)"),
        (np.zeros(4, int), ValueError, r"pairs must be \(n, 2\) row numbers, not \(4,\)"),
        (np.zeros((3, 2)), TypeError, "pairs must be integers, not float64"),
        ([[0, 8]], ValueError, "pairs run from 8 to 8, but there are 8 rows"),
        ([[-1, 0]], ValueError, "pairs run from -1 to -1, but there are 8 rows"),
    ],
)
def test_row_numbers_of_pairs(pairs: object, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        pair_scores(X, pairs)


def test_packages_that_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    labels = np.arange(8) // 2
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(ImportError, match=r"nmi and ami need faiss and scikit-learn \(faiss is missing\): pip install"):
        clustering_metrics(X, labels)
    with pytest.raises(ImportError, match=r"index= needs faiss: pip install 'nearfar\[evaluation\]'"):
        retrieval_metrics(X, labels, index="Flat")
    monkeypatch.setitem(sys.modules, "scipy", None)
    with pytest.raises(ImportError, match="k-reciprocal re-ranking needs scipy: pip install"):
        KReciprocal(X, X, k1=3, k2=2)
