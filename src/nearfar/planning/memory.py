"""What a process holds: between steps, and at most within one."""

from dataclasses import dataclass

from nearfar.planning.job import FLOAT, LONG, Item, Job, Total

# Numbers that an optimiser keeps for a weight, and that a step of it computes besides, all at once.
STATES = {"adamw": 2, "adam": 2, "rmsprop": 2, "sgd": 1}
TEMPORARIES = {"adamw": 2, "adam": 2, "rmsprop": 1, "sgd": 0}
BUDGET = 104 * 10**6  # bytes of similarities that a loss keeps between its passes, at most (memory_budget)


@dataclass(frozen=True)
class Memory:
    """Bytes of a process.

    Attributes:
        between: what it holds between steps, the last gradients among it.
        loss: what the loss needs besides, in its forward and backward pass.
        step: what the optimiser needs besides, in its step.
        network: what the network needs besides, until its backward pass is over.
    """

    between: Total
    loss: Total
    step: Total
    network: Total

    @property
    def kept(self) -> float:
        """Between steps."""
        return self.between.sum

    @property
    def peak(self) -> float:
        """At most: in the loss, with the network's activations; or in the optimiser's step."""
        return self.kept + max(self.loss.sum + self.network.sum, self.step.sum)


def memory_of(job: Job) -> Memory:
    """What a process needs for this."""
    table, states = job.table, STATES[job.optimiser]
    lazy = job.sample_rate < 1 and job.kind != "pair"
    between = [
        Item("class vectors", table),
        Item("their gradient", table),
        Item(f"what {job.optimiser} keeps for them", states * table + (job.rows * FLOAT if lazy else 0)),
        Item("network, gradients, buckets, optimiser", (3 + states) * job.parameters * FLOAT),
    ]
    touched = job.rows_in_step * job.dimension * FLOAT
    # The gradient of the last step is gone when a new one is formed, tile by tile, and handed on.
    forming = touched if not lazy else 2 * touched
    similarities = job.batch * (job.rows_in_step if job.kind != "pair" else job.batch) * FLOAT
    loss = [
        Item("similarities, in tiles", min(BUDGET, similarities)),
        Item("embeddings of all processes, and their gradient", 3 * job.batch * job.dimension * FLOAT),
        Item("labels and statistics of the rows", job.batch * (2 * LONG + 8 * FLOAT)),
        Item("the class vectors' gradient while it is formed", forming),
    ]
    moving = (TEMPORARIES[job.optimiser] + (5 if lazy else 0)) * (touched if lazy else table)
    step = [Item("the optimiser's step of the class vectors", moving)]
    network = [Item(f"activations of {job.samples:,} samples", job.samples * job.activations)]
    return Memory(*(Total(tuple(item for item in items if item.amount)) for items in (between, loss, step, network)))
