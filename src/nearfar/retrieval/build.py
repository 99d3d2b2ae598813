"""Images into an index: those that are new or have changed are embedded, the others stay."""

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
    """What became of images: how many were embedded, were there already, and could not be read."""

    embedded: int
    unchanged: int
    broken: int
    seconds: float


def add_images(
    index: Index, encoder: Encoder, gallery: Gallery, *, advance: Callable[[int], None] | None = None
) -> Added:
    """Add a gallery to an index, whole or not at all (in Milvus: batch by batch).

    Images that are there, from the same state of their file, are not embedded again; nor are those of a build that was
    interrupted. Images that cannot be read are passed over, as many as the encoder allows, and a warning lists them.

    Args:
        advance: called with the number of images done.
    """
    index.check(encoder.fingerprint)
    began = time.monotonic()
    with index.change() as change:
        todo, states = _unknown(change, gallery, advance)
        broken = _embed(change, encoder, gallery.select(todo), states, len(gallery), advance) if todo else 0
    return Added(len(todo) - broken, len(gallery) - len(todo), broken, time.monotonic() - began)


def named(index: Index, names: Sequence[str]) -> list[str]:
    """The ids of images that are meant: ids, paths of files, or folders whose images are meant."""
    if not names:
        return []
    wanted = {*names, *(str(Path(name).absolute()) for name in names)}
    folders = tuple(f"{str(Path(name).absolute()).rstrip('/')}/" for name in names)
    ids = [item.id for item in index.listed() if item.id in wanted or item.id.startswith(folders)]
    for name, folder in zip(names, folders, strict=True):
        own = {name, str(Path(name).absolute())}
        if not any(found in own or found.startswith(folder) for found in ids):
            raise RetrievalError(f"{index.where} has no image {name}, and none below it: nothing was removed")
    return ids


def gone(index: Index) -> list[str]:
    """The ids of images whose files are there no more."""
    pictures = Pictures()
    return [item.id for item in index.listed() if pictures.source(item.id) is None]


def _unknown(change: Change, gallery: Gallery, advance: Callable[[int], None] | None) -> tuple[list[int], list[str]]:
    """The rows that have to be embedded, and the states of their images before that."""
    rows, states = [], []
    for start in range(0, len(gallery), ROWS_AT_A_TIME):
        here = range(start, min(start + ROWS_AT_A_TIME, len(gallery)))
        now = [gallery.state(row) for row in here]
        known = change.known(gallery.ids.take(here), now, [gallery.label(row) for row in here])
        rows += [row for row, there in zip(here, known, strict=True) if not there]
        states += [state for state, there in zip(now, known, strict=True) if not there]
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
    """Embed and put all of it; how many images could not be read."""
    start = broken = 0
    for vectors in encoder.gallery(gallery.images, part_of=part_of, advance=advance):
        good = ~np.isnan(vectors).any(1)
        rows = (np.flatnonzero(good) + start).tolist()
        labels, own = [gallery.label(row) for row in rows], [states[row] for row in rows]
        if rows:
            change.put(gallery.ids.take(rows), vectors[good], labels, own)
        broken += int(np.count_nonzero(~good))
        start += len(vectors)
    return broken
