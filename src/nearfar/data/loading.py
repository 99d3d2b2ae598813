"""Batches of images from worker processes. Broken images are skipped and counted; too many are an error."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler, default_collate

from nearfar.data.samplers import BatchSampler, PlainSampler
from nearfar.data.tables import Table
from nearfar.data.transforms import TrainTransform
from nearfar.errors import InputError, NearfarError
from nearfar.imaging import BrokenImageError, EvalTransform, Source, TooManyBrokenImagesError
from nearfar.imaging.callables import transformed
from nearfar.imaging.sources import describe

AnyTransform = EvalTransform | TrainTransform | Callable[[Image.Image], Any]


class Batch(NamedTuple):
    """`images` (B, C, H, W), `labels` (B,) and `rows` (B,) of the table."""

    images: Tensor
    labels: Tensor
    rows: Tensor


class Faults:
    """The broken images found so far, by row of the table.

    Args:
        table: the table.
        most: the largest tolerated fraction of broken images.
    """

    def __init__(self, table: Table, most: float = 0.25):
        if not 0 <= most <= 1:
            raise InputError(f"the allowed fraction of broken images must be from 0 to 1, not {most}")
        self._table, self.most = table, most
        self.reasons: dict[int, str] = {}

    def __len__(self) -> int:
        return len(self.reasons)

    @property
    def fraction(self) -> float:
        """The fraction of the table's rows that are broken."""
        return len(self) / len(self._table)

    def add(self, row: int, reason: str) -> None:
        """Count a row once. Raises `TooManyBrokenImagesError` if there are too many."""
        self.reasons[row] = reason
        if self.fraction > self.most:
            raise TooManyBrokenImagesError(
                f"{len(self)} of {len(self._table)} images are broken, more than the {self.most:.2%} allowed. "
                f"The first: {'; '.join(self.listed(3))}. Repair or remove them, or allow more (max_broken)"
            )

    def listed(self, most: int | None = None) -> list[str]:
        """The broken images with their reasons, in the order of the table."""
        images = self._table.images
        rows = sorted(self.reasons)[:most]
        return [f"{describe(images[row]) if images is not None else f'row {row}'}: {self.reasons[row]}" for row in rows]


class _SampleKey(NamedTuple):
    """A row and its draw, which determine the random transform."""

    row: int
    draw: tuple[int, int, int, int]  # epoch, batch, rank, position in the batch


class _KeySampler(Sampler[list[_SampleKey]]):
    def __init__(self, sampler: BatchSampler):
        self.sampler = sampler

    def __iter__(self) -> Iterator[list[_SampleKey]]:
        sampler = self.sampler
        for rows in sampler:
            draw = sampler.epoch, sampler.position
            yield [_SampleKey(row, (*draw, *sampler.drawn_for(position))) for position, row in enumerate(rows)]


class _TransformedImages(Dataset[tuple[int, Tensor | str | NearfarError]]):
    """Transformed images, or the reasons why they are broken. Errors for users are returned as well: if a worker raised
    them, torch would wrap them in a traceback.
    """

    def __init__(self, table: Table, transform: AnyTransform, seed: int):
        if table.images is None:
            raise InputError(f"{table.name} has no images, only features: use table.features")
        self.images, self.transform, self.seed = table.images, transform, seed

    def __getitem__(self, key: _SampleKey) -> tuple[int, Tensor | str | NearfarError]:
        try:
            return key.row, self._transformed(self.images[key.row], key.draw)
        except BrokenImageError as broken:
            return key.row, broken.reason
        except NearfarError as error:
            return key.row, error

    def _transformed(self, source: Source, draw: tuple[int, ...]) -> Tensor:
        """nearfar's transforms return bytes here; the main process normalises whole batches."""
        if isinstance(self.transform, TrainTransform):
            return self.transform.pixels(source, np.random.default_rng([self.seed, *draw]))
        if isinstance(self.transform, EvalTransform):
            return self.transform.pixels(source)
        return transformed(self.transform, source, (self.seed, *draw))


_Message = tuple[Tensor | None, list[int], list[tuple[int, str | NearfarError]]]


def _collate(items: list[tuple[int, Tensor | str | NearfarError]]) -> _Message:
    good = [(row, image) for row, image in items if isinstance(image, Tensor)]
    bad = [(row, reason) for row, reason in items if not isinstance(reason, Tensor)]
    # In a worker, default_collate stacks into shared memory.
    return default_collate([image for _, image in good]) if good else None, [row for row, _ in good], bad


def _only_main_process_stops(worker: int) -> None:
    """Let a worker end only when its main process says so. Terminals and schedulers send SIGINT and SIGTERM to all
    processes of a job, but the main process must finish its step first.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "sigwaitinfo"):  # it returns the sender, but does not exist on every system
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        threading.Thread(target=_wait_for_sigterm, args=(os.getppid(),), daemon=True).start()


def _wait_for_sigterm(main: int) -> None:
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != main:
        pass
    os._exit(128 + signal.SIGTERM)


class Loader:
    """Batches of a table.

    Args:
        table: rows with images.
        transform: `EvalTransform`, `TrainTransform`, or any callable of a Pillow image (torchvision, albumentations,
            kornia: see `nearfar.imaging.callables`).
        sampler: the rows of each batch; a number takes all rows in order, in batches of this size.
        workers: processes that decode; 0 decodes in this process.
        max_broken: the largest tolerated fraction of broken images in the table.
        seed: the seed of the transform. An image's augmentation depends on the seed, the epoch and its position in the
            epoch, not on the number of workers, so a resumed run sees the same images.
        pin_memory: for faster copies to a GPU.

    `faults` lists the broken images found so far. `state_dict` counts the batches that were returned, not those that
    the workers have prefetched.
    """

    def __init__(
        self,
        table: Table,
        transform: AnyTransform,
        sampler: BatchSampler | int,
        *,
        workers: int = 0,
        max_broken: float = 0.25,
        seed: int = 0,
        pin_memory: bool = False,
    ):
        self.table = table
        self.sampler = PlainSampler(len(table), sampler, shuffle=False) if isinstance(sampler, int) else sampler
        self.faults = Faults(table, max_broken)
        self._normaliser = transform if isinstance(transform, (EvalTransform, TrainTransform)) else None
        self._labels = torch.from_numpy(table.labels)
        self._next = self._progress = self.sampler.epoch, self.sampler.position  # epoch and batch
        self._batches: DataLoader[Any] = DataLoader(
            _TransformedImages(table, transform, seed),
            batch_sampler=_KeySampler(self.sampler),
            num_workers=workers,
            collate_fn=_collate,
            # A separate generator, because every new iterator draws from it and a resumed run creates one more.
            generator=torch.Generator().manual_seed(seed),
            persistent_workers=workers > 0,
            worker_init_fn=_only_main_process_stops,
            pin_memory=pin_memory,
        )

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> Iterator[Batch]:
        epoch, start = self._progress = self._next
        self._next = epoch, 0  # after an interrupted iteration, the epoch starts again
        self.sampler.seek(epoch, start)
        for number, (images, rows, broken) in enumerate(self._batches, start + 1):
            for row, reason in broken:
                if isinstance(reason, NearfarError):
                    raise reason
                self.faults.add(row, reason)
            self._progress = epoch, number
            if images is not None:
                index = torch.tensor(rows)
                images = images if self._normaliser is None else self._normaliser.normalise(images)
                yield Batch(images, self._labels[index], index)
            elif self.sampler.world_size > 1:
                raise TooManyBrokenImagesError(
                    f"all {len(broken)} images of a batch are broken, and the other ranks wait for it: "
                    f"{'; '.join(self.faults.listed(3))}"
                )
        self.set_epoch(epoch + 1)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration."""
        self._next = self._progress = epoch, 0

    def state_dict(self) -> dict[str, int]:
        """The position in the epoch, in returned batches."""
        return self.sampler.state_at(*self._progress)

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continue at the position of a state."""
        self.sampler.load_state_dict(state)
        self._next = self._progress = state["epoch"], state["position"]
