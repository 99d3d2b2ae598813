"""Rows of results, and the CSV file they are appended to."""

import csv
import datetime
import functools
import platform
import re
import subprocess
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import torch

from benchmarks.measure import cores

ROOT = Path(__file__).resolve().parent.parent
CSV = ROOT / "benchmarks" / "results" / "losses.csv"
Key = tuple[str, str, str]  # case, loss, implementation


@dataclass(frozen=True)
class Stamped:
    """When and where a row was measured, with which code."""

    date: str
    commit: str
    cpu: str
    cores: int
    torch: str


@dataclass(frozen=True)
class Row(Stamped):
    """One measurement. Times are of a step, forward and backward; `ratio` is p50_ms / limit_ms."""

    case: str
    loss: str
    implementation: str
    status: str
    p20_ms: float | None = None
    p50_ms: float | None = None
    p80_ms: float | None = None
    limit_ms: float | None = None
    ratio: float | None = None
    peak_mb: float | None = None
    note: str = ""

    @property
    def key(self) -> Key:
        return self.case, self.loss, self.implementation

    @property
    def differs(self) -> bool:
        """Whether the implementation computes something else than ours, so that the two are not to be compared."""
        return self.note.startswith("differs")


_NUMBERS = ("p20_ms", "p50_ms", "p80_ms", "limit_ms", "ratio", "peak_mb")


def stamp(threads: int = 0) -> dict[str, str | int]:
    """The columns that say when and where; `cores` are those used."""
    return {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "commit": _commit(),
        "cpu": _cpu(),
        "cores": threads or cores(),
        "torch": torch.__version__,
    }


def append(row: Stamped, path: Path = CSV) -> None:
    """Add a row at the end; a new file gets its header."""
    new = not path.exists() or path.stat().st_size == 0
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(row)], lineterminator="\n")
        if new:
            writer.writeheader()
        writer.writerow(asdict(row))


def read(path: Path = CSV) -> list[Row]:
    """All rows, oldest first."""
    rows = []
    with path.open(newline="") as file:
        for line in csv.DictReader(file):
            numbers = {name: float(line[name]) if line[name] else None for name in _NUMBERS}
            rows.append(Row(**line | numbers | {"cores": int(line["cores"])}))  # type: ignore[arg-type]
    return rows


def newest(rows: Iterable[Row]) -> dict[Key, Row]:
    """The last row of every case, loss and implementation."""
    return {row.key: row for row in rows}


def without_paths(text: str) -> str:
    """An error message without the machine's file names."""
    return re.sub(r"(?<![\w.])(~|[A-Za-z]:)?[/\\][\w.\-/\\]+", "…", text)


@functools.cache
def _commit() -> str:
    """The short hash, with a + where the sources of the library or of the benchmark have changed since."""
    try:
        arguments = {"cwd": ROOT, "capture_output": True, "text": True, "check": True}
        commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], **arguments).stdout.strip()  # type: ignore[call-overload]
        changed = subprocess.run(
            ["git", "status", "--porcelain", "--", "src", "benchmarks/*.py"],
            **arguments,  # type: ignore[call-overload]
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""
    return f"{commit}+" if changed else str(commit)


@functools.cache
def _cpu() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
