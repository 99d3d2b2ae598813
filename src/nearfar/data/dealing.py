"""`Dealt`: the batches of a run, on another number of ranks than it began with."""

from bisect import bisect_right
from itertools import accumulate

import numpy as np

from nearfar.data.samplers import BatchSampler, Rows
from nearfar.errors import InputError


class Dealt(BatchSampler):
    """The batches of another sampler, divided among a different number of ranks. Each global batch has the same rows in
    the same order.

    So a loss that sees the samples of all ranks sees the same batch on 3 ranks as on 4, and a run that was stopped on 4
    continues with the next batch. The state is that of the other sampler.

    The rows of a class in a batch stay on one rank. The numbers of these groups differ by at most one between ranks.

    Args:
        sampler: the sampler for the number of ranks that the run began with.
        rank, world_size: the rank of this process and the present number of processes.
    """

    def __init__(self, sampler: BatchSampler, rank: int, world_size: int):
        self.original, self._group_size = sampler, int(getattr(sampler, "k", 1))
        groups = sampler.batch_size * sampler.world_size // self._group_size
        if groups < world_size:
            raise InputError(
                f"a batch of {sampler.batch_size * sampler.world_size} rows has only {groups} groups of "
                f"{self._group_size} rows of a class for {world_size} ranks: use at most {groups} ranks"
            )
        super().__init__(-(-groups // world_size) * self._group_size, sampler.seed, rank, world_size)

    def __len__(self) -> int:
        return len(self.original)

    def batches(self, epoch: int) -> list[list[Rows]]:
        drawn = self.original.batches(epoch)
        self._starts = [list(accumulate(map(len, ranks), initial=0)) for ranks in drawn]
        return [np.split(np.concatenate(ranks), self._bounds(sum(map(len, ranks)))[1:-1]) for ranks in drawn]

    def _bounds(self, rows: int) -> list[int]:
        """The boundaries of the ranks' parts in a batch of this many rows."""
        groups = -(-rows // self._group_size)
        if groups < self.world_size:
            raise InputError(f"a batch of {rows} rows is too small for {self.world_size} ranks: use fewer ranks")
        return [min(groups * r // self.world_size * self._group_size, rows) for r in range(self.world_size + 1)]

    def drawn_for(self, place: int) -> tuple[int, int]:
        starts = self._starts[self.position - 1]
        position = self._bounds(starts[-1])[self.rank] + place
        rank = bisect_right(starts, position, hi=len(starts) - 1) - 1
        return rank, position - starts[rank]
