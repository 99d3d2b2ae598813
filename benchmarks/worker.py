"""One measurement in a process of its own: `python -m benchmarks.worker REQUEST`, a JSON object; answers with one.
With `--turns` it says that it is ready, and then, for every line that it is given, the seconds of a step; of several
implementations, joined by +, the seconds of each in turn.

The process caps its own memory, so that what needs too much fails here and nowhere else.
"""

import contextlib
import json
import sys
from dataclasses import asdict, dataclass
from typing import Any

import torch

from benchmarks.cases import Case, problem
from benchmarks.implementations import build, limit
from benchmarks.measure import THOROUGH, Effort, Turns, cores, in_turn, peak_extra_bytes
from benchmarks.settings import settings

OUT_OF_MEMORY = "out of memory"
READY = "ready"
SIGNS = ("can't allocate memory", "cannot allocate memory", "not enough memory", "bad_alloc", "failed to allocate")


@dataclass(frozen=True)
class Request:
    """What to measure, with which limit of memory and how thoroughly."""

    case: str
    loss: str
    implementation: str
    memory_gib: float = 20.0
    effort: Effort = THOROUGH
    threads: int = 0  # all cores

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Request":
        fields = json.loads(text)
        return cls(**fields | {"effort": Effort(**fields["effort"])})


def lacks_memory(message: str) -> bool:
    """Whether an error's message says that there was no memory left."""
    return any(sign in message.lower() for sign in SIGNS)


def measure(request: Request) -> dict[str, Any]:
    """The measured columns of a row."""
    torch.set_num_threads(request.threads or cores())
    data = problem(Case.parse(request.case))
    is_limit = request.implementation == "limit"
    if is_limit:
        products = candidate = limit(data)
    else:
        setting = settings()[request.loss]
        products = limit(data, setting.vectors_per_class(data.case))
        candidate = build(request.implementation, setting, data)
    times, limits = in_turn(candidate.step, products.step, request.effort)
    peak = peak_extra_bytes(candidate)
    p20, p50, p80 = (1000 * times.quantile(q) for q in (0.2, 0.5, 0.8))
    repeats = len(times.seconds)
    few = f"{repeats} repeats" if repeats < THOROUGH.fewest else ""
    return {
        "p20_ms": round(p20, 3),
        "p50_ms": round(p50, 3),
        "p80_ms": round(p80, 3),
        "limit_ms": round(1000 * limits.quantile(0.5), 3),
        "ratio": 1.0 if is_limit else round(times.quantile(0.5) / limits.quantile(0.5), 3),
        "peak_mb": None if peak is None else round(peak / 1e6, 1),
        "note": "; ".join(part for part in (candidate.note, few) if part),
    }


def take_turns(request: Request) -> None:
    """A turn for every line."""
    torch.set_num_threads(request.threads or cores())
    names, setting, case = request.implementation.split("+"), settings()[request.loss], Case.parse(request.case)
    runs = [Turns(build(name, setting, problem(case)).step) for name in names]
    print(READY, flush=True)
    for _ in sys.stdin:
        print(*(run.take() for run in runs), flush=True)


def main() -> None:
    """Answer one request."""
    request = Request.from_json(sys.argv[1])
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        cap = int(request.memory_gib * 2**30)
        resource.setrlimit(resource.RLIMIT_AS, (cap, cap))
    try:
        if sys.argv[2:] == ["--turns"]:
            take_turns(request)
            return
        answer = {"status": "ok"} | measure(request)
    except MemoryError:
        answer = {"status": OUT_OF_MEMORY}
    except Exception as error:
        short = f"error: {type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"
        answer = {"status": OUT_OF_MEMORY if lacks_memory(str(error)) else short}
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
