"""Re-ranking against the paper's formulas written out with sets and whole matrices, in float64."""

from pathlib import Path

import numpy as np
import pytest
import torch
from benchmarks import reranking as benchmark

from nearfar.evaluation import KReciprocal, augment_database, expand_queries, rank_metrics, reranking
from nearfar.evaluation.neighbours import nearest

Array = np.ndarray


def naive_k_reciprocal(queries: Array, gallery: Array | None, k1: int, k2: int, lambda_: float) -> Array:
    """Final distances (Q, G), or of the queries with one another."""
    x = (queries if gallery is None else np.concatenate([queries, gallery])).astype(np.float64)
    x = x / np.linalg.norm(x, axis=1, keepdims=True)
    n = len(x)
    d = np.array([[np.sum((a - b) ** 2) for b in x] for a in x])
    d = d / np.where(d.max(1, keepdims=True) > 1e-9, d.max(1, keepdims=True), 1)
    order = [sorted(range(n), key=lambda j: (j != i, round(d[i, j], 9), j)) for i in range(n)]

    def reciprocal(p: int, k: int) -> set[int]:
        return {g for g in order[p][: k + 1] if p in order[g][: k + 1]}

    weights = np.zeros((n, n))
    for p in range(n):
        own = reciprocal(p, k1)
        members = set(own)
        for q in own:
            half = reciprocal(q, round(k1 / 2))
            if 3 * len(own & half) > 2 * len(half):
                members |= half
        for g in members:
            weights[p, g] = np.exp(-d[p, g])
        weights[p] /= weights[p].sum()
    expanded = np.array([np.mean([weights[g] for g in order[p][:k2]], axis=0) for p in range(n)])
    final = np.empty((len(queries), n))
    for p in range(len(queries)):
        for g in range(n):
            a, b = expanded[p], expanded[g]
            jaccard = 1 - np.minimum(a, b).sum() / np.maximum(a, b).sum()
            final[p, g] = (1 - lambda_) * jaccard + lambda_ * d[p, g]
    return final if gallery is None else final[:, len(queries) :]


def clustered(n: int, classes: int, seed: int) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, n)
    centres = np.random.default_rng(99).standard_normal((classes, 16))
    return (centres[labels] + 0.8 * rng.standard_normal((n, 16))).astype(np.float32), labels


@pytest.mark.parametrize(
    ("q", "g", "k1", "k2", "lambda_"),
    [(12, 60, 20, 6, 0.3), (12, 60, 7, 1, 0.0), (10, 40, 5, 3, 1.0), (5, 9, 100, 50, 0.3), (1, 1, 20, 6, 0.3)],
)
def test_k_reciprocal_against_sets(
    q: int, g: int, k1: int, k2: int, lambda_: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Blocks so small that every loop turns several times, rows that hold more than a block among them.
    monkeypatch.setattr(reranking, "ENTRIES_AT_A_TIME", 500)
    monkeypatch.setattr("nearfar.evaluation.neighbours.NUMBERS_AT_A_TIME", 16 * 37)
    monkeypatch.setattr("nearfar.evaluation.neighbours.SIMILARITIES_AT_A_TIME", 300)
    queries, gallery = clustered(q, 6, 1)[0], clustered(g, 6, 2)[0]
    rows = KReciprocal(queries, torch.from_numpy(gallery), k1=k1, k2=k2, lambda_=lambda_)
    found = torch.cat([rows(slice(start, min(q, start + 5))) for start in range(0, q, 5)])
    assert found.dtype == torch.float32
    np.testing.assert_allclose(-found, naive_k_reciprocal(queries, gallery, k1, k2, lambda_), atol=2e-6)


def test_k_reciprocal_among_themselves() -> None:
    x = clustered(50, 6, 7)[0]
    found = KReciprocal(x, k1=8, k2=3)
    np.testing.assert_allclose(-found(slice(10, 30)), naive_k_reciprocal(x, None, 8, 3, 0.3)[10:30], atol=2e-6)


@pytest.mark.parametrize("k1", [3, 4, 20])
def test_k_reciprocal_with_ties(k1: int) -> None:
    # Corners of a cube: unit vectors whose products are exact, with many equal ones and copies.
    corners = np.array([[a, b, c, d] for a in (-1, 1) for b in (-1, 1) for c in (-1, 1) for d in (-1, 1)]) / 2
    chosen = np.random.default_rng(0).integers(0, 16, 40)
    x = corners[chosen].astype(np.float32)
    found = KReciprocal(x[:8], x[8:], k1=k1, k2=3)(slice(None))
    np.testing.assert_allclose(-found, naive_k_reciprocal(x[:8], x[8:], k1, 3, 0.3), atol=2e-6)


def test_a_collapsed_set_is_defined() -> None:
    x = np.ones((12, 3), np.float32) * np.linspace(1, 2, 12, dtype=np.float32)[:, None]
    found = KReciprocal(x[:4], x[4:], k1=20)(slice(0, 4))
    np.testing.assert_allclose(found, np.zeros((4, 8)), atol=1e-6)
    metrics = rank_metrics(KReciprocal(x, k1=20), np.arange(12) // 2, ks=(1, 10, 11), tolerance=1e-6)
    assert [metrics[f"recall@{k}"] for k in (1, 10, 11)] == [0, 0, 1]  # all ten others are as near as the match


def test_re_ranked_metrics_are_those_of_the_final_distances() -> None:
    queries, labels = clustered(15, 6, 3)
    gallery, gallery_labels = clustered(70, 6, 4)
    cameras, gallery_cameras = np.arange(15) % 3, np.arange(70) % 3
    final = naive_k_reciprocal(queries, gallery, 20, 6, 0.3)
    hits, precisions = [], []
    for i in range(15):
        order = [j for j in np.argsort(final[i], kind="stable")
                 if not (gallery_labels[j] == labels[i] and gallery_cameras[j] == cameras[i])]  # fmt: skip
        right = np.array([gallery_labels[j] == labels[i] for j in order])
        hits.append(right[0])
        precisions.append(np.mean([right[: r + 1].mean() for r in np.flatnonzero(right)]))
    found = rank_metrics(
        KReciprocal(queries, gallery),
        labels,
        gallery_labels,
        ks=(1,),
        cameras=cameras,
        gallery_cameras=gallery_cameras,
        block=4,
    )
    assert 0 < found["recall@1"] == pytest.approx(np.mean(hits))
    assert found["map"] == pytest.approx(np.mean(precisions), abs=1e-9)


def naive_expansion(x: Array, gallery: Array, k: int, alpha: float, same: bool) -> Array:
    x, gallery = (v.astype(np.float64) / np.linalg.norm(v, axis=1, keepdims=True) for v in (x, gallery))
    result = []
    for i, row in enumerate(x):
        near = sorted((j for j in range(len(gallery)) if not (same and i == j)), key=lambda j: (-(row @ gallery[j]), j))
        total = row + sum(max(row @ gallery[j], 0) ** alpha * gallery[j] for j in near[:k])
        result.append(total / np.linalg.norm(total))
    return np.array(result)


@pytest.mark.parametrize(("k", "alpha"), [(3, 3.0), (5, 0.0), (10, 1.0), (100, 2.0)])
def test_query_expansion(k: int, alpha: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reranking, "SIMILARITIES_AT_A_TIME", 7 * 30)
    queries, gallery = clustered(20, 5, 5)[0], clustered(30, 5, 6)[0]
    expanded = expand_queries(torch.from_numpy(queries).double(), gallery, k=k, alpha=alpha)
    np.testing.assert_allclose(expanded, naive_expansion(queries, gallery, k, alpha, same=False), atol=1e-6)
    augmented = augment_database(gallery, k=k, alpha=alpha)
    np.testing.assert_allclose(augmented, naive_expansion(gallery, gallery, k, alpha, same=True), atol=1e-6)


def test_the_nearest_of_tied_ones_are_the_first() -> None:
    rows = torch.tensor([[1.0, 3, 2, 2, 2], [0, 0, 0, 0, 0], [5, 4, 3, 2, 1], [1, 2, 1, 2, 2]])
    assert nearest(rows, 3).tolist() == [[1, 2, 3], [0, 1, 2], [0, 1, 2], [1, 3, 4]]
    assert nearest(rows, 9).tolist()[0] == [1, 2, 3, 4, 0]


@pytest.mark.parametrize(
    "make", [lambda q, g, **o: KReciprocal(q, g, **o), lambda q, g, **o: expand_queries(q, g, **o)]
)
@pytest.mark.parametrize(
    ("q", "g", "message"),
    [
        (np.ones((2, 3)), np.ones((2, 4)), "queries have 3 dimensions, but the gallery has 4"),
        (np.ones((2, 3)), np.ones((0, 3)), "empty"),
        (np.ones((0, 3)), np.ones((2, 3)), "empty"),
        (np.array([[1, np.nan]]), np.ones((2, 2)), "1 of 1 queries hold NaN"),
    ],
)
def test_bad_embeddings(make, q: Array, g: Array, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(q, g)


def test_bad_options() -> None:
    x = np.ones((3, 2))
    with pytest.raises(ValueError, match="k1 and k2 must be at least 1, not 0 and 6"):
        KReciprocal(x, x, k1=0)
    with pytest.raises(ValueError, match="lambda_ must be between 0 and 1"):
        KReciprocal(x, x, lambda_=2)
    with pytest.raises(ValueError, match="alpha not negative"):
        expand_queries(x, x, alpha=-1)
    with pytest.raises(ValueError, match="k must be at least 1"):
        augment_database(x, k=0)


def test_the_benchmark_measures_what_it_says(tmp_path: Path) -> None:
    rows = benchmark.measure(dimension=32, scale=0.02, out=tmp_path / "rows.csv")
    assert [(row.queries, row.gallery, row.dimension) for row in rows] == [(67, 318, 32)] * 4
    assert rows[0].method == benchmark.LIMIT and rows[0].map is None
    assert all(0 < row.map < 1 and 0 < row.recall_at_1 <= 1 for row in rows[1:])
    assert len((tmp_path / "rows.csv").read_text().splitlines()) == 5
    people = benchmark.people(100, 20, 8, seed=3)
    assert (people.labels[:20] == 0).all() and (people.labels[20:] > 0).all()
    assert set(people.cameras.tolist()) == set(range(6))
