"""Batch samplers for `torch.utils.data.DataLoader`, with common rules:

- The order depends only on the seed and the epoch. Every rank computes it and takes its part. Rank and number of
  processes are those of torch.distributed, when it is initialised, or what the sampler was made with.
- `state_dict` holds the position in the epoch; after `load_state_dict`, iteration continues with the next batch. It
  counts batches taken from the sampler, including those that a DataLoader has prefetched; `Loader` corrects for these.
- After a complete iteration, the next epoch begins. After an interrupted one, the same epoch begins again.
"""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch.distributed
from torch.utils import data

from nearfar.errors import InputError, InputTypeError

Rows = npt.NDArray[np.int64]
Labels = Sequence[int] | npt.NDArray[Any]


class _TorchSampler(data.BatchSampler):
    """A sampler as torch has it, and what to do where Lightning would make it again without the labels."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        if "drop_last" in kwargs and args and isinstance(args[0], data.Sampler):
            raise InputTypeError(
                f"{cls.__name__} cannot be made from another sampler, as Lightning does to share rows out: make it in "
                "train_dataloader(), or pass Trainer(use_distributed_sampler=False). It finds its rank by itself"
            )
        return super().__new__(cls)


class BatchSampler(_TorchSampler, ABC):
    """The base of the samplers. A subclass determines the rows of each batch on each rank.

    Args:
        batch_size: rows of each rank in a batch.
        seed: determines the order, together with the epoch.
        rank, world_size: the rank of this process and the number of processes; None: those of torch.distributed,
            or, of a `world_size` that is given, rank 0.

    Subclasses take an argument `sampler` that they do not use: Lightning passes one when it makes a sampler again.
    """

    drop_last = True  # what wraps batch samplers asks for it: all batches of an epoch are whole

    def __init__(self, batch_size: int, seed: int, rank: int | None, world_size: int | None):
        if batch_size < 1:
            raise InputError(f"batch_size={batch_size} must be positive")
        self.batch_size, self.seed = batch_size, seed
        self._rank, self._world_size = rank, world_size
        if not 0 <= self.rank < self.world_size:
            raise InputError(f"rank={rank} must be from 0 to world_size - 1 = {self.world_size - 1}")
        self.epoch = 0
        self.position = 0  # batches taken in this epoch
        self._start = 0  # the first batch of the next iteration

    @property
    def rank(self) -> int:
        """The rank of this process."""
        if self._rank is None:
            return 0 if self._world_size is not None else _distributed()[0]
        return self._rank

    @property
    def world_size(self) -> int:
        """The number of processes."""
        return _distributed()[1] if self._world_size is None else self._world_size

    @abstractmethod
    def batches(self, epoch: int) -> list[list[Rows]]:
        """The rows of every rank, for every batch of an epoch."""

    @abstractmethod
    def __len__(self) -> int:
        """The number of batches of an epoch, equal for all ranks and epochs."""

    def generator(self, epoch: int) -> np.random.Generator:
        """The random generator of an epoch."""
        return np.random.default_rng([self.seed, epoch])

    def __iter__(self) -> Iterator[list[int]]:
        epoch, self.position, self._start = self.epoch, self._start, 0
        for ranks in self.batches(epoch)[self.position :]:
            self.position += 1
            yield ranks[self.rank].tolist()
        self.seek(epoch + 1)

    def drawn_for(self, place: int) -> tuple[int, int]:
        """The rank and position for which a row of the last batch was drawn. They seed its transform."""
        return self.rank, place

    def seek(self, epoch: int, position: int = 0) -> None:
        """Set the epoch and the first batch of the next iteration."""
        self.epoch, self.position, self._start = epoch, position, position

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration."""
        self.seek(epoch)

    def state_dict(self) -> dict[str, int]:
        """The position in the epoch."""
        return self.state_at(self.epoch, self.position)

    def state_at(self, epoch: int, position: int) -> dict[str, int]:
        """The `state_dict` at a position. The end of an epoch is the start of the next."""
        if position == len(self):
            epoch, position = epoch + 1, 0
        return {"seed": self.seed, "epoch": epoch, "position": position, "length": len(self)}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continue at the position of a state."""
        for name, expected in (("seed", self.seed), ("length", len(self))):
            if state[name] != expected:
                raise InputError(
                    f"the state has {name} {state[name]}, but this sampler has {expected}: "
                    "only a sampler of the same data and settings can continue from it"
                )
        self.seek(state["epoch"], state["position"])


class PlainSampler(BatchSampler):
    """Every row once per epoch, shuffled; the last batch may be shorter.

    Args:
        rows: the number of rows.
        batch_size: rows of each rank. Ranks take consecutive parts of the global batch.
        shuffle: False keeps the order of the table.
        drop_last: drop the last batch if it is short. A last batch with fewer rows than ranks is always dropped.
    """

    def __init__(
        self,
        rows: int,
        batch_size: int,
        *,
        shuffle: bool = True,
        drop_last: bool = False,
        seed: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
        sampler: object = None,
    ):
        super().__init__(batch_size, seed, rank, world_size)
        self.rows, self.shuffle, self.drop_last = rows, shuffle, drop_last
        if not len(self):
            raise InputError(f"{rows} rows are too few for a batch of {batch_size} on {self.world_size} ranks")

    def __len__(self) -> int:
        whole, tail = divmod(self.rows, self.batch_size * self.world_size)
        return whole + (tail >= self.world_size and not self.drop_last)

    def batches(self, epoch: int) -> list[list[Rows]]:
        order = self.generator(epoch).permutation(self.rows) if self.shuffle else np.arange(self.rows)
        size = self.batch_size * self.world_size
        return [np.array_split(order[i * size : (i + 1) * size], self.world_size) for i in range(len(self))]


class PKSampler(BatchSampler):
    """P classes × K rows of each.

    In an epoch, the rows of each class are shuffled and cut into groups of K. The last group of a class is filled with
    other rows of the class, and with repetitions only if the class has fewer than K rows. A batch has P groups of
    different classes on every rank, drawn with probabilities proportional to the remaining groups of the classes. An
    epoch has as many batches as the groups allow. So almost every row occurs once, and up to K - 1 rows of each class
    twice. Fewer than P groups are left out, other ones in every epoch; more only if a few classes are so large that
    there are too few groups of others. `coverage` returns the fraction of rows that occur.

    Args:
        labels: class id of every row; rows with -1 are left out.
        p: classes per batch on each rank; ranks have different classes.
        k: rows per class.
    """

    def __init__(
        self,
        labels: Labels,
        p: int,
        k: int,
        *,
        seed: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
        sampler: object = None,
    ):
        if min(p, k) < 1:
            raise InputError(f"p={p} and k={k} must be positive")
        super().__init__(p * k, seed, rank, world_size)
        self.p, self.k = p, k
        self.rows_of = rows_by_class(labels)
        self._groups = np.array([-(-len(rows) // k) for rows in self.rows_of])
        self._lengths: dict[int, int] = {}  # by the number of processes
        len(self)

    def _most_batches(self, classes: int) -> int:
        """The number of batches of this many classes each.

        Each class has at most one group in a batch, so B batches need sum_c min(groups_c, B) >= classes * B.
        """
        if len(self.rows_of) < classes:
            raise InputError(
                f"{self.p} classes on each of {self.world_size} ranks need {classes} classes, but there are "
                f"{len(self.rows_of)}: lower p, and raise k to keep the batch size"
            )
        low, high = 1, int(self._groups.sum()) // classes + 1
        while high - low > 1:
            middle = (low + high) // 2
            enough = np.minimum(self._groups, middle).sum() >= classes * middle
            low, high = (middle, high) if enough else (low, middle)
        return low

    def __len__(self) -> int:
        size = self.world_size
        if size not in self._lengths:
            self._lengths[size] = self._most_batches(self.p * size)
        return self._lengths[size]

    def __iter__(self) -> Iterator[list[int]]:
        if self.k > 1 and max(map(len, self.rows_of)) == 1:
            warnings.warn(
                f"every class has one row: the {self.k} rows of a class are copies of it, and positives differ only by "
                "what the transform draws",
                stacklevel=2,
            )
        return super().__iter__()

    def batches(self, epoch: int) -> list[list[Rows]]:
        rng = self.generator(epoch)
        groups = np.concatenate([_groups(rows, self.k, rng) for rows in self.rows_of])
        next_group = np.cumsum(self._groups) - self._groups  # of each class
        left = self._groups.copy()
        batches = []
        for remaining in range(len(self), 0, -1):
            # The smallest exponential variables divided by weights are a weighted draw without replacement.
            with np.errstate(divide="ignore"):
                key = rng.exponential(size=len(left)) / left
            key[left >= remaining] = -1.0  # these classes must be in every remaining batch
            classes = np.argpartition(key, self.p * self.world_size - 1)[: self.p * self.world_size]
            rng.shuffle(classes)
            rows = groups[next_group[classes]]
            next_group[classes] += 1
            left[classes] -= 1
            batches.append([part.ravel() for part in np.split(rows, self.world_size)])
        return batches

    def coverage(self, epoch: int = 0) -> float:
        """The fraction of the labelled rows that occur in an epoch."""
        seen = np.unique(np.concatenate([rows for ranks in self.batches(epoch) for rows in ranks]))
        return len(seen) / sum(len(rows) for rows in self.rows_of)


class BalancedSampler(BatchSampler):
    """Every class equally often, whatever its size.

    Classes come in shuffled rounds over all classes, and the rows of each class in shuffled rounds over its rows. So
    within an epoch the counts of any two classes differ by at most one, and so do those of two rows of a class. Every
    epoch has as many batches as all rows would fill.

    Args:
        labels: class id of every row; rows with -1 are left out.
        batch_size: rows of each rank.
    """

    def __init__(
        self,
        labels: Labels,
        batch_size: int,
        *,
        seed: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
        sampler: object = None,
    ):
        super().__init__(batch_size, seed, rank, world_size)
        self.rows_of = rows_by_class(labels)
        self._rows = sum(len(rows) for rows in self.rows_of)

    def __len__(self) -> int:
        return max(1, self._rows // (self.batch_size * self.world_size))

    def batches(self, epoch: int) -> list[list[Rows]]:
        rng = self.generator(epoch)
        count = len(self) * self.batch_size * self.world_size
        rounds = -(-count // len(self.rows_of))
        classes = np.concatenate([rng.permutation(len(self.rows_of)) for _ in range(rounds)])[:count]
        rows = np.empty(count, np.int64)
        positions_of = np.split(np.argsort(classes, kind="stable"), np.cumsum(np.bincount(classes))[:-1])
        for class_rows, positions in zip(self.rows_of, positions_of, strict=False):  # in short epochs, not all classes
            rows[positions] = _Rounds(class_rows, rng).take(len(positions))
        return [np.split(batch, self.world_size) for batch in rows.reshape(len(self), -1)]


class HierarchicalSampler(BatchSampler):
    """Batches of few super-classes, so that negatives are hard: S super-classes × P classes × K rows.

    Super-classes, the classes of each, and the rows of each class come in shuffled rounds, without repetition within a
    round. A super-class with fewer than P classes contributes all of them, and the batch is smaller; a class with fewer
    than K rows repeats them. An epoch has as many batches as all rows would fill.

    Args:
        labels, super_classes: class and super-class of every row; rows with label -1 are left out. Each class belongs
            to one super-class.
        s: super-classes per batch on each rank; ranks have different ones.
        p, k: classes of each super-class, rows of each class.
    """

    def __init__(
        self,
        labels: Labels,
        super_classes: Labels,
        s: int,
        p: int,
        k: int,
        *,
        seed: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
        sampler: object = None,
    ):
        if min(s, p, k) < 1:
            raise InputError(f"s={s}, p={p} and k={k} must be positive")
        super().__init__(s * p * k, seed, rank, world_size)
        supers = np.asarray(super_classes)
        if len(labels) != len(supers):
            raise InputError(f"there are {len(supers)} super-classes for {len(labels)} labels: give one for each label")
        self.s, self.p, self.k = s, p, k
        self.rows_of = rows_by_class(labels)
        for rows in self.rows_of:
            if len(np.unique(supers[rows])) > 1:
                raise InputError(f"class {labels[rows[0]]} is in more than one super-class")
        self.classes_of = rows_by_class(np.unique(supers, return_inverse=True)[1][[rows[0] for rows in self.rows_of]])
        self._rows = sum(len(rows) for rows in self.rows_of)
        len(self)

    def __len__(self) -> int:
        needed = self.s * self.world_size
        if len(self.classes_of) < needed:
            raise InputError(
                f"{self.s} super-classes on each of {self.world_size} ranks need {needed}, but there are "
                f"{len(self.classes_of)}: lower s"
            )
        return max(1, self._rows // (self.batch_size * self.world_size))

    def batches(self, epoch: int) -> list[list[Rows]]:
        rng = self.generator(epoch)
        supers = _Rounds(np.arange(len(self.classes_of)), rng)
        classes = [_Rounds(members, rng) for members in self.classes_of]
        rows = [_Rounds(members, rng) for members in self.rows_of]

        def rows_of_super(super_class: int) -> Rows:
            drawn = classes[super_class].take(min(self.p, len(self.classes_of[super_class])))
            return np.concatenate([rows[c].take(self.k) for c in drawn])

        return [
            [np.concatenate([rows_of_super(s) for s in part]) for part in np.split(drawn, self.world_size)]
            for drawn in (supers.take(self.s * self.world_size) for _ in range(len(self)))
        ]


def rows_by_class(labels: Labels) -> list[Rows]:
    """The rows of each class, sorted by class id; rows with label -1 are left out."""
    array = np.asarray(labels)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise InputTypeError(f"labels must be integers (N,), not {array.dtype} {array.shape}")
    rows = np.flatnonzero(array != -1)
    if not len(rows):
        raise InputError("no row has a label")
    order = rows[np.argsort(array[rows], kind="stable")]
    return np.split(order, np.flatnonzero(np.diff(array[order])) + 1)


def _groups(rows: Rows, k: int, rng: np.random.Generator) -> Rows:
    """The groups of a class (groups, k), as documented in `PKSampler`."""
    shuffled = rng.permutation(rows)
    missing = -len(rows) % k
    if missing:
        new = k - missing  # rows of the last group that occur for the first time
        others = shuffled[:-new] if len(rows) >= k else shuffled
        shuffled = np.concatenate([shuffled, _Rounds(others, rng).take(missing)])
    return shuffled.reshape(-1, k)


class _Rounds:
    """Values in endless shuffled rounds."""

    def __init__(self, values: Rows, rng: np.random.Generator):
        self._values, self._rng = values, rng
        self._queue = values[:0]

    def take(self, count: int) -> Rows:
        """The next values, without duplicates if there are enough."""
        taken, self._queue = self._queue[:count], self._queue[count:]
        while len(taken) < count:
            fresh = self._rng.permutation(self._values)
            seen = np.isin(fresh, taken) if len(taken) < len(fresh) else np.zeros(len(fresh), bool)
            fresh = np.concatenate([fresh[~seen], fresh[seen]])  # what has just come comes last
            taken, self._queue = (
                np.concatenate([taken, fresh[: count - len(taken)]]),
                fresh[count - len(taken) :],
            )
        return taken


def _distributed() -> tuple[int, int]:
    """The rank of this process and the number of processes."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return 0, 1
