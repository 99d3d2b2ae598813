"""Many images through a network, without waiting for the disk: decoding in threads, ahead of the network, in bounded
memory.

Pillow and numpy let go of the interpreter while they decode and resize, so threads do what processes would, without
their start-up and copies.
"""

import itertools
import os
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sized
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nearfar.models.preprocess import BrokenImageError

IMAGE_ENDINGS = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm", ".jp2", ".avif")


def images_in(folder: str | os.PathLike[str]) -> list[Path]:
    """Every image file below a folder, sorted."""
    found = sorted(p for p in Path(folder).rglob("*") if p.suffix.lower() in IMAGE_ENDINGS and p.is_file())
    if not found:
        raise ValueError(f"{os.fspath(folder)} holds no image ({', '.join(IMAGE_ENDINGS)})")
    return found


def default_workers() -> int:
    """Threads that decode: as many as cores, up to eight."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, 8)


def batches(
    images: Iterable[Any],
    transform: Callable[[Any], Tensor],
    batch_size: int,
    num_workers: int | None = None,
) -> Iterator[tuple[Tensor, list[Exception | None]]]:
    """Transformed images in order, stacked (n, C, H, W), with what is wrong with each (None: nothing).

    An image whose transform raises OSError or ValueError is a row of zeros. At most three batches are held at a time.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, not {batch_size}")
    workers = default_workers() if num_workers is None else num_workers
    source = iter(images)
    if workers == 0:
        while chunk := [_attempt(transform, image) for image in itertools.islice(source, batch_size)]:
            yield _stack(chunk)
        return
    pool = ThreadPoolExecutor(workers, "nearfar-decode")
    waiting: deque[Future[Tensor | Exception]] = deque()
    try:
        while True:
            ahead = itertools.islice(source, 3 * batch_size - len(waiting))
            waiting.extend(pool.submit(_attempt, transform, image) for image in ahead)
            if not waiting:
                return
            yield _stack([waiting.popleft().result() for _ in range(min(batch_size, len(waiting)))])
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _attempt(transform: Callable[[Any], Tensor], image: Any) -> Tensor | Exception:
    try:
        return transform(image)
    except (OSError, ValueError) as error:  # what Pillow, and whatever transform is used, raise for a bad image
        return error


def _stack(rows: list[Tensor | Exception]) -> tuple[Tensor, list[Exception | None]]:
    errors = [row if isinstance(row, Exception) else None for row in rows]
    good = [row for row in rows if isinstance(row, Tensor)]
    if not good:
        return torch.empty(0), errors
    shapes = {tuple(row.shape) for row in good}
    if len(shapes) > 1:
        raise ValueError(f"the transform must give tensors of one shape, not of {', '.join(map(str, sorted(shapes)))}")
    blank = torch.zeros_like(good[0])
    tensors = [row if isinstance(row, Tensor) else blank for row in rows]
    if good[0].ndim == 3 and good[0].stride(0) == 1:  # channels last in memory: they stay so
        return torch.stack([row.permute(1, 2, 0) for row in tensors]).permute(0, 3, 1, 2), errors
    return torch.stack(tensors), errors


def extract(
    network: Callable[[Tensor], Tensor],
    images: Iterable[Any],
    transform: Callable[[Any], Tensor],
    *,
    batch_size: int,
    num_workers: int | None = None,
    device: torch.device | None = None,
    max_broken: float = 0.0,
    advance: Callable[[int], None] | None = None,
) -> Iterator[NDArray[np.float32]]:
    """Rows (n, D) for one batch of images after the other; a broken image's row is NaN.

    Args:
        max_broken: the fraction of broken images beyond which to give up; by default the first is an error. Those
            passed over are listed in a warning at the end.
        advance: called with the number of images done.
    """
    if not 0 <= max_broken <= 1:
        raise ValueError(f"max_broken is a fraction between 0 and 1, not {max_broken}")
    total = len(images) if isinstance(images, Sized) else None
    broken: list[Exception] = []
    done, held = 0, 0  # `held`: rows of batches with no good image, before the dimension is known
    dimension: int | None = None
    for batch, errors in batches(images, transform, batch_size, num_workers):
        bad = [error is not None for error in errors]
        broken += [error for error in errors if error is not None]
        done += len(errors)
        if broken and (max_broken == 0 or (total and len(broken) > max_broken * total)):
            raise _too_many(broken, done, total, max_broken) from broken[0]
        if len(batch):
            with torch.inference_mode():
                output = network(batch.to(device, non_blocking=True) if device is not None else batch)
            rows = output.float().cpu().numpy()
            rows = rows.copy() if any(bad) else rows
            rows[bad] = np.nan
            dimension = rows.shape[1]
            if held:
                rows = np.concatenate([np.full((held, dimension), np.nan, np.float32), rows])
                held = 0
            yield rows
        elif dimension is None:
            held += len(errors)
        else:
            yield np.full((len(errors), dimension), np.nan, np.float32)
        if advance is not None:
            advance(len(errors))
    if held:
        raise BrokenImageError(f"none of the {held} images can be read; the first: {broken[0]}")
    if broken and len(broken) > max_broken * done:
        raise _too_many(broken, done, total, max_broken) from broken[0]
    if broken:
        shown = "; ".join(map(str, broken[:5])) + (f"; and {len(broken) - 5} more" if len(broken) > 5 else "")
        warnings.warn(f"{len(broken)} of {done} images are broken, their rows are NaN: {shown}", stacklevel=2)


def _too_many(broken: list[Exception], done: int, total: int | None, allowed: float) -> BrokenImageError:
    if allowed == 0:
        return BrokenImageError(f"{broken[0]} (max_broken=0.01 would pass over one in a hundred)")
    of = total or done
    return BrokenImageError(f"{len(broken)} of {of} images are broken, more than max_broken={allowed}: {broken[0]}")
