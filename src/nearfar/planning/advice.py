"""A plan: whether a job fits, and what to change if it does not."""

from dataclasses import dataclass, replace

from nearfar.planning.clock import time_of
from nearfar.planning.job import Hardware, Job, Total
from nearfar.planning.memory import Memory, memory_of
from nearfar.planning.traffic import Traffic, traffic_of

MOST = 2**20  # processes that are thought of
GB = 1e9


@dataclass(frozen=True)
class Plan:
    """What a job takes on a piece of hardware; `advice` says what to change, where it does not fit."""

    job: Job
    hardware: Hardware
    memory: Memory
    traffic: Traffic
    time: Total
    advice: tuple[str, ...]

    @property
    def fits(self) -> bool:
        """Whether it does."""
        return self.memory.peak <= self.hardware.memory


def plan(job: Job, hardware: Hardware | None = None) -> Plan:
    """Work out what a job takes."""
    hardware = hardware or Hardware()
    memory = memory_of(job)
    advice = () if memory.peak <= hardware.memory else tuple(_advice(job, hardware))
    return Plan(job, hardware, memory, traffic_of(job), time_of(job, hardware), advice)


def _advice(job: Job, hardware: Hardware) -> list[str]:
    """Single changes that make it fit."""
    changes: list[tuple[str, Job]] = []
    if job.kind != "pair":
        if not job.sharded:
            changes.append(("shard the class vectors, as is done above 2^24 numbers", replace(job, sharded=True)))
        if job.optimiser != "sgd":
            changes.append(("use sgd, which keeps one number for each weight", replace(job, optimiser="sgd")))
        if job.sample_rate == 1:
            some = replace(job, sample_rate=0.1)
            changes.append(("let a tenth of the classes take part in a step (sample_rate: 0.1)", some))
    smaller = _smaller_batch(job, hardware)
    if smaller is not None:
        changes.append((f"make the batch {smaller.batch:,}, {smaller.samples:,} samples of each process", smaller))
    found = [
        f"{text}: {memory_of(changed).peak / GB:,.1f} GB"
        for text, changed in changes
        if memory_of(changed).peak <= hardware.memory
    ]
    best = replace(job, sharded=True)
    world = _fewest(best, hardware)
    if world is not None:
        text = "" if job.sharded else ", with class vectors sharded"
        found.append(f"use {world:,} processes{text}: {memory_of(replace(best, world=world)).peak / GB:,.1f} GB each")
    if not found:
        found.append("no single change makes it fit: combine sgd, sample_rate and a smaller batch or dimension")
    return found


def _smaller_batch(job: Job, hardware: Hardware) -> Job | None:
    """Half the batch, and half of it, until it fits."""
    while job.batch // 2 >= job.world:
        job = replace(job, batch=job.batch // 2)
        if memory_of(job).peak <= hardware.memory:
            return job
    return None


def _fewest(job: Job, hardware: Hardware) -> int | None:
    """Processes, in powers of two, with which it fits; the batch stays as it is."""
    world = 1
    while world <= min(MOST, job.batch):
        if world > job.world and memory_of(replace(job, world=world)).peak <= hardware.memory:
            return world
        world *= 2
    return None
