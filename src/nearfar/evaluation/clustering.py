"""NMI and AMI of the classes and a k-means clustering."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nearfar.errors import InputError, MissingPackageError
from nearfar.evaluation.inputs import Ints, Rows, encode
from nearfar.evaluation.inputs import labels as checked_labels
from nearfar.evaluation.metrics import CLUSTERING

ITERATIONS = 25


def clustering_metrics(
    embeddings: Any, labels: Any, *, normalize: bool = True, seed: int = 0, metrics: Sequence[str] = ("nmi", "ami")
) -> dict[str, float]:
    """NMI and AMI of the classes and a k-means clustering with as many clusters as there are classes.

        nmi = 2 I(classes; clusters) / (H(classes) + H(clusters))          (arithmetic mean, as in most papers)
        ami = (I − E[I]) / (mean of the entropies − E[I])                  (E: over clusterings of the same sizes)

    NMI grows with the number of clusters, even if they are random: compare it only on the same data. AMI does not, but
    its time grows with the square of the number of classes.

    Args:
        embeddings: (N, D); held in memory as float32.
        labels: (N,) integers, strings or other values, but not floats.
        normalize: cluster unit vectors.
        seed: the seed of k-means.
    """
    try:
        import faiss
        from sklearn.metrics import adjusted_mutual_info_score, normalized_mutual_info_score
    except ImportError as error:
        raise MissingPackageError(
            f"nmi and ami need faiss and scikit-learn ({error.name} is missing): pip install 'nearfar[evaluation]'"
        ) from None
    for name in metrics:
        if name not in CLUSTERING:
            raise InputError(f"there is no clustering metric {name!r}: the metrics are {' and '.join(CLUSTERING)}")
    rows = Rows(embeddings, "embeddings", "cpu")
    classes, _ = encode(checked_labels(labels, len(rows), "labels"), None, "labels")
    if len(rows) == 0:
        raise InputError("there are no embeddings to cluster")
    vectors = (rows.normalized if normalize else rows.float32)(slice(None)).contiguous().numpy()
    clusters = _k_means(faiss, vectors, int(classes.max()) + 1, seed)
    scores = {"nmi": normalized_mutual_info_score, "ami": adjusted_mutual_info_score}
    return {name: float(scores[name](classes, clusters)) for name in metrics}


def _k_means(faiss: Any, vectors: NDArray[np.float32], k: int, seed: int) -> Ints:
    if k == 1:
        return np.zeros(len(vectors), np.int64)
    means = faiss.Kmeans(
        vectors.shape[1],
        k,
        niter=ITERATIONS,
        seed=seed,
        min_points_per_centroid=1,
        max_points_per_centroid=len(vectors),
    )
    means.train(vectors)
    return np.asarray(means.index.search(vectors, 1)[1][:, 0], np.int64)
