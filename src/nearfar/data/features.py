"""The feature cache: features of images under a frozen network, computed once and stored on disk.

    cache = FeatureCache("features", key=model.feature_key())
    features = cache.compute(table.images, lambda images, view: model.stream(images, output="features"))
    for x, y in features.batches(table.labels, batch_size=256, seed=0):
        loss(model.project(x), y).backward()

A feature is looked up by the key (network and transform) and the identity of the image (path, size and time of change
of its file, or a digest of its content). So a changed network, transform or file never gets an old feature, and nothing
is overwritten. feature_files.py defines the format on disk.
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
    """Convert a progress bar's `advance(steps)` to the `progress` of `FeatureCache.compute`.

    >>> progress = by_steps(print)
    >>> progress(3, 9), progress(9, 9)
    3
    6
    (None, None)
    """
    if advance is None:
        return None
    done = 0

    def progress(computed: int, total: int) -> None:
        nonlocal done
        advance(computed - done)
        done = computed

    return progress


class FeatureCache:
    """Features stored in a folder under a key.

    Args:
        folder: the cache folder, created if missing; it may hold features under many keys.
        key: everything the features depend on besides the image, such as `Embedder.feature_key()`.
        dtype: "float32", or "float16" for half the space.
        identify: "file" identifies images by the path, size and time of change of their files; "content" by a digest
            of their bytes, which reads each file and recognises copies. Images in memory always go by their content.
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
            raise InputError("the key is empty: it must identify the network and the transform")
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
        """Return the features of all images; missing ones are computed.

        Args:
            images: paths, or the `images` of a table.
            encode: `encode(images, view)` yields features in order, in batches (n, D) of any size. It is called once
                for each view with missing features. Rows with NaN (broken images) are not stored.
            views: the number of versions of each image. `encode` gets the view 0, 1, 2 ... and may transform images at
                random depending on it.
            progress: called with the number of features computed so far and their total.
        """
        if views < 1:
            raise InputError(f"views must be at least 1, not {views}")
        states = [_state(images[row]) for row in range(len(images))]
        view_ids = self._ids(images, views)
        index = Index(self.folder, self.dtype)
        for view, ids in enumerate(view_ids):
            missing = np.flatnonzero(index.positions(ids) < 0)
            done = (view + 1) * len(images) - len(missing)
            if progress is not None:
                progress(done, view_ids.size)
            if len(missing) == 0:
                continue
            position = 0
            with Writer(self.folder, self.key, self.dtype) as writer:
                for batch in encode(_Subset(images, missing), view):
                    features = np.asarray(batch)
                    _check(features, len(missing) - position)
                    rows = missing[position : position + len(features)]
                    valid = ~np.isnan(features).any(1)
                    for row in rows[valid]:  # a file that has changed may have been read before or after the change
                        if _state(images[int(row)]) != states[row]:
                            raise StateError(f"{images[int(row)]} was changed while features were computed: run again")
                    writer.add(ids[rows[valid]], features[valid])
                    position += len(features)
                    if progress is not None:
                        progress(done + position, view_ids.size)
            if position != len(missing):
                raise InputError(f"encode returned {position} features for {len(missing)} images")
        index = Index(self.folder, self.dtype)
        return Features(index.shards, np.stack([index.positions(ids) for ids in view_ids], 1), index.dimension)

    def lacking(self, images: ImageSequence, *, views: int = 1) -> int:
        """The number of missing features. No image is decoded."""
        positions = Index(self.folder, self.dtype).positions(self._ids(images, views).reshape(-1))
        return int(np.count_nonzero(positions < 0))

    def _ids(self, images: ImageSequence, views: int) -> NDArray[Any]:
        """The 16-byte ids (views, N) of the images' views."""
        ids = np.empty((views, len(images)), ID_TYPE)
        for row in range(len(images)):
            image = images[row]
            try:
                name = content(image) if self.identify == "content" else identity(image)
            except OSError:  # a missing file, which the encoder reports
                name = f"missing {image}"
            for view in range(views):
                digest = hashlib.blake2b(f"{view} {name}".encode("utf-8", "surrogateescape"), digest_size=15).digest()
                ids[view, row] = digest + b"."  # numpy would cut off a zero byte at the end
        return ids


def _state(image: Any) -> str:
    """A string that changes when the image's file does; empty for images in memory."""
    if isinstance(image, (bytes, np.ndarray)):
        return ""
    try:
        return identity(image)
    except OSError:
        return "missing"


def _check(rows: NDArray[Any], expected: int) -> None:
    if rows.ndim != 2 or rows.dtype.kind != "f":
        raise InputError(f"encode must return floating-point features (n, D), not {rows.dtype} {rows.shape}")
    if len(rows) > expected:
        raise InputError(f"encode returned at least {len(rows) - expected} features more than there are images")


class _Subset(Sequence[Any]):
    """A lazy subset of the images."""

    def __init__(self, images: ImageSequence, rows: NDArray[np.int64]):
        self._images, self._rows = images, rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, row: Any) -> Any:
        if isinstance(row, slice):
            return [self._images[int(r)] for r in self._rows[row]]
        return self._images[int(self._rows[row])]


class Features:
    """Memory-mapped features of N images in `views` versions.

    `features[rows]` and `features.take(rows, view)` return float32 arrays; `batches` feeds a training loop. `missing`
    lists the rows of images that could not be read.
    """

    def __init__(self, shards: Sequence[NDArray[Any]], places: NDArray[np.int64], dimension: int):
        self._shards, self._places, self.dimension = list(shards), places, dimension
        self.missing = np.flatnonzero((places < 0).any(1))

    def __len__(self) -> int:
        return len(self._places)

    @property
    def views(self) -> int:
        """The number of versions of every image."""
        return int(self._places.shape[1])

    @property
    def shape(self) -> tuple[int, int]:
        """(N, D)."""
        return len(self), self.dimension

    def __getitem__(self, rows: int | slice | Sequence[int] | NDArray[Any]) -> NDArray[np.float32]:
        index = np.arange(len(self))[rows]
        return self.take(index) if index.ndim else self.take(index[None])[0]

    def take(self, rows: Sequence[int] | NDArray[Any], view: int | NDArray[Any] = 0) -> NDArray[np.float32]:
        """Features (n, D) of rows. `view` is one view for all rows, or one for each."""
        positions = self._places[np.asarray(rows, np.int64), view]
        if (positions < 0).any():
            broken = int(np.asarray(rows)[positions < 0][0])
            raise InputError(f"image {broken} could not be read and has no feature: leave out the rows in `missing`")
        shard, row = positions >> 40, positions & ((1 << 40) - 1)
        if len(shard) and (shard == shard[0]).all():
            return np.asarray(self._shards[shard[0]][row], np.float32)
        result = np.empty((len(positions), self.dimension), np.float32)
        for number in np.unique(shard):
            in_shard = shard == number
            result[in_shard] = self._shards[number][row[in_shard]]
        return result

    def batches(
        self,
        labels: Sequence[int] | NDArray[Any] | Tensor | None = None,
        *,
        batch_size: int | None = None,
        sampler: Iterable[Sequence[int]] | None = None,
        seed: int = 0,
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield one epoch of (features (n, D), labels (n,)), or (features, rows) without labels.

        Without a sampler, every image occurs once, in random order. Its view is drawn at random. Rows in `missing` are
        left out. With a sampler of `nearfar.data`, the views depend only on the seed, the epoch and the batch, so that
        a resumed epoch continues unchanged.

        Args:
            labels: class id of every image.
            batch_size: rows per batch; leave it out with a sampler.
            sampler: an iterable of lists of rows.
            seed: the seed of the order and the views; use another one for every epoch.
        """
        if (batch_size is None) == (sampler is None):
            raise InputError("give either batch_size or sampler")
        targets = torch.arange(len(self)) if labels is None else torch.as_tensor(labels)
        if len(targets) != len(self):
            raise InputError(f"there are {len(targets)} labels for {len(self)} images")
        available = np.ones(len(self), bool)
        available[self.missing] = False
        if sampler is None:
            assert batch_size is not None
            if batch_size < 1:
                raise InputError(f"batch_size must be at least 1, not {batch_size}")
            order = np.random.default_rng(seed).permutation(np.flatnonzero(available))
            batches: Iterable[Any] = (order[i : i + batch_size] for i in range(0, len(order), batch_size))
        else:
            batches = sampler
        for number, batch in enumerate(batches, 1):
            rows = np.asarray(batch, np.int64)
            rows = rows[available[rows]]
            draw = [number]
            if isinstance(sampler, BatchSampler):
                draw = [sampler.epoch, sampler.position, sampler.rank]
            view = np.random.default_rng([seed, *draw]).integers(self.views, size=len(rows)) if self.views > 1 else 0
            yield torch.from_numpy(self.take(rows, view)), targets[torch.from_numpy(rows)]
