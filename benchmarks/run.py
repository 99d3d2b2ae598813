"""Run the measurements, each in a process of its own."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from benchmarks.cases import Case
from benchmarks.implementations import IMPLEMENTATIONS, LIMIT, exists
from benchmarks.measure import cores
from benchmarks.results import ROOT, Row, stamp, without_paths
from benchmarks.settings import settings
from benchmarks.worker import OUT_OF_MEMORY, Request, lacks_memory

Job = tuple[str, str, str]  # case, loss, implementation


def jobs(
    cases: Iterable[tuple[Case, Sequence[str] | None]], implementations: Sequence[str] = IMPLEMENTATIONS
) -> list[Job]:
    """Every case with its losses (None: all that fit), and the implementations that have them."""
    found: list[Job] = []
    for case, wanted in cases:
        if "limit" in implementations:
            found.append((case.name, LIMIT, "limit"))
        for label, setting in settings().items():
            if setting.fits(case) and (wanted is None or label in wanted):
                found += [
                    (case.name, label, name)
                    for name in implementations
                    if name != "limit" and exists(name, setting, case)
                ]
    return found


def run(request: Request, seconds: float) -> Row:
    """One measurement as a row, whatever becomes of the process."""
    # One compiler at a time: a pool of them would outlive a process that runs out of time.
    environment = os.environ | {"TORCHINDUCTOR_COMPILE_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.worker", request.to_json()],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    answer: dict[str, Any]
    try:
        out, err = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        end(process)
        answer = {"status": "timeout", "note": f"after {seconds:g} s"}
    except BaseException:  # such as Ctrl-C, which does not reach a session of its own
        end(process)
        raise
    else:
        answer = _answer(process.returncode, out, err)
    if answer["status"] == OUT_OF_MEMORY:
        answer["note"] = f"with {request.memory_gib:g} GiB"
    answer["status"] = without_paths(answer["status"])
    return Row(
        **stamp(request.threads),  # type: ignore[arg-type]
        case=request.case,
        loss=request.loss,
        implementation=request.implementation,
        **answer,
    )


def end(process: "subprocess.Popen[str] | subprocess.Popen[bytes]") -> None:
    """End the process and what it has started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def _answer(code: int, out: str, err: str) -> dict[str, Any]:
    if code == 0 and out.strip():
        answer: dict[str, Any] = json.loads(out.strip().splitlines()[-1])
        return answer
    if code == -signal.SIGKILL or lacks_memory(err):  # the kernel, or the C++ runtime, ended it
        return {"status": OUT_OF_MEMORY}
    last = err.strip().splitlines()[-1] if err.strip() else "no message"
    return {"status": f"error: exit {code}: {last}"}


def warn_if_busy() -> None:
    """Say so if others use the machine: threads that wait for a core make times absurd."""
    with contextlib.suppress(OSError, AttributeError):
        load = os.getloadavg()[0]
        if load > 0.5 * cores():
            print(f"the machine is busy (load {load:.1f} on {cores()} cores): times will be off", file=sys.stderr)


def describe(row: Row) -> str:
    """A row in a few words."""
    if row.status != "ok":
        return row.status
    memory = "" if row.peak_mb is None else f", {row.peak_mb:,.0f} MB"
    return f"{row.p50_ms:,.1f} ms, {row.ratio:.2f} x the limit{memory}"
