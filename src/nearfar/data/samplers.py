"""Which rows make a batch. All of these are batch samplers for `torch.utils.data.DataLoader`, and share their rules:

- The order is a function of the seed and the epoch alone. Every rank computes it and takes its own part.
- `state_dict` says how far the epoch is; after `load_state_dict` the next iteration gives the very batches that were
  left. It counts batches handed out: a DataLoader that prefetches runs ahead of what was used, `Loader` does not.
- Iterating to the end moves on to the next epoch. An iteration that was broken off begins the same epoch again.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from torch.utils.data import Sampler

from nearfar.errors import InputError, InputTypeError

Rows = npt.NDArray[np.int64]
Labels = Sequence[int] | npt.NDArray[Any]


class BatchSampler(Sampler[list[int]], ABC):
    """What the samplers share. A subclass says which rows are in the batches of an epoch, and on which rank.

    Args:
        batch_size: rows of each rank in a batch.
        seed: decides the order, together with the epoch.
        rank, world_size: of this process, and how many there are.
    """

    def __init__(self, batch_size: int, seed: int, rank: int, world_size: int):
        if batch_size < 1:
            raise InputError(f"batch_size={batch_size} must be positive")
        if not 0 <= rank < world_size:
            raise InputError(f"rank={rank} must be from 0 to world_size - 1 = {world_size - 1}")
        self.batch_size, self.seed, self.rank, self.world_size = batch_size, seed, rank, world_size
        self.epoch = 0
        self.position = 0  # batches of this epoch handed out
        self._start = 0  # where the next iteration begins

    @abstractmethod
    def batches(self, epoch: int) -> list[list[Rows]]:
        """For every batch of an epoch, the rows of every rank."""

    @abstractmethod
    def __len__(self) -> int:
        """Batches of a whole epoch; the same on every rank and in every epoch."""

    def generator(self, epoch: int) -> np.random.Generator:
        """What decides everything random in an epoch."""
        return np.random.default_rng([self.seed, epoch])

    def __iter__(self) -> Iterator[list[int]]:
        epoch, self.position, self._start = self.epoch, self._start, 0
        for ranks in self.batches(epoch)[self.position :]:
            self.position += 1
            yield ranks[self.rank].tolist()
        self.seek(epoch + 1)

    def drawn_for(self, place: int) -> tuple[int, int]:
        """The rank, and the place in its batch, for which a row of the last batch was drawn: what decides, with the
        batch, everything random about it.
        """
        return self.rank, place

    def seek(self, epoch: int, position: int = 0) -> None:
        """Let the next iteration begin with this batch of this epoch."""
        self.epoch, self.position, self._start = epoch, position, position

    def set_epoch(self, epoch: int) -> None:
        """Let the next iteration be of this epoch."""
        self.seek(epoch)

    def state_dict(self) -> dict[str, int]:
        """Where the epoch is."""
        return self.state_at(self.epoch, self.position)

    def state_at(self, epoch: int, position: int) -> dict[str, int]:
        """What `state_dict` is after so many batches. The end of an epoch is the beginning of the next."""
        if position == len(self):
            epoch, position = epoch + 1, 0
        return {"seed": self.seed, "epoch": epoch, "position": position, "length": len(self)}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on from there."""
        for name, own in (("seed", self.seed), ("length", len(self))):
            if state[name] != own:
                raise InputError(
                    f"the state has {name} {state[name]}, this sampler {own}: "
                    "only a sampler of the same data and settings can go on from it"
                )
        self.seek(state["epoch"], state["position"])


class PlainSampler(BatchSampler):
    """Every row once per epoch, shuffled; the last batch may be shorter.

    Args:
        rows: how many rows there are.
        batch_size: of each rank. Ranks take consecutive parts of a batch of all ranks.
        shuffle: False keeps the order of the table.
        drop_last: leave out the last batch if it is short. With several ranks a short batch that cannot give every
            rank a row is always left out.
    """

    def __init__(
        self,
        rows: int,
        batch_size: int,
        *,
        shuffle: bool = True,
        drop_last: bool = False,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
    ):
        super().__init__(batch_size, seed, rank, world_size)
        self.rows, self.shuffle, self.drop_last = rows, shuffle, drop_last
        if not len(self):
            raise InputError(f"{rows} rows make no batch of {batch_size} on {world_size} ranks")

    def __len__(self) -> int:
        whole, tail = divmod(self.rows, self.batch_size * self.world_size)
        return whole + (tail >= self.world_size and not self.drop_last)

    def batches(self, epoch: int) -> list[list[Rows]]:
        order = self.generator(epoch).permutation(self.rows) if self.shuffle else np.arange(self.rows)
        size = self.batch_size * self.world_size
        return [np.array_split(order[i * size : (i + 1) * size], self.world_size) for i in range(len(self))]


class PKSampler(BatchSampler):
    """P classes × K rows of each.

    The rule of coverage: in an epoch the rows of each class are shuffled and cut into groups of K. The last group of a
    class is filled up with other rows of the class, and with repetitions only if the class has fewer than K rows. A
    batch is P groups (on every rank) of different classes, drawn with a probability proportional to the groups a class
    has left. An epoch has as many batches as can be made of the groups. So every row comes once, and up to K - 1 rows
    of each class once more; left out are fewer than P groups, chosen anew in every epoch, or more only if a few classes
    are so large that the others cannot accompany them. `coverage` gives the fraction that comes.

    Args:
        labels: class id of every row; rows with -1 are left out.
        p: classes per batch, on each rank; ranks have different classes.
        k: rows per class.
    """

    def __init__(self, labels: Labels, p: int, k: int, *, seed: int = 0, rank: int = 0, world_size: int = 1):
        if min(p, k) < 1:
            raise InputError(f"p={p} and k={k} must be positive")
        super().__init__(p * k, seed, rank, world_size)
        self.p, self.k = p, k
        self.rows_of = rows_by_class(labels)
        if len(self.rows_of) < p * world_size:
            raise InputError(
                f"{p} classes on each of {world_size} ranks need {p * world_size} classes, but there are "
                f"{len(self.rows_of)}: lower p, and raise k to keep the batch size"
            )
        self._groups = np.array([-(-len(rows) // k) for rows in self.rows_of])
        self._length = self._most_batches()

    def _most_batches(self) -> int:
        """A class can give each batch one group at most, so B batches need sum_c min(groups_c, B) >= P B groups."""
        low, high = 1, int(self._groups.sum()) // (self.p * self.world_size) + 1
        while high - low > 1:
            middle = (low + high) // 2
            enough = np.minimum(self._groups, middle).sum() >= self.p * self.world_size * middle
            low, high = (middle, high) if enough else (low, middle)
        return low

    def __len__(self) -> int:
        return self._length

    def batches(self, epoch: int) -> list[list[Rows]]:
        rng = self.generator(epoch)
        groups = np.concatenate([_groups(rows, self.k, rng) for rows in self.rows_of])
        following = np.cumsum(self._groups) - self._groups  # of each class, the group that comes next
        left = self._groups.copy()
        batches = []
        for remaining in range(self._length, 0, -1):
            # Exponential variables divided by weights: the smallest are a weighted draw without replacement.
            with np.errstate(divide="ignore"):
                key = rng.exponential(size=len(left)) / left
            key[left >= remaining] = -1.0  # these must be in every batch from now on
            classes = np.argpartition(key, self.p * self.world_size - 1)[: self.p * self.world_size]
            rng.shuffle(classes)
            rows = groups[following[classes]]
            following[classes] += 1
            left[classes] -= 1
            batches.append([part.ravel() for part in np.split(rows, self.world_size)])
        return batches

    def coverage(self, epoch: int = 0) -> float:
        """The fraction of the labelled rows that come in an epoch."""
        seen = np.unique(np.concatenate([rows for ranks in self.batches(epoch) for rows in ranks]))
        return len(seen) / sum(len(rows) for rows in self.rows_of)


class BalancedSampler(BatchSampler):
    """Every class equally often, whatever its size.

    Each place of a batch is a class, from shuffled rounds over all classes, and a row of it, from shuffled rounds over
    its rows. So within an epoch the counts of two classes differ by one at most, and so do those of two rows of a
    class. An epoch has as many batches as all rows would fill.

    Args:
        labels: class id of every row; rows with -1 are left out.
        batch_size: of each rank.
    """

    def __init__(self, labels: Labels, batch_size: int, *, seed: int = 0, rank: int = 0, world_size: int = 1):
        super().__init__(batch_size, seed, rank, world_size)
        self.rows_of = rows_by_class(labels)
        self._length = max(1, sum(len(rows) for rows in self.rows_of) // (batch_size * world_size))

    def __len__(self) -> int:
        return self._length

    def batches(self, epoch: int) -> list[list[Rows]]:
        rng = self.generator(epoch)
        places = self._length * self.batch_size * self.world_size
        rounds = -(-places // len(self.rows_of))
        classes = np.concatenate([rng.permutation(len(self.rows_of)) for _ in range(rounds)])[:places]
        rows = np.empty(places, np.int64)
        places_of = np.split(np.argsort(classes, kind="stable"), np.cumsum(np.bincount(classes))[:-1])
        for own, at in zip(self.rows_of, places_of, strict=False):  # where classes outnumber places, some have none
            rows[at] = _Rounds(own, rng).take(len(at))
        return [np.split(batch, self.world_size) for batch in rows.reshape(self._length, -1)]


class HierarchicalSampler(BatchSampler):
    """Batches of few super-classes, whose negatives are hard: S super-classes × P classes × K rows.

    Super-classes come in shuffled rounds, so do the classes of each, and the rows of each class: nothing comes again
    before everything beside it has come. A super-class with fewer than P classes gives all it has, and the batch is
    that much smaller; a class with fewer than K rows repeats them. An epoch has as many batches as all rows would fill.

    Args:
        labels, super_classes: of every row; rows with label -1 are left out. A class is in one super-class.
        s: super-classes per batch, on each rank; ranks have different ones.
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
        rank: int = 0,
        world_size: int = 1,
    ):
        if min(s, p, k) < 1:
            raise InputError(f"s={s}, p={p} and k={k} must be positive")
        super().__init__(s * p * k, seed, rank, world_size)
        above = np.asarray(super_classes)
        if len(labels) != len(above):
            raise InputError(f"{len(above)} super-classes for {len(labels)} labels: there must be one each")
        self.s, self.p, self.k = s, p, k
        self.rows_of = rows_by_class(labels)
        for rows in self.rows_of:
            if len(np.unique(above[rows])) > 1:
                raise InputError(f"class {labels[rows[0]]} is in more than one super-class")
        self.classes_of = rows_by_class(np.unique(above, return_inverse=True)[1][[rows[0] for rows in self.rows_of]])
        if len(self.classes_of) < s * world_size:
            raise InputError(
                f"{s} super-classes on each of {world_size} ranks need {s * world_size}, but there are "
                f"{len(self.classes_of)}: lower s"
            )
        self._length = max(1, sum(len(rows) for rows in self.rows_of) // (self.batch_size * world_size))

    def __len__(self) -> int:
        return self._length

    def batches(self, epoch: int) -> list[list[Rows]]:
        rng = self.generator(epoch)
        supers = _Rounds(np.arange(len(self.classes_of)), rng)
        classes = [_Rounds(own, rng) for own in self.classes_of]
        rows = [_Rounds(own, rng) for own in self.rows_of]

        def family(above: int) -> Rows:
            chosen = classes[above].take(min(self.p, len(self.classes_of[above])))
            return np.concatenate([rows[c].take(self.k) for c in chosen])

        return [
            [np.concatenate([family(above) for above in part]) for part in np.split(drawn, self.world_size)]
            for drawn in (supers.take(self.s * self.world_size) for _ in range(self._length))
        ]


def rows_by_class(labels: Labels) -> list[Rows]:
    """The rows of each class that occurs, classes in the order of their ids; -1 is no class."""
    array = np.asarray(labels)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise InputTypeError(f"labels must be integers (N,), not {array.dtype} {array.shape}")
    rows = np.flatnonzero(array != -1)
    if not len(rows):
        raise InputError("no row has a label")
    order = rows[np.argsort(array[rows], kind="stable")]
    return np.split(order, np.flatnonzero(np.diff(array[order])) + 1)


def _groups(rows: Rows, k: int, rng: np.random.Generator) -> Rows:
    """(groups, k), by the rule of `PKSampler`."""
    shuffled = rng.permutation(rows)
    missing = -len(rows) % k
    if missing:
        fresh = k - missing  # rows of the last group that come for the first time
        others = shuffled[:-fresh] if len(rows) >= k else shuffled
        shuffled = np.concatenate([shuffled, _Rounds(others, rng).take(missing)])
    return shuffled.reshape(-1, k)


class _Rounds:
    """Values in endless shuffled rounds."""

    def __init__(self, values: Rows, rng: np.random.Generator):
        self._values, self._rng = values, rng
        self._queue = values[:0]

    def take(self, count: int) -> Rows:
        """The next values; different ones, as long as there are so many."""
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
