"""`Dealt`: the batches of a run that began on some number of ranks, on any other number of them."""

from bisect import bisect_right
from itertools import accumulate

import numpy as np

from nearfar.data.samplers import BatchSampler, Rows
from nearfar.errors import InputError


class Dealt(BatchSampler):
    """The batches of another sampler, dealt anew: each is, over all ranks together, the same rows in the same order.

    So a loss that sees the samples of all ranks sees the same batch, whether 4 ranks make it or 3, and a run that was
    stopped on 4 goes on where it was. The state is that of the other sampler.

    The rows of a class that stand together stay together. Ranks get as many of these groups as others do, or one fewer.

    Args:
        sampler: made for as many ranks as the run began with.
        rank, world_size: of this process, and how many there are now.
    """

    def __init__(self, sampler: BatchSampler, rank: int, world_size: int):
        self.sampler, self._together = sampler, int(getattr(sampler, "k", 1))
        groups = sampler.batch_size * sampler.world_size // self._together
        if groups < world_size:
            raise InputError(
                f"a batch of {sampler.batch_size * sampler.world_size} rows has {groups} groups of "
                f"{self._together} that stand together, too few for {world_size} ranks: use {groups} or fewer"
            )
        super().__init__(-(-groups // world_size) * self._together, sampler.seed, rank, world_size)

    def __len__(self) -> int:
        return len(self.sampler)

    def batches(self, epoch: int) -> list[list[Rows]]:
        drawn = self.sampler.batches(epoch)
        self._starts = [list(accumulate(map(len, ranks), initial=0)) for ranks in drawn]
        return [np.split(np.concatenate(ranks), self._bounds(sum(map(len, ranks)))[1:-1]) for ranks in drawn]

    def _bounds(self, rows: int) -> list[int]:
        """Where in a batch of so many rows the part of each rank begins, and the last one ends."""
        groups = -(-rows // self._together)
        if groups < self.world_size:
            raise InputError(f"a batch of {rows} rows is too short for {self.world_size} ranks: go on with fewer")
        return [min(groups * r // self.world_size * self._together, rows) for r in range(self.world_size + 1)]

    def drawn_for(self, place: int) -> tuple[int, int]:
        starts = self._starts[self.position - 1]
        at = self._bounds(starts[-1])[self.rank] + place
        rank = bisect_right(starts, at, hi=len(starts) - 1) - 1
        return rank, at - starts[rank]
