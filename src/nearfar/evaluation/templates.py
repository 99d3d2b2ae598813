"""Template pooling, as the IJB benchmarks have it: many pictures and video frames of one person become one vector."""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from nearfar.errors import InputError
from nearfar.evaluation import inputs

ROWS_AT_A_TIME = 2**14


class Templates(NamedTuple):
    """Pooled embeddings (T, D), of unit length, and the name of each template (T,), in sorted order."""

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
    """Mean over the pictures of each medium, sum over the media of each template, then unit length:

        x_i = q_i (e_i + flipped_i)          t = normalize( Σ_media mean_{i in medium} x_i )

    so that the hundred frames of one video count as much as one photograph. A medium's number may return in another
    template, where it is another medium. A template whose pictures cancel stays zero, and similar to nothing.

    Args:
        embeddings: (N, D), one per picture; a tensor, an array or a memory map.
        templates: (N,) which template each picture belongs to; numbers or strings.
        media: (N,) which medium (photograph or video) it was taken from.
        flipped: (N, D), embeddings of the mirrored pictures, added to the others.
        quality: (N,) weights of the pictures, not negative, such as a detector's score.
        keep_norms: keep the length of each embedding, which grows with a picture's quality (insightface's
            `use_norm_score`); if False, each becomes a unit vector first.
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
    # The sum over media of means is a sum over pictures, each divided by how many its medium has.
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
    """Of unit length, however short; zero vectors stay zero."""
    return x / inputs.positive(torch.linalg.vector_norm(x, dim=1))[:, None]


def _quality(quality: Any, n: int) -> npt.NDArray[np.float64]:
    if quality is None:
        return np.ones(n)
    weights = inputs.to_numpy(quality).astype(np.float64)
    if weights.shape != (n,):
        raise InputError(f"quality {weights.shape} must be one weight for each of the {n} embeddings")
    bad = ~(np.isfinite(weights) & (weights >= 0))
    if bad.any():
        raise InputError(
            f"{int(bad.sum())} of {n} weights of quality are negative, infinite or NaN (first: {int(bad.argmax())})"
        )
    return weights
