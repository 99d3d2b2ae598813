"""How long a step takes, by arithmetic: products at the rate that is given, memory and messages at theirs, and nothing
at the same time as anything else.
"""

import math

from nearfar.planning.job import FLOAT, Hardware, Item, Job, Total
from nearfar.planning.memory import BUDGET, STATES
from nearfar.planning.traffic import strip, traffic_of


def time_of(job: Job, hardware: Hardware) -> Total:
    """Seconds of a step."""
    columns = job.rows_in_step if job.kind != "pair" else job.samples  # of B rows; a process has its part of them
    # Similarities that are not kept between the passes are computed again.
    rows = min(job.batch, strip(job))
    again = 2 * (1 - min(1.0, BUDGET / (rows * columns * FLOAT))) if job.kind == "softmax" else 0.0
    products = (6 + again) * job.batch * columns * job.dimension
    touched = job.rows_in_step * job.dimension * FLOAT if job.sample_rate < 1 else job.table
    # Weights, gradients and states are read, and all but the gradients written.
    moved = (3 + 2 * STATES[job.optimiser]) * (touched + job.parameters * FLOAT)
    traffic = traffic_of(job)
    waits = traffic.messages * math.ceil(math.log2(max(job.world, 2))) * hardware.latency if job.world > 1 else 0.0
    items = (
        Item("network, forward and backward", 3 * job.samples * job.operations / hardware.operations),
        Item("the loss's products", products / hardware.operations),
        Item("the optimiser", moved / hardware.bandwidth),
        Item("messages", traffic.sent / hardware.link + waits),
    )
    return Total(tuple(item for item in items if item.amount))
