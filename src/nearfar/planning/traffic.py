"""What a process sends in a step, as rings that waste nothing send it.

Of S bytes on each of N processes, an all-gather sends (N - 1) S, a reduce-scatter of S bytes (N - 1)/N S, an all-reduce
twice that.
"""

import math
from dataclasses import dataclass

from nearfar.planning.job import FLOAT, LONG, Item, Job, Total
from nearfar.planning.memory import BUDGET

TILE, SQUARE, FEWEST_ROWS = 2**20, 1024, 256  # similarities of a tile, its side, its rows at least
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
        messages += STATISTICS * math.ceil(job.batch / strip(job))
    else:
        messages += 2  # how many rows count, and the loss
    if job.kind != "pair" and not job.sharded:
        items.append(Item("gradient of the class vectors", reduced * job.table))
        messages += 1
    items.append(Item("gradient of the network", reduced * job.parameters * FLOAT))
    return Traffic(Total(tuple(item for item in items if item.amount)), messages + (job.parameters > 0))


def strip(job: Job) -> int:
    """Rows whose similarities a loss of classes works on together: as many as the budget keeps, or, where these are too
    few for products at full speed, a tile's.
    """
    most = max(FEWEST_ROWS, TILE // min(SQUARE, _columns(job)))
    kept = BUDGET // (FLOAT * _columns(job))
    return min(most, kept) if kept >= FEWEST_ROWS else most


def _columns(job: Job) -> int:
    return math.ceil(job.classes / job.world) * job.vectors_per_class
