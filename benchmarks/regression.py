"""The regression check: nearfar's ratios to the limit against the stored ones."""

import json
import sys
from pathlib import Path

from benchmarks.cases import CHECK
from benchmarks.results import ROOT, stamp
from benchmarks.run import jobs, run, warn_if_busy
from benchmarks.worker import Request

EXPECTED = ROOT / "benchmarks" / "results" / "expected.json"
LOSSES = {
    "class": ["ArcFaceLoss", "CircleLoss", "CosFaceLoss", "ProxyAnchorLoss", "SoftmaxLoss", "SphereFaceLoss"],
    "pair": ["CircleLoss", "ContrastiveLoss", "MultiSimilarityLoss", "NTXentLoss", "SupConLoss", "TripletMarginLoss"],
}
FACTOR, DIFFERENCE = 1.25, 0.05  # worse is what exceeds both
TRIES = 3  # noise makes a ratio worse now and then; a regression makes it worse every time
SECONDS = 300.0


def is_worse(ratio: float, expected: float) -> bool:
    """Whether the ratio is more than noise above what was stored."""
    return ratio > expected * FACTOR and ratio > expected + DIFFERENCE


def check(update: bool = False, path: Path = EXPECTED) -> int:
    """Measure the small set; 1 if anything got worse or failed. With `update`, store the ratios instead."""
    if not update and not path.exists():
        print(f"{path.name} does not exist: run `python -m benchmarks check --update` first", file=sys.stderr)
        return 1
    stored = {} if update else json.loads(path.read_text())
    expected: dict[str, float] = {} if update else stored["ratios"]
    here = stamp()
    if not update and stored["cpu"] != here["cpu"]:
        print(f"note: the stored ratios are from {stored['cpu']}, this is {here['cpu']}", file=sys.stderr)
    warn_if_busy()
    ratios: dict[str, float] = {}
    failures = 0
    print(f"{'case':24}{'loss':24}{'stored':>8}{'now':>8}  verdict")
    for case, loss, implementation in jobs([(case, LOSSES[case.level]) for case in CHECK], ["nearfar"]):
        key = f"{case},{loss}"
        before = expected.get(key)
        ratio, status = _measure(Request(case, loss, implementation), before)
        if ratio is None:
            verdict, failed = status, True
        elif update:
            ratios[key], verdict, failed = ratio, "stored", False
        elif before is None:
            verdict, failed = "not stored: run with --update", True
        else:
            failed = is_worse(ratio, before)
            verdict = f"WORSE by {ratio / before - 1:.0%}" if failed else "ok"
        failures += failed
        columns = "".join(f"{'–' if x is None else format(x, '.2f'):>8}" for x in (before, ratio))
        print(f"{case:24}{loss:24}{columns}  {verdict}", flush=True)
    if update and not failures:
        path.write_text(json.dumps({"cpu": here["cpu"], "torch": here["torch"], "ratios": ratios}, indent=2) + "\n")
    print(f"{failures} of the losses failed" if failures else "stored" if update else "no loss got slower")
    return int(failures > 0)


def _measure(request: Request, expected: float | None) -> tuple[float | None, str]:
    """The best ratio of up to three tries, which end as soon as one is good; and the status of the last."""
    best: float | None = None
    for _ in range(TRIES):
        row = run(request, SECONDS)
        if row.ratio is None:
            return None, row.status
        best = row.ratio if best is None else min(best, row.ratio)
        if expected is None or not is_worse(best, expected):
            break
    return best, "ok"
