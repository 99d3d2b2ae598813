"""Person re-identification with re-ranking at Market-1501's sizes: time and memory of the whole evaluation.

The data are random: 750 people seen by 6 cameras, each with a shift of its own, and a sixth of the gallery nobody
searches for.
"""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from benchmarks.measure import Candidate, peak_extra_bytes
from benchmarks.results import ROOT, Stamped, append, stamp
from nearfar.evaluation import KReciprocal, augment_database, expand_queries, rank_metrics, retrieval_metrics

CSV = ROOT / "benchmarks" / "results" / "reranking.csv"
QUERIES, GALLERY, DISTRACTORS = 3_368, 15_913, 2_793
PEOPLE, CAMERAS = 750, 6
LIMIT = "all with all: one matrix product"


@dataclass(frozen=True)
class People:
    """Embeddings, who it is (0 for a distractor), and which camera."""

    embeddings: npt.NDArray[np.float32]
    labels: npt.NDArray[np.int64]
    cameras: npt.NDArray[np.int64]


@dataclass(frozen=True)
class Row(Stamped):
    """One measurement; `peak_mb` is memory beyond the embeddings."""

    queries: int
    gallery: int
    dimension: int
    method: str
    seconds: float
    peak_mb: float | None
    recall_at_1: float | None
    map: float | None


def people(count: int, distractors: int, dimension: int, seed: int) -> People:
    """The same people and cameras whatever the seed, which draws the pictures."""
    fixed, rng = np.random.default_rng(0), np.random.default_rng(seed)
    centres = fixed.standard_normal((PEOPLE + 1, dimension), dtype=np.float32)
    shifts = 0.5 * fixed.standard_normal((CAMERAS, dimension), dtype=np.float32)
    labels = np.concatenate([np.zeros(distractors, np.int64), rng.integers(1, PEOPLE + 1, count - distractors)])
    cameras = rng.integers(0, CAMERAS, count)
    embeddings = centres[labels] + shifts[cameras]
    embeddings[:distractors] += 2 * rng.standard_normal((distractors, dimension), dtype=np.float32)
    # Cosines of strangers spread over 1 / sqrt(dimension): with this the task is about as hard at every dimension.
    noise = 0.5 * dimension**0.25
    for start in range(0, count, 1024):
        part = embeddings[start : start + 1024]
        part += noise * rng.standard_normal(part.shape, dtype=np.float32)
    return People(embeddings, labels, cameras)


def methods(queries: People, gallery: People) -> dict[str, Callable[[], dict[str, float]]]:
    """What is measured: each gives its metrics."""
    labelled: dict[str, Any] = {
        "labels": queries.labels,
        "gallery_labels": gallery.labels,
        "ks": (1, 5, 10),
        "cameras": queries.cameras,
        "gallery_cameras": gallery.cameras,
    }
    q, g = queries.embeddings, gallery.embeddings

    def limit() -> dict[str, float]:
        x = np.concatenate([q, g])
        for start in range(0, len(x), 1024):
            x[start : start + 1024] @ x.T
        return {}

    def expanded() -> dict[str, float]:
        wider = augment_database(g, k=5)
        return retrieval_metrics(expand_queries(q, wider, k=5), gallery=wider, **labelled)

    return {
        LIMIT: limit,
        "no re-ranking": lambda: retrieval_metrics(q, gallery=g, **labelled),
        "query expansion and database augmentation": expanded,
        "k-reciprocal": lambda: rank_metrics(KReciprocal(q, g), tolerance=1e-6, **labelled),
    }


def measure(dimension: int, scale: float = 1.0, out: Path | None = CSV) -> list[Row]:
    """Every method once for its time, once more for its memory."""
    counts = [max(1, int(count * scale)) for count in (QUERIES, GALLERY, DISTRACTORS)]
    queries = people(counts[0], 0, dimension, seed=1)
    gallery = people(counts[1], counts[2], dimension, seed=2)
    times: dict[str, tuple[float, dict[str, float]]] = {}
    for method, run in methods(queries, gallery).items():
        start = time.perf_counter()
        found = run()
        times[method] = time.perf_counter() - start, found
    rows = []
    for method, run in methods(queries, gallery).items():  # after all times: measuring memory slows the allocator
        seconds, found = times[method]
        peak = peak_extra_bytes(Candidate(run), repeats=1)
        row = Row(
            **stamp(torch.get_num_threads()),  # type: ignore[arg-type]
            queries=counts[0],
            gallery=counts[1],
            dimension=dimension,
            method=method,
            seconds=round(seconds, 2),
            peak_mb=None if peak is None else round(peak / 1e6, 1),
            recall_at_1=round(found["recall@1"], 4) if found else None,
            map=round(found["map"], 4) if found else None,
        )
        rows.append(row)
        print(describe(row), file=sys.stderr, flush=True)
        if out is not None:
            append(row, out)
    return rows


def describe(row: Row) -> str:
    """A row in a few words."""
    memory = "" if row.peak_mb is None else f", {row.peak_mb:,.0f} MB"
    score = "" if row.map is None else f"; recall@1 {row.recall_at_1:.1%}, mAP {row.map:.1%}"
    sizes = f"{row.queries:,} x {row.gallery:,} x {row.dimension}"
    return f"{sizes}, {row.method}: {row.seconds:.1f} s{memory}{score}"
