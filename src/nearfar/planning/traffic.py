"""What a process sends in a step, as rings that waste nothing send it.

Of S bytes on each of N processes, an all-gather sends (N - 1) S, a reduce-scatter of S bytes (N - 1)/N S, an all-reduce
twice that.
"""

import math
from dataclasses import dataclass

from nearfar.planning.job import FLOAT, LONG, Item, Job, Total
from nearfar.planning.memory import BUDGET

TILE, WIDEST, FEWEST_ROWS = 2**20, 2048, 256  # similarities of a tile, its columns at most, its rows at least
STATISTICS = 4  # numbers of a row that are merged: the top and the sum of its positives, and of its negatives


@dataclass(frozen=True)
class Traffic:
    """Bytes that a process sends in a step, and in how many messages, of all processes together each."""

    bytes: Total
    messages: int

    @property
    def sent(self) -> float:
        """Bytes in all."""
        return self.bytes.sum


def traffic_of(job: Job) -> Traffic:
    """What a process sends for this; a few single numbers, such as counts of rows, are left out."""
    n = job.world
    if n == 1:
        return Traffic(Total(()), 0)
    own = job.samples * job.dimension * FLOAT
    reduced = 2 * (n - 1) / n
    items = [
        Item("embeddings to all", (n - 1) * own),
        Item("labels to all", (n - 1) * job.samples * LONG),
        Item("gradients of embeddings back", (n - 1) * own),
    ]
    messages = 4  # one of them for how many samples each has
    if job.kind == "softmax":
        items.append(Item("statistics of the rows", reduced * STATISTICS * job.batch * FLOAT))
        messages += 2 * (1 + math.ceil(max(0, job.batch - first_strip(job)) / strip(job)))
    else:
        messages += 2  # how many rows count, and the loss
    if job.kind != "pair" and not job.sharded:
        items.append(Item("gradient of the class vectors", reduced * job.table))
        messages += 1
    items.append(Item("gradient of the network", reduced * job.parameters * FLOAT))
    return Traffic(Total(tuple(item for item in items if item.amount)), messages + (job.parameters > 0))


def first_strip(job: Job) -> int:
    """Rows whose similarities a loss of classes works on at first: a tile's."""
    return max(FEWEST_ROWS, TILE // min(WIDEST, _columns(job)))


def strip(job: Job) -> int:
    """Rows at a time after that: no more than the budget keeps."""
    return min(first_strip(job), max(FEWEST_ROWS, BUDGET // (FLOAT * _columns(job))))


def _columns(job: Job) -> int:
    return math.ceil(job.classes / job.world) * job.vectors_per_class
