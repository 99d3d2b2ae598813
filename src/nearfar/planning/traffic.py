"""The bytes that a process sends in a step with ring collectives.

With S bytes on each of N processes, an all-gather sends (N - 1) S, a reduce-scatter (N - 1)/N S, an all-reduce
2 (N - 1)/N S.
"""

import math
from dataclasses import dataclass

from nearfar.planning.job import FLOAT, LONG, Item, Job, Total
from nearfar.planning.memory import BUDGET

TILE, WIDEST, FEWEST_ROWS = 2**20, 2048, 256  # similarities of a tile, its most columns, its fewest rows
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
        messages += 2 * (1 + math.ceil(max(0, job.batch - first_strip(job)) / strip(job)))
    else:
        messages += 2  # the number of rows in the mean, and the loss
    if job.kind != "pair" and not job.sharded:
        items.append(Item("gradient of the class vectors", reduced * job.table))
        messages += 1
    items.append(Item("gradient of the network", reduced * job.parameters * FLOAT))
    return Traffic(Total(tuple(item for item in items if item.amount)), messages + (job.parameters > 0))


def first_strip(job: Job) -> int:
    """Rows of the first strip of a class-level loss, which is one tile."""
    return max(FEWEST_ROWS, TILE // min(WIDEST, _columns(job)))


def strip(job: Job) -> int:
    """Rows of the later strips, limited by the memory budget."""
    return min(first_strip(job), max(FEWEST_ROWS, BUDGET // (FLOAT * _columns(job))))


def _columns(job: Job) -> int:
    return math.ceil(job.classes / job.world) * job.vectors_per_class
