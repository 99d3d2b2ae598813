"""Forecasts of memory, traffic and time of a distributed training step, for each process.

    job.py       Job and Hardware: the sizes of a training run and of a machine
    memory.py    memory between steps, and the peak within a step
    traffic.py   bytes and messages sent in a step
    timing.py    time of a step on the given hardware
    advice.py    whether a job fits, and which changes make it fit

Memory and traffic follow from the tensors that the code allocates and sends, and are checked against measurements
(`python -m benchmarks distributed`). Times are calculated from the given hardware and have not been measured.

    >>> from nearfar.planning import Job, memory_of
    >>> job = Job(classes=100_000_000, dimension=512, batch=65_536, world=256)
    >>> round(memory_of(job).kept / 1e9, 2)
    3.71

Symbols: N processes, B samples in the global batch, D dimensions, C classes of K vectors, P weights of the network.
"""

from nearfar.planning.advice import Plan, plan
from nearfar.planning.job import Hardware, Job
from nearfar.planning.memory import memory_of
from nearfar.planning.timing import time_of
from nearfar.planning.traffic import traffic_of

__all__ = ["Hardware", "Job", "Plan", "memory_of", "plan", "time_of", "traffic_of"]
