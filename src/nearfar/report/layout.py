"""A flat map of an embedding, of a sample that leaves classes whole enough to be seen."""

import importlib
import importlib.util
import warnings

import numpy as np
import numpy.typing as npt

from nearfar.errors import InputError, MissingPackageError

Floats = npt.NDArray[np.floating]
Rows = npt.NDArray[np.int64]
MOST_POINTS = 1_000
EACH = 20  # points of a class, where there are many classes
FEWEST_POINTS = 8  # of which a map says anything
ITERATIONS = 500  # of t-SNE


def sample(labels: Rows, seed: int, most: int = MOST_POINTS) -> Rows:
    """Rows for a map: classes in random order, up to 20 rows of each (more where there are few classes), until there
    are `most`.
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
    """Places (N, 2) from 0 to 1 for embeddings (N, D), and the method's name: UMAP where umap-learn is installed, else
    t-SNE. The same embeddings give the same places.
    """
    if len(embeddings) < FEWEST_POINTS:
        raise InputError(f"{len(embeddings)} embeddings make no map: give at least {FEWEST_POINTS}")
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
    if np.ptp(unit, axis=0).max() < 1e-7:  # all in one place: principal components of nothing are no numbers
        return np.zeros((len(unit), 2))
    perplexity = min(30.0, (len(unit) - 1) / 3)
    start = "pca" if unit.shape[1] > 1 else "random"
    method = TSNE(perplexity=perplexity, init=start, max_iter=ITERATIONS, random_state=seed)
    with threadpool_limits(1):  # sums in one order, so that the map is the same on every machine with this software
        places: Floats = method.fit_transform(unit.astype(np.float32))
    return places


def _umap(unit: Floats, seed: int) -> Floats:
    umap = importlib.import_module("umap")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns that a seed means one thread, which is what is wanted
        method = umap.UMAP(n_neighbors=min(15, len(unit) - 1), metric="cosine", random_state=seed)
        places: Floats = np.asarray(method.fit_transform(unit), float)
    return places
