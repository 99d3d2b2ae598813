"""Time and memory of retrieval metrics, beside FAISS's exact search alone and pytorch-metric-learning's calculator.

The unit of time is FAISS's `IndexFlatIP` search at k = max(ks, largest class), in the same process and in turn with the
others: what a calculator built on lists of neighbours cannot do without. Data are clustered: classes of 2 to 12 items
as in the test set of Stanford Online Products, 5.3 on average.

Every implementation is measured in a process of its own, `python -m benchmarks.evaluation CASE IMPLEMENTATION`, which
prints a row's measured columns as JSON.
"""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from benchmarks.measure import QUICK, THOROUGH, Candidate, Effort, cores, in_turn, peak_extra_bytes
from benchmarks.results import ROOT, Row, append, stamp, without_paths

CSV = ROOT / "benchmarks" / "results" / "evaluation.csv"
KS = (1, 2, 4, 8)
PER_CLASS, LARGEST = 60_502 / 11_316, 12  # of Stanford Online Products' test set
IMPLEMENTATIONS = ("nearfar", "pml", "limit")


@dataclass(frozen=True)
class Case:
    """Leave-one-out among `items`, or `queries` against a gallery of `items`.

    `noise` is the length of what is added to a class's unit vector: with 1.5 most matches come first, with 2.5 every
    other query finds one first and most later matches are far down.
    """

    items: int
    dimension: int
    queries: int = 0
    noise: float = 1.5

    @property
    def name(self) -> str:
        """As on the command line and in the CSV file: retrieval-60502x512-noise1.5."""
        sizes = (self.queries, self.items, self.dimension) if self.queries else (self.items, self.dimension)
        return f"retrieval-{'x'.join(map(str, sizes))}-noise{self.noise:g}"


QUICK_CASES = [Case(2_000, 64)]
CASES = [Case(10_000, 512), Case(10_000, 512, noise=2.5), Case(60_502, 512), Case(60_502, 512, noise=2.5)]
LARGE = Case(1_000_000, 128, queries=10_000)
BY_NAME = {case.name: case for case in (*QUICK_CASES, *CASES, LARGE)}


@dataclass(frozen=True)
class Problem:
    """Unit vectors and labels; without queries of their own, items search each other."""

    embeddings: Tensor
    labels: Tensor
    gallery: Tensor | None = None
    gallery_labels: Tensor | None = None

    @property
    def searched(self) -> tuple[Tensor, Tensor]:
        if self.gallery is None or self.gallery_labels is None:
            return self.embeddings, self.labels
        return self.gallery, self.gallery_labels

    @property
    def k(self) -> int:
        """How many neighbours decide recall@k, r-precision and map@r."""
        return max(*KS, int(torch.bincount(self.searched[1]).max()))


def problem(case: Case, seed: int = 0) -> Problem:
    """Classes of 2 to 12 items in random order."""
    generator = torch.Generator().manual_seed(seed)
    classes = round(case.items / PER_CLASS)
    sizes = torch.full((classes,), 2)
    while (missing := case.items - int(sizes.sum())) > 0:
        more = torch.randint(classes, (missing,), generator=generator)
        sizes = (sizes + torch.bincount(more, minlength=classes)).clamp_max(LARGEST)
    labels = torch.arange(classes).repeat_interleave(sizes)
    labels = labels[torch.randperm(len(labels), generator=generator)]
    centres = normalize(torch.randn(classes, case.dimension, generator=generator))

    def vectors(of: Tensor) -> Tensor:
        noise = normalize(torch.randn(len(of), case.dimension, generator=generator))
        return normalize(noise.mul_(case.noise).add_(centres[of]))

    if not case.queries:
        return Problem(vectors(labels), labels)
    own = labels[torch.randperm(len(labels), generator=generator)[: case.queries]]
    return Problem(vectors(own), own, vectors(labels), labels)


def faiss_search(data: Problem) -> Callable[[], object]:
    """The limit: an exact search, and nothing made of it."""
    import faiss

    gallery, queries, k = data.searched[0].numpy(), data.embeddings.numpy(), data.k

    def run() -> None:
        index = faiss.IndexFlatIP(gallery.shape[1])
        index.add(gallery)
        index.search(queries, k)

    return run


def nearfar_metrics(data: Problem) -> Callable[[], object]:
    """Every metric but nmi and ami."""
    from nearfar.evaluation import retrieval_metrics

    return lambda: retrieval_metrics(
        data.embeddings, data.labels, KS, gallery=data.gallery, gallery_labels=data.gallery_labels, progress=False
    )


def pml_metrics(data: Problem) -> Callable[[], object]:
    """pytorch-metric-learning's, except nmi and ami; k as the limit has it, so its map and mrr stop there."""
    from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator

    calculator = AccuracyCalculator(
        include=(
            "precision_at_1",
            "r_precision",
            "mean_average_precision_at_r",
            "mean_average_precision",
            "mean_reciprocal_rank",
        ),
        k=data.k,
        device=torch.device("cpu"),
    )
    reference = {} if data.gallery is None else {"reference": data.gallery, "reference_labels": data.gallery_labels}
    return lambda: calculator.get_accuracy(data.embeddings, data.labels, **reference)


MAKERS = {"nearfar": nearfar_metrics, "pml": pml_metrics, "limit": faiss_search}


def measure(case: Case, implementation: str, effort: Effort) -> dict[str, Any]:
    """The measured columns of a row."""
    import faiss

    torch.set_num_threads(cores())
    faiss.omp_set_num_threads(cores())
    data = problem(case)
    run, limit = MAKERS[implementation](data), faiss_search(data)
    times, limits = in_turn(lambda: (run(), None)[1], lambda: (limit(), None)[1], effort)
    peak = peak_extra_bytes(Candidate(run), repeats=1)
    p20, p50, p80 = (round(1000 * times.quantile(q), 3) for q in (0.2, 0.5, 0.8))
    return {
        "p20_ms": p20,
        "p50_ms": p50,
        "p80_ms": p80,
        "limit_ms": round(1000 * limits.quantile(0.5), 3),
        "ratio": round(times.quantile(0.5) / limits.quantile(0.5), 3),
        "peak_mb": None if peak is None else round(peak / 1e6, 1),
        "note": f"{len(times.seconds)} repeats, k = {data.k}",
    }


def run(cases: list[Case], implementations: list[str], out: Path | None, *, quick: bool, seconds: float) -> int:
    """One process for each case and implementation; a row each, appended if there is a file."""
    for case in cases:
        for implementation in implementations:
            command = [sys.executable, "-m", "benchmarks.evaluation", case.name, implementation, *(["quick"] * quick)]
            measured: dict[str, Any]
            try:
                done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=seconds)
                if done.returncode == 0:
                    measured = {"status": "ok"} | json.loads(done.stdout.splitlines()[-1])
                else:
                    last = (done.stderr.strip().splitlines() or [f"ended with {done.returncode}"])[-1]
                    measured = {"status": f"error: {without_paths(last)}"}
            except subprocess.TimeoutExpired:
                measured = {"status": "timeout"}
            row = Row(**stamp(), case=case.name, loss="retrieval", implementation=implementation, **measured)  # type: ignore[arg-type]
            if out is not None:
                append(row, out)
            told = row.status
            if row.p50_ms is not None:
                told = f"{row.p50_ms / 1000:.2f} s = {row.ratio:.2f} × FAISS's search, {row.peak_mb} MB"
            print(f"{case.name} {implementation}: {told}", file=sys.stderr, flush=True)
    return 0


if __name__ == "__main__":
    wanted, which, *rest = sys.argv[1:]
    print(json.dumps(measure(BY_NAME[wanted], which, QUICK if rest else THOROUGH)))
