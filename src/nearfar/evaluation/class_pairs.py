"""The cosines of all pairs of images, with their classes.

Rows of different folds are never compared, because different models embedded them into unrelated spaces.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from nearfar.evaluation import inputs

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
PAIRS = 2_000_000  # more pairs are sampled: the accuracy depends on the number of classes, not of pairs


@dataclass(frozen=True)
class ClassPairs:
    """n pairs of images: their scores (n,) and the classes 0..C-1 of both images, first (n,) and second (n,)."""

    scores: npt.NDArray[np.float32]
    first: Ints
    second: Ints
    classes: int
    images: int

    @property
    def same(self) -> npt.NDArray[np.bool_]:
        """(n,) whether each pair is of one class."""
        same: npt.NDArray[np.bool_] = self.first == self.second
        return same

    def counts(self, threshold: float) -> tuple[Floats, Floats]:
        """The numbers of pairs with a score of at least `threshold`, and of all pairs, by class. Both are (C, C) and
        symmetric, with the pairs within a class on the diagonal.
        """
        return self._count(self.scores >= threshold), self._count(np.ones(len(self.scores), np.bool_))

    def _count(self, which: npt.NDArray[np.bool_]) -> Floats:
        code = self.first[which] * self.classes + self.second[which]
        upper = np.bincount(code, minlength=self.classes**2).reshape(self.classes, self.classes).astype(np.float64)
        return upper + upper.T - np.diag(np.diag(upper))


def class_pairs(embeddings: Any, labels: Any, fold: Any = None, *, seed: int = 0) -> ClassPairs:
    """All pairs of rows within each fold. Rows with NaN or infinity are left out.

    If there are more than two million pairs, the images of each class are sampled down to about that number; with more
    than a thousand classes of two images, classes are sampled too.

    Args:
        embeddings: (N, D) of any norm; or binary codes, one bit per dimension, as booleans or integers 0 and 1, which
            are taken as -1 and 1, so that the cosine is 1 - 2·(differing bits)/D.
        labels: (N,) class of each row.
        fold: (N,) the model that embedded each row; by default the same model embedded all rows.
        seed: the seed of the sample.
    """
    source, finite = _vectors(embeddings)
    names = inputs.labels(labels, len(finite), "labels")
    folds = np.zeros(len(finite), np.int64) if fold is None else inputs.labels(fold, len(finite), "fold")
    rows = np.flatnonzero(finite)
    code = inputs.encode(names[rows], None, "labels")[0]
    part = inputs.encode(folds[rows], None, "fold")[0]
    rows, code, part = _sample(rows, code, part, np.random.default_rng(seed))
    code = np.unique(code, return_inverse=True)[1].astype(np.int64)
    scores, first, second = [], [], []
    for number in range(int(part.max(initial=-1)) + 1):
        chosen = np.flatnonzero(part == number)
        x = source.normalized(rows[chosen]).cpu()
        left, right = np.triu_indices(len(chosen), 1)
        scores.append((x @ x.T).numpy()[left, right])
        a, b = code[chosen[left]], code[chosen[right]]
        first.append(np.minimum(a, b))
        second.append(np.maximum(a, b))
    return ClassPairs(
        np.concatenate(scores) if scores else np.zeros(0, np.float32),
        np.concatenate(first) if first else np.zeros(0, np.int64),
        np.concatenate(second) if second else np.zeros(0, np.int64),
        classes=int(code.max(initial=-1)) + 1,
        images=len(rows),
    )


def _vectors(embeddings: Any) -> tuple[inputs.Rows, npt.NDArray[np.bool_]]:
    if isinstance(embeddings, torch.Tensor | np.ndarray) and str(embeddings.dtype).removeprefix("torch.") in _WHOLE:
        bits = inputs.to_numpy(embeddings)
        embeddings = np.where(bits, 1.0, -1.0) if not ((bits != 0) & (bits != 1)).any() else bits.astype(np.float64)
    source = inputs.Rows(embeddings, "embeddings")
    return source, torch.isfinite(source.read(slice(None), torch.float32)).all(1).cpu().numpy()


_WHOLE = ("bool", "uint8", "int8", "int16", "int32", "int64")


def _sample(rows: Ints, code: Ints, part: Ints, rng: np.random.Generator) -> tuple[Ints, Ints, Ints]:
    """Sample rows with about PAIRS pairs at most: first fewer images of each class, then fewer classes."""
    if _pairs(part) <= PAIRS:
        return rows, code, part
    order = rng.permutation(len(rows))
    order = order[np.argsort(code[order], kind="stable")]  # class by class, each in random order
    starts = np.searchsorted(code[order], np.arange(code.max() + 1))
    position = np.empty(len(rows), np.int64)  # of a row in its class
    position[order] = np.arange(len(rows)) - starts[code[order]]
    few, many = 2, int(position.max()) + 1
    while few < many:
        images = (few + many + 1) // 2
        few, many = (images, many) if _pairs(part[position < images]) <= PAIRS else (few, images - 1)
    kept = position < few
    share = math.sqrt(PAIRS / max(1, _pairs(part[kept])))
    if share < 1:
        names = np.unique(code)
        kept &= np.isin(code, rng.permutation(names)[: max(2, int(share * len(names)))])
    return rows[kept], code[kept], part[kept]


def _pairs(part: Ints) -> int:
    sizes = np.bincount(part) if len(part) else np.zeros(1, np.int64)
    return int((sizes * (sizes - 1) // 2).sum())
