"""Two-dimensional maps of embeddings, and the sample of rows that they show."""

import importlib
import importlib.util
import warnings

import numpy as np
import numpy.typing as npt

from nearfar.errors import InputError, MissingPackageError

Floats = npt.NDArray[np.floating]
Rows = npt.NDArray[np.int64]
MOST_POINTS = 1_000
EACH = 20  # points of a class if there are many classes
FEWEST_POINTS = 8  # of a map
ITERATIONS = 500  # of t-SNE


def sample(labels: Rows, seed: int, most: int = MOST_POINTS) -> Rows:
    """Sample at most `most` rows for a map: up to 20 rows of each class (more if there are few classes), with the
    classes in random order.
    """
    rng = np.random.default_rng(seed)
    classes = rng.permutation(np.unique(labels))
    each = max(EACH, -(-most // max(len(classes), 1)))
    chosen: list[Rows] = []
    left = most
    for label in classes:
        rows = rng.permutation(np.flatnonzero(labels == label))[: min(each, left)]
        chosen.append(rows)
        left -= len(rows)
        if not left:
            break
    return np.sort(np.concatenate(chosen)) if chosen else np.zeros(0, np.int64)


def flat(embeddings: Floats, seed: int) -> tuple[Floats, str]:
    """Reduce embeddings (N, D) to positions (N, 2) in [0, 1]. Returns them with the name of the method: UMAP if
    umap-learn is installed, else t-SNE. The result is deterministic.
    """
    if len(embeddings) < FEWEST_POINTS:
        raise InputError(f"{len(embeddings)} embeddings are too few for a map: give at least {FEWEST_POINTS}")
    unit = embeddings / np.maximum(np.linalg.norm(embeddings, axis=1, keepdims=True), 1e-12)
    if importlib.util.find_spec("umap") is not None:
        name, places = "UMAP", _umap(unit, seed)
    else:
        name, places = "t-SNE", _tsne(unit, seed)
    low, high = places.min(0), places.max(0)
    return (places - low) / np.maximum(high - low, 1e-12), name


def _tsne(unit: Floats, seed: int) -> Floats:
    try:
        from sklearn.manifold import TSNE
        from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]
    except ImportError as missing:
        raise MissingPackageError("the map is drawn by scikit-learn: pip install 'nearfar[training]'") from missing
    if np.ptp(unit, axis=0).max() < 1e-7:  # equal embeddings have no principal components
        return np.zeros((len(unit), 2))
    perplexity = min(30.0, (len(unit) - 1) / 3)
    start = "pca" if unit.shape[1] > 1 else "random"
    method = TSNE(perplexity=perplexity, init=start, max_iter=ITERATIONS, random_state=seed)
    with threadpool_limits(1):  # one order of summation, so that the map is reproducible
        places: Floats = method.fit_transform(unit.astype(np.float32))
    return places


def _umap(unit: Floats, seed: int) -> Floats:
    umap = importlib.import_module("umap")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # UMAP warns that it uses one thread because of the seed
        method = umap.UMAP(n_neighbors=min(15, len(unit) - 1), metric="cosine", random_state=seed)
        places: Floats = np.asarray(method.fit_transform(unit), float)
    return places
