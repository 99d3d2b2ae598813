"""Whether a job fits its hardware, and what to change if it does not."""

from dataclasses import dataclass, replace

from nearfar.planning.job import Hardware, Job, Total
from nearfar.planning.memory import Memory, memory_of
from nearfar.planning.timing import time_of
from nearfar.planning.traffic import Traffic, traffic_of

MAX_PROCESSES = 2**20
GB = 1e9


@dataclass(frozen=True)
class Plan:
    """The requirements of a job on given hardware; `advice` lists changes if it does not fit."""

    job: Job
    hardware: Hardware
    memory: Memory
    traffic: Traffic
    time: Total
    advice: tuple[str, ...]

    @property
    def fits(self) -> bool:
        """Whether the peak fits the memory of the hardware."""
        return self.memory.peak <= self.hardware.memory


def plan(job: Job, hardware: Hardware | None = None) -> Plan:
    """Calculate memory, traffic and time of a job, and advice if it does not fit."""
    hardware = hardware or Hardware()
    memory = memory_of(job)
    advice = () if memory.peak <= hardware.memory else tuple(_advice(job, hardware))
    return Plan(job, hardware, memory, traffic_of(job), time_of(job, hardware), advice)


def _advice(job: Job, hardware: Hardware) -> list[str]:
    """Single changes that make it fit."""
    changes: list[tuple[str, Job]] = []
    if job.kind != "pair":
        if not job.sharded:
            changes.append(("shard the class vectors (the default above 2^24 numbers)", replace(job, sharded=True)))
        if job.optimiser != "sgd":
            changes.append(("use sgd, which keeps one number for each weight", replace(job, optimiser="sgd")))
        if job.sample_rate == 1:
            sampled = replace(job, sample_rate=0.1)
            changes.append(("compare with a tenth of the classes in a step (sample_rate: 0.1)", sampled))
    smaller = _smaller_batch(job, hardware)
    if smaller is not None:
        changes.append((f"reduce the batch to {smaller.batch:,}, {smaller.samples:,} samples per process", smaller))
    advice = [
        f"{text}: {memory_of(changed).peak / GB:,.1f} GB"
        for text, changed in changes
        if memory_of(changed).peak <= hardware.memory
    ]
    sharded = replace(job, sharded=True)
    world = _fewest_processes(sharded, hardware)
    if world is not None:
        text = "" if job.sharded else ", with class vectors sharded"
        peak = memory_of(replace(sharded, world=world)).peak
        advice.append(f"use {world:,} processes{text}: {peak / GB:,.1f} GB each")
    return advice or ["no single change makes it fit: combine sgd, sample_rate and a smaller batch or dimension"]


def _smaller_batch(job: Job, hardware: Hardware) -> Job | None:
    """The job with its batch halved until it fits."""
    while job.batch // 2 >= job.world:
        job = replace(job, batch=job.batch // 2)
        if memory_of(job).peak <= hardware.memory:
            return job
    return None


def _fewest_processes(job: Job, hardware: Hardware) -> int | None:
    """The smallest power of two of processes with which the same batch fits."""
    world = 1
    while world <= min(MAX_PROCESSES, job.batch):
        if world > job.world and memory_of(replace(job, world=world)).peak <= hardware.memory:
            return world
        world *= 2
    return None
