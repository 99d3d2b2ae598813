"""Runs a network over many images, which threads decode ahead of it in bounded memory.

Pillow and numpy release the interpreter lock while they decode and resize, so threads are as fast as processes and
avoid their start-up and copies.
"""

import contextlib
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

from nearfar.errors import InputError, MissingPackageError
from nearfar.imaging import BrokenImageError, TooManyBrokenImagesError, images_below


def images_in(folder: str | os.PathLike[str]) -> list[Path]:
    """Every image file below a folder, sorted."""
    paths = [Path(folder, name) for name in images_below(folder)]
    if not paths:
        raise InputError(f"{os.fspath(folder)} contains no images (files such as .jpg, .png, .webp)")
    return paths


def listed(images: Any) -> Any:
    """Replace a folder or a file by a list of paths; other inputs are returned unchanged."""
    if isinstance(images, Tensor) and images.ndim not in (2, 4):
        raise InputError(f"a tensor must hold images (N, C, H, W) or features (N, D), not {tuple(images.shape)}")
    if isinstance(images, (str, os.PathLike)):
        return images_in(images) if Path(images).is_dir() else [images]
    return images


def default_workers() -> int:
    """The default number of decoding threads: one per core, at most eight."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, 8)


def batches(
    images: Iterable[Any],
    transform: Callable[[Any], Tensor],
    batch_size: int,
    num_workers: int | None = None,
) -> Iterator[tuple[Tensor, list[BrokenImageError | None]]]:
    """Yield batches (n, C, H, W) of transformed images in order, with the error of each image, or None.

    A broken image is a row of zeros. At most three batches are held in memory.
    """
    if batch_size < 1:
        raise InputError(f"batch_size must be at least 1, not {batch_size}")
    workers = default_workers() if num_workers is None else num_workers
    source = iter(images)
    if workers == 0:
        while chunk := [_attempt(transform, image) for image in itertools.islice(source, batch_size)]:
            yield _stack(chunk)
        return
    pool = ThreadPoolExecutor(workers, "nearfar-decode")
    waiting: deque[Future[Tensor | BrokenImageError]] = deque()
    try:
        while True:
            ahead = itertools.islice(source, 3 * batch_size - len(waiting))
            waiting.extend(pool.submit(_attempt, transform, image) for image in ahead)
            if not waiting:
                return
            yield _stack([waiting.popleft().result() for _ in range(min(batch_size, len(waiting)))])
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _attempt(transform: Callable[[Any], Tensor], image: Any) -> Tensor | BrokenImageError:
    try:
        return transform(image)
    except BrokenImageError as error:
        return error


def _stack(rows: list[Tensor | BrokenImageError]) -> tuple[Tensor, list[BrokenImageError | None]]:
    errors = [row if isinstance(row, BrokenImageError) else None for row in rows]
    good = [row for row in rows if isinstance(row, Tensor)]
    if not good:
        return torch.empty(0), errors
    shapes = {tuple(row.shape) for row in good}
    if len(shapes) > 1:
        raise InputError(f"the transform must return tensors of one shape, not {', '.join(map(str, sorted(shapes)))}")
    blank = torch.zeros_like(good[0])
    return torch.stack([row if isinstance(row, Tensor) else blank for row in rows]), errors


def extract(
    network: Callable[[Tensor], Tensor],
    images: Iterable[Any],
    transform: Callable[[Any], Tensor],
    *,
    batch_size: int,
    num_workers: int | None = None,
    device: torch.device | None = None,
    max_broken: float = 0.0,
    part_of: int | None = None,
    width: int | None = None,
    advance: Callable[[int], None] | None = None,
) -> Iterator[NDArray[np.float32]]:
    """Yield the rows (n, D) of each batch of images. The row of a broken image is NaN.

    Args:
        max_broken: the largest tolerated fraction of broken images, which are listed in a warning at the end. By
            default the first broken image raises an error.
        part_of: the number of all images if these are a part of them, such as those missing in a cache. The fraction
            is then relative to this number, and if `width` is given, all of these images may be broken.
        width: the output dimension D of the network.
        advance: called with the number of images of each batch.
    """
    if not 0 <= max_broken <= 1:
        raise InputError(f"max_broken must be a fraction between 0 and 1, not {max_broken}")
    total = len(images) if isinstance(images, Sized) else None
    if part_of is not None and total is not None:
        total = max(total, part_of)
    broken: list[BrokenImageError] = []
    done, held = 0, 0  # `held`: rows of batches without a good image, before the dimension is known
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
    of = total or done
    if held and (width is None or held == of):
        raise TooManyBrokenImagesError(f"none of the {held} images can be read; the first: {broken[0]}")
    if broken and len(broken) > max_broken * of:
        raise _too_many(broken, done, total, max_broken) from broken[0]
    if held:
        yield np.full((held, width or 0), np.nan, np.float32)
    if broken:
        shown = "; ".join(map(str, broken[:5])) + (f"; and {len(broken) - 5} more" if len(broken) > 5 else "")
        warnings.warn(f"{len(broken)} of {of} images are broken, their rows are NaN: {shown}", stacklevel=2)


def _too_many(broken: list[BrokenImageError], done: int, total: int | None, allowed: float) -> Exception:
    of = total or done
    if allowed == 0:
        hint = " (max_broken=0.01 would tolerate one in a hundred)" if of > 1 else ""
        return BrokenImageError(broken[0].source, f"{broken[0].reason}{hint}")
    return TooManyBrokenImagesError(
        f"{len(broken)} of {of} images are broken, more than max_broken={allowed}: {broken[0]}"
    )


def gathered(batches: Iterable[NDArray[np.float32]], total: int | None, width: int) -> NDArray[np.float32]:
    """Concatenate batches of rows (n, width), without a second copy if their total number is known."""
    if total is None:
        return np.concatenate([np.empty((0, width), np.float32), *batches])
    result, done = np.empty((total, width), np.float32), 0
    for batch in batches:
        result[done : done + len(batch)] = batch
        done += len(batch)
    return result


@contextlib.contextmanager
def progress_bar(show: bool, total: int | None) -> Iterator[Callable[[int], None] | None]:
    """Yield a function that advances the bar by a number of images, or None if `show` is False."""
    if not show:
        yield None
        return
    try:
        from tqdm.auto import tqdm
    except ImportError as error:
        raise MissingPackageError("progress=True needs tqdm: pip install 'nearfar[models]'") from error
    with tqdm(total=total, unit=" images") as bar:

        def advance(count: int) -> None:
            bar.update(count)

        yield advance
