"""The bytes that a process sends in a step with ring collectives.

With S bytes on each of N processes, an all-gather sends (N - 1) S, a reduce-scatter (N - 1)/N S, an all-reduce
2 (N - 1)/N S.
"""

import math
from dataclasses import dataclass

from nearfar.planning.job import FLOAT, LONG, Item, Job, Total
from nearfar.planning.memory import BUDGET

TILE, SQUARE, FEWEST_ROWS = 2**20, 1024, 256  # similarities of a tile, its side, its fewest rows
STATISTICS = 4  # merged numbers of a row: maximum and sum of its positives, and of its negatives


@dataclass(frozen=True)
class Traffic:
    """The bytes that a process sends in a step, and the number of collectives."""

    bytes: Total
    messages: int

    @property
    def sent(self) -> float:
        """Bytes in total."""
        return self.bytes.sum


def traffic_of(job: Job) -> Traffic:
    """The traffic of a job. Single numbers, such as counts of rows, are left out."""
    n = job.world
    if n == 1:
        return Traffic(Total(()), 0)
    embeddings = job.samples * job.dimension * FLOAT
    reduced = 2 * (n - 1) / n
    items = [
        Item("embeddings", (n - 1) * embeddings),
        Item("labels", (n - 1) * job.samples * LONG),
        Item("gradients of the embeddings", (n - 1) * embeddings),
    ]
    messages = 4  # these three, and the number of samples of each process
    if job.kind == "softmax":
        items.append(Item("row statistics", reduced * STATISTICS * job.batch * FLOAT))
        messages += STATISTICS * math.ceil(job.batch / strip(job))
    else:
        messages += 2  # the number of rows in the mean, and the loss
    if job.kind != "pair" and not job.sharded:
        items.append(Item("gradient of the class vectors", reduced * job.table))
        messages += 1
    items.append(Item("gradient of the network", reduced * job.parameters * FLOAT))
    return Traffic(Total(tuple(item for item in items if item.amount)), messages + (job.parameters > 0))


def strip(job: Job) -> int:
    """Rows of a strip of a class-level loss: as many as the budget keeps, or, where these are too few for products at
    full speed, those of a tile.
    """
    most = max(FEWEST_ROWS, TILE // min(SQUARE, _columns(job)))
    kept = BUDGET // (FLOAT * _columns(job))
    return min(most, kept) if kept >= FEWEST_ROWS else most


def _columns(job: Job) -> int:
    return math.ceil(job.classes / job.world) * job.vectors_per_class
