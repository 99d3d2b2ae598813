"""The time of a step: matrix products, memory and messages at the rates of the hardware, one after the other."""

import math

from nearfar.planning.job import FLOAT, Hardware, Item, Job, Total
from nearfar.planning.memory import BUDGET, STATES
from nearfar.planning.traffic import strip, traffic_of


def time_of(job: Job, hardware: Hardware) -> Total:
    """The seconds of a step."""
    columns = job.rows_in_step if job.kind != "pair" else job.samples  # a process's share, compared with all B rows
    # Similarities that are not kept between the passes are computed again.
    rows = min(job.batch, strip(job))
    recomputed = 2 * (1 - min(1.0, BUDGET / (rows * columns * FLOAT))) if job.kind == "softmax" else 0.0
    products = (6 + recomputed) * job.batch * columns * job.dimension
    updated = job.rows_in_step * job.dimension * FLOAT if job.sample_rate < 1 else job.table
    # The optimiser reads weights, gradients and states, and writes weights and states.
    moved = (3 + 2 * STATES[job.optimiser]) * (updated + job.parameters * FLOAT)
    traffic = traffic_of(job)
    latency = traffic.messages * math.ceil(math.log2(max(job.world, 2))) * hardware.latency if job.world > 1 else 0.0
    items = (
        Item("network, forward and backward", 3 * job.samples * job.operations / hardware.operations),
        Item("the loss's products", products / hardware.operations),
        Item("the optimiser", moved / hardware.bandwidth),
        Item("messages", traffic.sent / hardware.link + latency),
    )
    return Total(tuple(item for item in items if item.amount))
