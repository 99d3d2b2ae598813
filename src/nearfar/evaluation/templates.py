"""Template pooling, as in the IJB benchmarks: one vector for the images and video frames of a person."""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from nearfar.errors import InputError
from nearfar.evaluation import inputs

ROWS_AT_A_TIME = 2**14


class Templates(NamedTuple):
    """Pooled embeddings (T, D) of unit length, and the sorted ids of the templates (T,)."""

    embeddings: Tensor
    ids: npt.NDArray[Any]


def pool_templates(
    embeddings: Any,
    templates: Any,
    media: Any,
    *,
    flipped: Any = None,
    quality: Any = None,
    keep_norms: bool = True,
) -> Templates:
    """Average the images of each medium, sum over the media of each template, and normalise:

        x_i = q_i (e_i + flipped_i)          t = normalize( Σ_media mean_{i in medium} x_i )

    so that a video of a hundred frames counts as much as a photograph. The same medium id in two templates means two
    media. A template whose vectors cancel is zero, with similarity 0 to everything.

    Args:
        embeddings: (N, D), one per image; a tensor, an array or a memory map.
        templates: (N,) template of each image; numbers or strings.
        media: (N,) medium (photograph or video) of each image.
        flipped: (N, D) embeddings of the mirrored images, which are added.
        quality: (N,) non-negative weights of the images, such as a detector's score.
        keep_norms: keep the norm of each embedding, which grows with the quality of an image (insightface's
            `use_norm_score`); False normalises each embedding first.
    """
    rows = inputs.Rows(embeddings, "embeddings")
    mirrored = None if flipped is None else inputs.Rows(flipped, "flipped")
    if mirrored is not None and (len(mirrored), mirrored.dimension) != (len(rows), rows.dimension):
        raise InputError(
            f"flipped ({len(mirrored)}, {mirrored.dimension}) must have the shape of embeddings "
            f"({len(rows)}, {rows.dimension})"
        )
    if not len(rows):
        raise InputError("there are no embeddings to pool")
    ids, template = np.unique(inputs.labels(templates, len(rows), "templates"), return_inverse=True)
    names, medium = np.unique(inputs.labels(media, len(rows), "media"), return_inverse=True)
    _, group, size = np.unique(template.astype(np.int64) * len(names) + medium, return_inverse=True, return_counts=True)
    # A sum of the media's means is a sum over images, each divided by the number of images of its medium.
    weight = torch.from_numpy(_quality(quality, len(rows)) / size[group])
    into = torch.from_numpy(template.astype(np.int64))
    pooled = torch.zeros(len(ids), rows.dimension, dtype=torch.float64)
    for start in range(0, len(rows), ROWS_AT_A_TIME):
        part = slice(start, min(len(rows), start + ROWS_AT_A_TIME))
        x = rows.float32(part).cpu().double()
        if mirrored is not None:
            x += mirrored.float32(part).cpu()
        if not keep_norms:
            x = _unit(x)
        pooled.index_add_(0, into[part], x * weight[part, None])
    return Templates(_unit(pooled).float(), ids)


def _unit(x: Tensor) -> Tensor:
    """Normalise rows to unit length; zero vectors stay zero."""
    return x / inputs.positive(torch.linalg.vector_norm(x, dim=1))[:, None]


def _quality(quality: Any, n: int) -> npt.NDArray[np.float64]:
    if quality is None:
        return np.ones(n)
    weights = inputs.to_numpy(quality).astype(np.float64)
    if weights.shape != (n,):
        raise InputError(f"quality must have the shape ({n},), one weight for each embedding, not {weights.shape}")
    bad = ~(np.isfinite(weights) & (weights >= 0))
    if bad.any():
        raise InputError(
            f"{int(bad.sum())} of {n} weights of quality are negative, infinite or NaN (first: {int(bad.argmax())})"
        )
    return weights
