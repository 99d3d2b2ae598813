"""The memory of a process, between steps and within a step."""

from dataclasses import dataclass

from nearfar.planning.job import FLOAT, LONG, Item, Job, Total

STATES = {"adamw": 2, "adam": 2, "rmsprop": 2, "sgd": 1}  # numbers that an optimiser keeps for each weight
TEMPORARIES = {"adamw": 2, "adam": 2, "rmsprop": 1, "sgd": 0}  # numbers for each weight during its step
BUDGET = 104 * 10**6  # memory_budget of the losses: bytes of similarities kept between passes


@dataclass(frozen=True)
class Memory:
    """The bytes of a process.

    Attributes:
        between: held between steps, including the last gradients.
        loss: needed in addition by the loss, forward and backward.
        step: needed in addition by the optimiser's step.
        network: needed in addition by the network until its backward pass ends.
    """

    between: Total
    loss: Total
    step: Total
    network: Total

    @property
    def kept(self) -> float:
        """Bytes held between steps."""
        return self.between.sum

    @property
    def peak(self) -> float:
        """The larger of the loss with the network's activations, and the optimiser's step."""
        return self.kept + max(self.loss.sum + self.network.sum, self.step.sum)


def memory_of(job: Job) -> Memory:
    """The memory that a process needs for a job."""
    table, states = job.table, STATES[job.optimiser]
    sampled = job.sample_rate < 1 and job.kind != "pair"
    between = [
        Item("class vectors", table),
        Item("their gradient", table),
        Item(f"their {job.optimiser} states", states * table + (job.rows * FLOAT if sampled else 0)),
        Item("network, gradients, buckets, optimiser", (3 + states) * job.parameters * FLOAT),
    ]
    updated = job.rows_in_step * job.dimension * FLOAT
    # The last step's gradient has been freed when the new one is formed.
    forming = updated if not sampled else 2 * updated
    similarities = job.batch * (job.rows_in_step if job.kind != "pair" else job.batch) * FLOAT
    loss = [
        Item("similarities, in tiles", min(BUDGET, similarities)),
        Item("embeddings of all processes, with gradients", 3 * job.batch * job.dimension * FLOAT),
        Item("labels and row statistics", job.batch * (2 * LONG + 8 * FLOAT)),
        Item("the new gradient of the class vectors", forming),
    ]
    temporaries = (TEMPORARIES[job.optimiser] + (5 if sampled else 0)) * (updated if sampled else table)
    step = [Item("temporaries for the class vectors", temporaries)]
    network = [Item(f"activations of {job.samples:,} samples", job.samples * job.activations)]
    return Memory(*(Total(tuple(item for item in items if item.amount)) for items in (between, loss, step, network)))
