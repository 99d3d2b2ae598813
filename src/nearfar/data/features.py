"""The encoder cache: features of images under a frozen network, computed once and kept on disk.

    cache = FeatureCache("features", key=model.feature_key())
    features = cache.compute(table.images, lambda images, view: model.stream(images, output="features"))
    for x, y in features.batches(table.labels, batch_size=256, seed=0):
        loss(model.project(x), y).backward()

A feature is found again by the key (which network, which transform) and the image's identity (which file, its size and
time of change; or a digest of its content), so that a changed network, transform or file never meets an old feature:
nothing is overwritten, what no longer matches is no longer found. feature_files.py is how they lie on disk.
"""

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nearfar.data.feature_files import ID_TYPE, Index, Writer
from nearfar.data.samplers import BatchSampler
from nearfar.errors import InputError, StateError
from nearfar.imaging.sources import ImageSequence, content, identity

Encode = Callable[[Sequence[Any], int], Iterable[NDArray[Any]]]


def by_steps(advance: Callable[[int], None] | None) -> Callable[[int, int], None] | None:
    """A `progress` of `FeatureCache.compute` that tells how many features more there are, as bars want to be told.

    >>> progress = by_steps(print)
    >>> progress(3, 9), progress(9, 9)
    3
    6
    (None, None)
    """
    if advance is None:
        return None
    done = 0

    def progress(there: int, wanted: int) -> None:
        nonlocal done
        advance(there - done)
        done = there

    return progress


class FeatureCache:
    """Features kept in a folder under a key.

    Args:
        folder: made if need be; it may hold features under many keys.
        key: everything the features depend on besides the image, such as `Embedder.feature_key()`.
        dtype: "float32", or "float16" for half the space.
        identify: "file" tells images by the path, size and time of change of their files; "content" by a digest of
            their bytes, which costs reading them, and holds for copies elsewhere. Images in memory go by their content.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        key: str,
        *,
        dtype: Literal["float32", "float16"] = "float32",
        identify: Literal["file", "content"] = "file",
    ):
        if not key:
            raise InputError("the key must say which network and transform the features are of")
        if dtype not in ("float32", "float16"):
            raise InputError(f'dtype must be "float32" or "float16", not {dtype!r}')
        if identify not in ("file", "content"):
            raise InputError(f'identify must be "file" or "content", not {identify!r}')
        self.key, self.dtype, self.identify = key, np.dtype(dtype), identify
        self.folder = Path(folder) / hashlib.blake2b(f"{dtype}\n{key}".encode(), digest_size=16).hexdigest()

    def compute(
        self,
        images: ImageSequence,
        encode: Encode,
        *,
        views: int = 1,
        progress: Callable[[int, int], None] | None = None,
    ) -> "Features":
        """The features of all images, those that are missing computed first.

        Args:
            images: paths, or whatever a table's `images` holds.
            encode: `encode(some_images, view)` gives their features in order, in batches (n, D) of any size. It is
                called once for each view that lacks features; a row with NaN (a broken image) is not kept.
            views: how many times each image is encoded, with views 0, 1, 2 ...: an encoder that transforms at random,
                depending on the view, gives that many augmented versions.
            progress: called with (features there, features wanted).
        """
        if views < 1:
            raise InputError(f"views must be at least 1, not {views}")
        states = [_state(images[row]) for row in range(len(images))]
        wanted = self._ids(images, views)
        index = Index(self.folder, self.dtype)
        for view, ids in enumerate(wanted):
            missing = np.flatnonzero(index.places(ids) < 0)
            done = (view + 1) * len(images) - len(missing)
            if progress is not None:
                progress(done, wanted.size)
            if len(missing) == 0:
                continue
            position = 0
            with Writer(self.folder, self.key, self.dtype) as writer:
                for batch in encode(_Chosen(images, missing), view):
                    rows = np.asarray(batch)
                    _check(rows, len(missing) - position)
                    here = missing[position : position + len(rows)]
                    whole = ~np.isnan(rows).any(1)
                    for row in here[whole]:  # one that was changed meanwhile may have been read in either state
                        if _state(images[int(row)]) != states[row]:
                            raise StateError(f"{images[int(row)]} was changed while features were computed: run again")
                    writer.add(ids[here[whole]], rows[whole])
                    position += len(rows)
                    if progress is not None:
                        progress(done + position, wanted.size)
            if position != len(missing):
                raise InputError(f"encode gave {position} features for {len(missing)} images")
        index = Index(self.folder, self.dtype)
        return Features(index.shards, np.stack([index.places(ids) for ids in wanted], 1), index.dimension)

    def lacking(self, images: ImageSequence, *, views: int = 1) -> int:
        """How many features `compute` would have to compute. No image is decoded."""
        places = Index(self.folder, self.dtype).places(self._ids(images, views).reshape(-1))
        return int(np.count_nonzero(places < 0))

    def _ids(self, images: ImageSequence, views: int) -> NDArray[Any]:
        """(views, N), 16 bytes each: which image, which view of it."""
        ids = np.empty((views, len(images)), ID_TYPE)
        for row in range(len(images)):
            image = images[row]
            try:
                who = content(image) if self.identify == "content" else identity(image)
            except OSError:  # no such file: for the encoder to complain about
                who = f"missing {image}"
            for view in range(views):
                digest = hashlib.blake2b(f"{view} {who}".encode("utf-8", "surrogateescape"), digest_size=15).digest()
                ids[view, row] = digest + b"."  # numpy would cut off a zero byte at the end
        return ids


def _state(image: Any) -> str:
    """What changes when the image's file does; nothing, for images in memory."""
    if isinstance(image, (bytes, np.ndarray)):
        return ""
    try:
        return identity(image)
    except OSError:
        return "missing"


def _check(rows: NDArray[Any], expected: int) -> None:
    if rows.ndim != 2 or rows.dtype.kind != "f":
        raise InputError(f"encode must give features (n, D) of floating point, not {rows.dtype} {rows.shape}")
    if len(rows) > expected:
        raise InputError(f"encode gave at least {len(rows) - expected} features more than there are images")


class _Chosen(Sequence[Any]):
    """Some of the images, none of them touched before it is asked for."""

    def __init__(self, images: ImageSequence, rows: NDArray[np.int64]):
        self._images, self._rows = images, rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, row: Any) -> Any:
        if isinstance(row, slice):
            return [self._images[int(r)] for r in self._rows[row]]
        return self._images[int(self._rows[row])]


class Features:
    """Features of N images in `views` versions, on disk, memory-mapped.

    `features[rows]` and `features.take(rows, view)` give them as float32 arrays; `batches` feeds a training loop.
    Images that could not be read have none: `missing` lists their rows.
    """

    def __init__(self, shards: Sequence[NDArray[Any]], places: NDArray[np.int64], dimension: int):
        self._shards, self._places, self.dimension = list(shards), places, dimension
        self.missing = np.flatnonzero((places < 0).any(1))

    def __len__(self) -> int:
        return len(self._places)

    @property
    def views(self) -> int:
        """Versions of every image."""
        return int(self._places.shape[1])

    @property
    def shape(self) -> tuple[int, int]:
        """(N, D)."""
        return len(self), self.dimension

    def __getitem__(self, rows: int | slice | Sequence[int] | NDArray[Any]) -> NDArray[np.float32]:
        index = np.arange(len(self))[rows]
        return self.take(index) if index.ndim else self.take(index[None])[0]

    def take(self, rows: Sequence[int] | NDArray[Any], view: int | NDArray[Any] = 0) -> NDArray[np.float32]:
        """Features (n, D) of rows, of one view or of one view for each."""
        places = self._places[np.asarray(rows, np.int64), view]
        if (places < 0).any():
            lost = int(np.asarray(rows)[places < 0][0])
            raise InputError(f"image {lost} has no feature, as it could not be read: leave the rows in `missing` out")
        shard, row = places >> 40, places & ((1 << 40) - 1)
        if len(shard) and (shard == shard[0]).all():
            return np.asarray(self._shards[shard[0]][row], np.float32)
        result = np.empty((len(places), self.dimension), np.float32)
        for number in np.unique(shard):
            here = shard == number
            result[here] = self._shards[number][row[here]]
        return result

    def batches(
        self,
        labels: Sequence[int] | NDArray[Any] | Tensor | None = None,
        *,
        batch_size: int | None = None,
        sampler: Iterable[Sequence[int]] | None = None,
        seed: int = 0,
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """An epoch of (features (n, D), labels (n,)), or (features, rows) without labels.

        Every image comes once, in an order that the seed decides, or as a batch sampler says; each time in one of its
        views, drawn at random. Rows in `missing` are left out. With one of `nearfar.data`'s samplers, what is drawn
        depends on the seed, the epoch and the batch alone, so that a resumed epoch goes on as it would have.

        Args:
            batch_size: with a sampler, leave it out.
            sampler: an iterable of lists of rows.
            seed: another for every epoch.
        """
        if (batch_size is None) == (sampler is None):
            raise InputError("give either batch_size, or sampler")
        marks = torch.arange(len(self)) if labels is None else torch.as_tensor(labels)
        if len(marks) != len(self):
            raise InputError(f"there are {len(marks)} labels for {len(self)} images")
        there = np.ones(len(self), bool)
        there[self.missing] = False
        if sampler is None:
            assert batch_size is not None
            if batch_size < 1:
                raise InputError(f"batch_size must be at least 1, not {batch_size}")
            order = np.random.default_rng(seed).permutation(np.flatnonzero(there))
            chosen: Iterable[Any] = (order[i : i + batch_size] for i in range(0, len(order), batch_size))
        else:
            chosen = sampler
        for number, batch in enumerate(chosen, 1):
            rows = np.asarray(batch, np.int64)
            rows = rows[there[rows]]
            draw = [number]
            if isinstance(sampler, BatchSampler):
                draw = [sampler.epoch, sampler.position, sampler.rank]
            view = np.random.default_rng([seed, *draw]).integers(self.views, size=len(rows)) if self.views > 1 else 0
            yield torch.from_numpy(self.take(rows, view)), marks[torch.from_numpy(rows)]
