"""NMI and AMI of k-means."""

import numpy as np
import pytest
from sklearn.metrics import adjusted_mutual_info_score, normalized_mutual_info_score

from nearfar.evaluation import clustering_metrics, retrieval_metrics


def test_clear_clusters_agree_wholly() -> None:
    labels = np.repeat(["a", "b", "c", "d"], 25)
    centres = np.repeat(np.eye(4) * 10, 25, 0)
    x = centres + np.random.default_rng(0).normal(size=(100, 4)) * 0.1
    assert clustering_metrics(x, labels) == pytest.approx({"nmi": 1, "ami": 1})
    found = retrieval_metrics(x, labels, metrics=("nmi", "recall@1", "ami"))
    assert found == pytest.approx({"nmi": 1, "ami": 1, "recall@1": 1, "queries": 100, "queries_without_match": 0})
    assert set(clustering_metrics(x, labels, metrics=["nmi"])) == {"nmi"}
    assert set(retrieval_metrics(x, labels, metrics="nmi")) == {"nmi", "queries", "queries_without_match"}


def test_chance() -> None:
    """Random clusters: NMI is well above 0, AMI is not."""
    g = np.random.default_rng(1)
    found = clustering_metrics(g.normal(size=(300, 8)), g.integers(40, size=300))
    assert found["nmi"] > 0.3 and abs(found["ami"]) < 0.1


def test_two_clusters_by_hand() -> None:
    """Four points in two clear pairs, one of each label in a pair: nothing in common; then three to one."""
    x = np.array([[1, 0], [1, 0.01], [0, 1], [0.01, 1]])
    assert clustering_metrics(x, [0, 1, 0, 1])["nmi"] == pytest.approx(0, abs=1e-12)
    found = clustering_metrics(x, [0, 0, 0, 1])
    clusters = [0, 0, 1, 1]
    assert found["nmi"] == pytest.approx(normalized_mutual_info_score([0, 0, 0, 1], clusters))
    assert found["ami"] == pytest.approx(adjusted_mutual_info_score([0, 0, 0, 1], clusters))
    information = sum(
        p * np.log(p / (a * b)) for p, a, b in ((1 / 2, 3 / 4, 1 / 2), (1 / 4, 3 / 4, 1 / 2), (1 / 4, 1 / 4, 1 / 2))
    )
    entropies = [-sum(p * np.log(p) for p in ps) for ps in ((3 / 4, 1 / 4), (1 / 2, 1 / 2))]
    assert found["nmi"] == pytest.approx(2 * information / sum(entropies))


def test_lengths_count_only_if_asked() -> None:
    x = np.array([[1, 0], [1.1, 0], [10, 0], [10.1, 0]]) + np.arange(4)[:, None] * [0, 1e-3]
    assert clustering_metrics(x, [0, 0, 1, 1], normalize=False)["nmi"] == pytest.approx(1)


def test_seeds_and_errors() -> None:
    g = np.random.default_rng(2)
    x, labels = g.normal(size=(200, 8)), g.integers(30, size=200)
    assert clustering_metrics(x, labels, seed=1) == clustering_metrics(x, labels, seed=1)
    assert clustering_metrics(x, labels, seed=1) != clustering_metrics(x, labels, seed=2)
    assert clustering_metrics(x, np.zeros(200, int)) == {"nmi": 1, "ami": 1}  # one cluster, one class
    with pytest.raises(ValueError, match="199 labels for 200"):
        clustering_metrics(x, labels[:199])
    with pytest.raises(ValueError, match="no embeddings"):
        clustering_metrics(x[:0], labels[:0])
    with pytest.raises(ValueError, match="there is no clustering metric 'v'"):
        clustering_metrics(x, labels, metrics=["v"])
