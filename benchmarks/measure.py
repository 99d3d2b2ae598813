"""Time and memory of a step, in this process."""

import contextlib
import ctypes
import gc
import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

SHORTEST = 0.02  # seconds: what is shorter is run several times and divided
_M_MMAP_THRESHOLD = -3  # of glibc's malloc.h
LONG = 10.0  # seconds: what takes longer does not depend on what ran before
PATIENCE = 60.0  # seconds: what is slower gets three repeats, not more


@dataclass(frozen=True)
class Candidate:
    """A step: `run` leaves gradients at `parameters`. The first of them are the embeddings, the second the class
    weights, if the loss has any.
    """

    run: Callable[[], object]
    parameters: Sequence[Tensor] = ()
    note: str = ""
    result_bytes: int = 0  # of what run returns, where that is the gradients
    forget: Callable[[], object] = lambda: None  # give up what is kept from step to step

    def clear(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None

    def step(self) -> None:
        self.clear()
        self.run()

    @property
    def gradient_bytes(self) -> int:
        return self.result_bytes + sum(p.grad.nbytes for p in self.parameters if p.grad is not None)


def training_step(
    loss: Callable[[], Tensor],
    parameters: Sequence[Tensor],
    note: str = "",
    forget: Callable[[], object] = lambda: None,
) -> Candidate:
    """Forward and backward."""
    return Candidate(lambda: torch.autograd.backward(loss()), parameters, note, forget=forget)


@dataclass(frozen=True)
class Effort:
    """How often to repeat: at least `fewest` times, then until `seconds` have passed or `most` are done."""

    fewest: int = 5
    most: int = 15
    seconds: float = 2.0


THOROUGH = Effort()
QUICK = Effort(3, 5, 0.3)


@dataclass(frozen=True)
class Times:
    """Seconds of one step, sorted."""

    seconds: list[float]

    def quantile(self, q: float) -> float:
        """Interpolated."""
        at = q * (len(self.seconds) - 1)
        low = math.floor(at)
        high = min(low + 1, len(self.seconds) - 1)
        return self.seconds[low] + (at - low) * (self.seconds[high] - self.seconds[low])


class Turns:
    """Something that is timed again and again, while others have their turns.

    What is long enough to be timed by itself follows a run that is not timed, as steps follow each other in training:
    the first after another's finds that one's memory, and has to ask the system for its own.
    """

    def __init__(self, run: Callable[[], None]):
        self._run = run
        run()  # what happens only once: compiling, buffers of the matrix products
        once = self._seconds(1)
        self._count = max(1, math.ceil(SHORTEST / max(once, 1e-9)))
        self._anew = SHORTEST < once < LONG

    def take(self) -> float:
        """The seconds of one run."""
        if self._anew:
            self._run()
        return self._seconds(self._count)

    def _seconds(self, count: int) -> float:
        start = time.perf_counter()
        for _ in range(count):
            self._run()
        return (time.perf_counter() - start) / count


def in_turn(step: Callable[[], None], limit: Callable[[], None], effort: Effort) -> tuple[Times, Times]:
    """The times of the step and of the limit, measured one after the other, so that both see the same machine."""
    runs = Turns(limit), Turns(step)
    taken: tuple[list[float], list[float]] = ([], [])
    start = time.perf_counter()
    while True:
        for run, times in zip(runs, taken, strict=True):
            times.append(run.take())
        repeats, elapsed = len(taken[0]), time.perf_counter() - start
        enough = repeats >= effort.fewest and elapsed > effort.seconds
        if repeats >= effort.most or enough or (repeats >= 3 and elapsed > PATIENCE):
            break
    return Times(sorted(taken[1])), Times(sorted(taken[0]))


def peak_extra_bytes(candidate: Candidate, repeats: int = 3) -> int | None:
    """The most memory that a step holds at a time, beyond what there was before it and beyond its gradients.

    From the resident set's high-water mark, which no allocation escapes; None where the system does not let us reset
    it (Linux does). The least of a few steps, since holes in the heap only ever add. Take the times first: the
    allocator is told to give every block back at once, lest those holes count as held, and that makes it slow.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, 2**16)
    taken = []
    for _ in range(repeats):
        candidate.clear()
        candidate.forget()
        gc.collect()
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).malloc_trim(0)
        try:
            Path("/proc/self/clear_refs").write_text("5")
            before = _status("VmRSS")
            candidate.step()
            peak = _status("VmHWM")
        except OSError:
            return None
        taken.append(max(0, peak - before - candidate.gradient_bytes))
    return min(taken)


def _status(field: str) -> int:
    """A field of /proc/self/status, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise OSError(f"/proc/self/status has no {field}")


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
