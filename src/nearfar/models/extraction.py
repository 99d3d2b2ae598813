"""Many images through a network, without waiting for the disk: decoding in threads, ahead of the network, in bounded
memory.

Pillow and numpy let go of the interpreter while they decode and resize, so threads do what processes would, without
their start-up and copies.
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
    found = [Path(folder, name) for name in images_below(folder)]
    if not found:
        raise InputError(f"{os.fspath(folder)} holds no image (endings such as .jpg, .png, .webp)")
    return found


def listed(images: Any) -> Any:
    """A folder or a file as a list of paths; the rest as it is."""
    if isinstance(images, Tensor) and images.ndim not in (2, 4):
        raise InputError(f"a tensor must be (N, C, H, W), images, or (N, D), features; not {tuple(images.shape)}")
    if isinstance(images, (str, os.PathLike)):
        return images_in(images) if Path(images).is_dir() else [images]
    return images


def default_workers() -> int:
    """Threads that decode: as many as cores, up to eight."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, 8)


def batches(
    images: Iterable[Any],
    transform: Callable[[Any], Tensor],
    batch_size: int,
    num_workers: int | None = None,
) -> Iterator[tuple[Tensor, list[BrokenImageError | None]]]:
    """Transformed images in order, stacked (n, C, H, W), with what is wrong with each (None: nothing).

    A broken image is a row of zeros. At most three batches are held at a time.
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
        raise InputError(f"the transform must give tensors of one shape, not of {', '.join(map(str, sorted(shapes)))}")
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
    """Rows (n, D) for one batch of images after the other; a broken image's row is NaN.

    Args:
        max_broken: the fraction of broken images beyond which to give up; by default the first is an error. Those
            passed over are listed in a warning at the end.
        part_of: how many images there are in all, where these are some of them, such as those that no cache has yet:
            the fraction is of all. That all of these are broken is then no error, if the network's `width` D is given.
        advance: called with the number of images done.
    """
    if not 0 <= max_broken <= 1:
        raise InputError(f"max_broken is a fraction between 0 and 1, not {max_broken}")
    total = len(images) if isinstance(images, Sized) else None
    if part_of is not None and total is not None:
        total = max(total, part_of)
    broken: list[BrokenImageError] = []
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
        hint = " (max_broken=0.01 would pass over one in a hundred)" if of > 1 else ""
        return BrokenImageError(broken[0].source, f"{broken[0].reason}{hint}")
    return TooManyBrokenImagesError(
        f"{len(broken)} of {of} images are broken, more than max_broken={allowed}: {broken[0]}"
    )


def gathered(batches: Iterable[NDArray[np.float32]], total: int | None, width: int) -> NDArray[np.float32]:
    """Rows (n, width), batch by batch, as one array; if their number is known, without ever holding them twice."""
    if total is None:
        return np.concatenate([np.empty((0, width), np.float32), *batches])
    result, done = np.empty((total, width), np.float32), 0
    for batch in batches:
        result[done : done + len(batch)] = batch
        done += len(batch)
    return result


@contextlib.contextmanager
def progress_bar(show: bool, total: int | None) -> Iterator[Callable[[int], None] | None]:
    """What to call with the number of images done; None if nothing is to be shown."""
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
