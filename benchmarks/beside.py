"""nearfar's losses beside pytorch-metric-learning's: both take turns.

So both see the same machine from one moment to the next, and what a row says is the quotient of two neighbouring turns:
of steps that take a millisecond, the times themselves differ more between two minutes than between the libraries.

Each has a process of its own, but for few samples. A process that waits while the other has its turn finds its core
asleep and its caches cold, and which of the two cores it was left on: of steps of half a millisecond that is half as
much again, and another half in the next pair of processes. So there both are in one.
"""

import contextlib
import csv
import json
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.cases import Case
from benchmarks.implementations import exists
from benchmarks.measure import Times
from benchmarks.results import CSV as LOSSES
from benchmarks.results import ROOT, Stamped, append, stamp, without_paths
from benchmarks.run import end
from benchmarks.settings import settings
from benchmarks.worker import OUT_OF_MEMORY, READY, Request

FEW = 2**13  # similarities, up to which both are in one process
CSV = LOSSES.with_name("beside.csv")
FEWEST, MOST, SECONDS = 3, 150, 6.0  # turns of each: at least, at most, and how long unless there are too few


@dataclass(frozen=True)
class Row(Stamped):
    """One comparison. Times are medians of a step; ratios are ours / theirs, of turn after turn."""

    case: str
    loss: str
    status: str
    nearfar_ms: float | None = None
    pml_ms: float | None = None
    p20: float | None = None
    p50: float | None = None
    p80: float | None = None
    turns: int = 0


class TurnError(Exception):
    """What became of a process that should have taken its turn."""


class Player:
    """A process, of one implementation or of several."""

    def __init__(self, request: Request):
        self.name = request.implementation
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.worker", request.to_json(), "--turns"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def hear(self, seconds: float) -> str:
        """The next line that it says."""
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], seconds)[0]:
            raise TurnError(f"{self.name}: timeout")
        said = self._process.stdout.readline().decode().strip()
        if not said:  # it has ended; the kernel ends what takes all memory
            code = self._process.wait()
            raise TurnError(f"{self.name}: {OUT_OF_MEMORY if code == -signal.SIGKILL else f'error: exit {code}'}")
        if said.startswith("{"):
            raise TurnError(f"{self.name}: {without_paths(json.loads(said)['status'])}")
        return said

    def turn(self, seconds: float) -> list[float]:
        """Some steps of each implementation: the seconds of one."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # what has ended is not heard of any more
            self._process.stdin.write(b"\n")
            self._process.stdin.flush()
        return [float(text) for text in self.hear(seconds).split()]

    def end(self) -> None:
        end(self._process)


def compare(case: Case, loss: str, seconds: float, threads: int = 0) -> Row:
    """A row, whatever becomes of the two."""
    status = ""
    taken: list[tuple[float, float]] = []
    if case.rows * case.columns <= FEW:
        status, taken = _turns(["nearfar+pml"], case, loss, seconds, threads)
    if status != "ok":  # in a process of its own each, one hears whose fault it is
        status, taken = _turns(["nearfar", "pml"], case, loss, seconds, threads)
    where = stamp(threads)
    if status != "ok":
        return Row(**where, case=case.name, loss=loss, status=status)  # type: ignore[arg-type]
    ours, theirs = (Times(sorted(times)).quantile(0.5) for times in zip(*taken, strict=True))
    ratios = Times(sorted(a / b for a, b in taken))
    return Row(
        **where,  # type: ignore[arg-type]
        case=case.name,
        loss=loss,
        status=status,
        nearfar_ms=round(1000 * ours, 3),
        pml_ms=round(1000 * theirs, 3),
        p20=round(ratios.quantile(0.2), 3),
        p50=round(ratios.quantile(0.5), 3),
        p80=round(ratios.quantile(0.8), 3),
        turns=len(taken),
    )


def _turns(
    names: list[str], case: Case, loss: str, seconds: float, threads: int
) -> tuple[str, list[tuple[float, float]]]:
    """What became of these processes, and the seconds of every turn of nearfar and of the other."""
    players: list[Player] = []
    taken: list[tuple[float, float]] = []
    try:
        for name in names:
            players.append(Player(Request(case.name, loss, name, threads=threads)))
            assert players[-1].hear(seconds) == READY
        start = time.perf_counter()
        while len(taken) < FEWEST or (len(taken) < MOST and time.perf_counter() - start < SECONDS):
            ours, theirs = (part for player in players for part in player.turn(seconds))
            taken.append((ours, theirs))
    except TurnError as failure:
        return str(failure), []
    finally:
        for player in players:
            player.end()
    return "ok", taken


def measure(cases: Iterable[Case], losses: Sequence[str] | None, seconds: float, out: Path) -> int:
    """Every loss that both have; 1 if one of ours takes longer."""
    slower = 0
    for case in cases:
        for label, setting in settings().items():
            if (losses and label not in losses) or not (setting.fits(case) and exists("pml", setting, case)):
                continue
            row = compare(case, label, seconds)
            append(row, out)
            slower += row.p50 is not None and row.p50 > 1
            told = row.status if row.p50 is None else f"{row.p50:.2f} ({row.p20:.2f} to {row.p80:.2f})"
            print(f"{case.name} {label}: {told}", file=sys.stderr, flush=True)
    return int(slower > 0)


def cell(row: dict[str, str]) -> str:
    """A row in a table: 0.62 (0.58 to 0.66), or what became of it."""
    if row["status"] != "ok":
        return row["status"].removeprefix("pml: ").partition(":")[0]
    p50, p20, p80 = (float(row[name]) for name in ("p50", "p20", "p80"))
    digits = 2 if p50 >= 0.1 else 3
    return f"{p50:.{digits}f} ({p20:.{digits}f} to {p80:.{digits}f})"


def read(path: Path) -> dict[tuple[str, str], dict[str, str]]:
    """The last row of every case and loss, by column; none if there is no file."""
    if not path.exists():
        return {}
    with path.open(newline="") as file:
        return {(row["case"], row["loss"]): row for row in csv.DictReader(file)}
