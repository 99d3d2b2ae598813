"""Adds images to an index. Only new and changed images are embedded."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from nearfar.retrieval.encoder import Encoder
from nearfar.retrieval.gallery import Gallery, Pictures
from nearfar.retrieval.index import Change, Index, RetrievalError

ROWS_AT_A_TIME = 1024


@dataclass(frozen=True)
class Added:
    """Numbers of images that were embedded, were unchanged, and could not be read."""

    embedded: int
    unchanged: int
    broken: int
    seconds: float


def add_images(
    index: Index, encoder: Encoder, gallery: Gallery, *, advance: Callable[[int], None] | None = None
) -> Added:
    """Add a gallery to an index, completely or not at all (in Milvus: in batches).

    Images whose files have not changed since they were indexed are not embedded again, including those of an
    interrupted build. Broken images are skipped up to the encoder's `max_broken`, and a warning lists them.

    Args:
        index: an index of the encoder's model.
        encoder: the model.
        gallery: the images.
        advance: called with the number of images of each step.
    """
    index.check(encoder.fingerprint)
    start = time.monotonic()
    with index.change() as change:
        rows, states = _to_embed(change, gallery, advance)
        broken = _embed(change, encoder, gallery.select(rows), states, len(gallery), advance) if rows else 0
    return Added(len(rows) - broken, len(gallery) - len(rows), broken, time.monotonic() - start)


def named(index: Index, names: Sequence[str]) -> list[str]:
    """The ids of the images that names refer to: ids, paths of files, or folders of images."""
    if not names:
        return []
    wanted = {*names, *(str(Path(name).absolute()) for name in names)}
    folders = tuple(f"{str(Path(name).absolute()).rstrip('/')}/" for name in names)
    ids = [item.id for item in index.listed() if item.id in wanted or item.id.startswith(folders)]
    for name, folder in zip(names, folders, strict=True):
        exact = {name, str(Path(name).absolute())}
        if not any(image in exact or image.startswith(folder) for image in ids):
            raise RetrievalError(f"{index.where} has no image or folder {name}: nothing was removed")
    return ids


def gone(index: Index) -> list[str]:
    """The ids of images whose files no longer exist."""
    pictures = Pictures()
    return [item.id for item in index.listed() if pictures.source(item.id) is None]


def _to_embed(change: Change, gallery: Gallery, advance: Callable[[int], None] | None) -> tuple[list[int], list[str]]:
    """The rows to embed, and the present states of their images."""
    rows, states = [], []
    for start in range(0, len(gallery), ROWS_AT_A_TIME):
        block = range(start, min(start + ROWS_AT_A_TIME, len(gallery)))
        block_states = [gallery.state(row) for row in block]
        known = change.known(gallery.ids.take(block), block_states, [gallery.label(row) for row in block])
        rows += [row for row, unchanged in zip(block, known, strict=True) if not unchanged]
        states += [state for state, unchanged in zip(block_states, known, strict=True) if not unchanged]
        if advance is not None:
            advance(int(np.count_nonzero(known)))
    return rows, states


def _embed(
    change: Change,
    encoder: Encoder,
    gallery: Gallery,
    states: list[str],
    part_of: int,
    advance: Callable[[int], None] | None,
) -> int:
    """Embed the gallery and put it into the index. Returns the number of broken images."""
    start = broken = 0
    for vectors in encoder.gallery(gallery.images, part_of=part_of, advance=advance):
        good = ~np.isnan(vectors).any(1)
        rows = (np.flatnonzero(good) + start).tolist()
        labels = [gallery.label(row) for row in rows]
        if rows:
            change.put(gallery.ids.take(rows), vectors[good], labels, [states[row] for row in rows])
        broken += int(np.count_nonzero(~good))
        start += len(vectors)
    return broken
