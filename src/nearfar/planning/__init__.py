"""What a training step takes on each of many processes: memory, bytes sent, and time by a stated hardware model.

    job.py       Job, Hardware: what is trained, on what
    memory.py    what a process holds between steps, and at most within one
    traffic.py   what it sends in a step
    clock.py     how long that takes, by arithmetic
    advice.py    what does not fit, and what to change

Memory and traffic follow from what the code allocates and sends, and are checked against measurements
(`python -m benchmarks distributed`). Time is arithmetic on a machine that you describe: a forecast, which nothing here
has measured.

    >>> from nearfar.planning import Job, memory_of
    >>> job = Job(classes=100_000_000, dimension=512, batch=65_536, world=256)
    >>> round(memory_of(job).kept / 1e9, 2)
    3.71

Shapes: N processes, B samples in a batch of all of them, D dimensions, C classes of K vectors, P weights of a network.
"""

from nearfar.planning.advice import Plan, plan
from nearfar.planning.clock import time_of
from nearfar.planning.job import Hardware, Job
from nearfar.planning.memory import memory_of
from nearfar.planning.traffic import traffic_of

__all__ = ["Hardware", "Job", "Plan", "memory_of", "plan", "time_of", "traffic_of"]
