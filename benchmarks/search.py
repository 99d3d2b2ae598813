"""An index of nearfar against bare FAISS: building, opening, single queries, batches, and memory.

Each is measured in a process of its own, in turn, several times over: the vectors arrive in blocks, as from a network,
and are on the disk, flushed, when the build is done; then another process opens what was built and searches it. Bare
FAISS is an `IndexFlatIP` (or `IndexHNSWFlat`), `add`, `write_index`, `read_index`: it keeps numbers alone, where an
index of nearfar keeps paths, labels and states of the images too. Memory is the peak of the process beyond what it has
when everything is imported.
"""

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.results import ROOT, Stamped, append, stamp

CSV = ROOT / "benchmarks" / "results" / "search.csv"
IMPLEMENTATIONS = ("faiss", "nearfar")
BLOCK = 4096  # vectors at a time
SINGLE, BATCH, K = 50, 512, 10


@dataclass(frozen=True)
class Row(Stamped):
    """One implementation, the median of the rounds; memory in megabytes."""

    kind: str
    gallery: int
    dimension: int
    implementation: str
    build_s: float
    open_s: float
    query_ms: float
    batch_s: float
    build_mb: float
    search_mb: float
    disk_mb: float


def blocks(count: int, dimension: int) -> Iterator[tuple[int, NDArray[np.float32]]]:
    """Unit vectors around 1,000 centres, and where they begin."""
    centres = np.random.default_rng(0).standard_normal((1000, dimension), dtype=np.float32)
    for start in range(0, count, BLOCK):
        rng = np.random.default_rng(start + 1)
        size = min(BLOCK, count - start)
        x = centres[rng.integers(0, 1000, size)] + 0.7 * rng.standard_normal((size, dimension), dtype=np.float32)
        yield start, x / np.linalg.norm(x, axis=1, keepdims=True)


def name(row: int) -> str:
    return f"/data/photographs/{row // 100:05}/{row:07}.jpg"


def build_faiss(folder: Path, kind: str, count: int, dimension: int) -> float:
    import faiss

    from nearfar.retrieval import structures

    module: Any = faiss
    if kind == "hnsw":
        index = module.IndexHNSWFlat(dimension, structures.LINKS, module.METRIC_INNER_PRODUCT)
        index.hnsw.efConstruction = structures.EFFORT_BUILDING
    else:
        index = module.IndexFlatIP(dimension)
    seconds = 0.0
    for _, x in blocks(count, dimension):
        began = time.perf_counter()
        index.add(x)
        seconds += time.perf_counter() - began
    began = time.perf_counter()
    module.write_index(index, str(folder / "index.faiss"))
    with (folder / "index.faiss").open("rb") as file:
        os.fsync(file.fileno())
    return seconds + time.perf_counter() - began


def build_nearfar(folder: Path, kind: str, count: int, dimension: int) -> float:
    from nearfar.retrieval.index import About, make_index

    index = make_index(folder / "index", About(kind, "cosine", dimension, "model"))  # type: ignore[arg-type]
    seconds = 0.0
    change_of = index.change()
    change = change_of.__enter__()
    for start, x in blocks(count, dimension):
        ids = [name(start + row) for row in range(len(x))]
        labels, states = [f"class {row % 100}" for row in range(len(x))], ids
        began = time.perf_counter()
        change.put(ids, x, labels, states)
        seconds += time.perf_counter() - began
    began = time.perf_counter()
    change_of.__exit__(None, None, None)
    return seconds + time.perf_counter() - began


def search_with(implementation: str, folder: Path, kind: str, dimension: int) -> dict[str, float]:
    """Seconds to open, milliseconds of a query (median), seconds of a batch."""
    _, x = next(blocks(BATCH, dimension))
    began = time.perf_counter()
    if implementation == "faiss":
        import faiss

        from nearfar.retrieval import structures

        module: Any = faiss
        opened: Any = module.read_index(str(folder / "index.faiss"))
        parameters = module.SearchParametersHNSW(efSearch=structures.EFFORT) if kind == "hnsw" else None

        def search(queries: NDArray[np.float32]) -> object:
            return opened.search(queries, K, params=parameters)
    else:
        from nearfar.retrieval.index import open_index

        index = open_index(folder / "index")

        def search(queries: NDArray[np.float32]) -> object:
            return index.search(queries, K)

    search(x[:1])  # so that both have read their files
    opening = time.perf_counter() - began
    times = []
    for row in range(SINGLE):
        began = time.perf_counter()
        search(x[row : row + 1])
        times.append(time.perf_counter() - began)
    began = time.perf_counter()
    search(x)
    return {
        "open_s": opening,
        "query_ms": statistics.median(times) * 1000,
        "batch_s": time.perf_counter() - began,
    }


def worker(step: str, implementation: str, folder: Path, kind: str, count: int, dimension: int) -> dict[str, float]:
    """Run in a process of its own."""
    import faiss  # noqa: F401, before the memory is looked at

    from nearfar.retrieval import faiss_index, index  # noqa: F401

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if step == "build":
        build = build_faiss if implementation == "faiss" else build_nearfar
        found = {"build_s": build(folder, kind, count, dimension)}
        found["disk_mb"] = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6
    else:
        found = search_with(implementation, folder, kind, dimension)
    found[f"{step}_mb"] = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1000
    return found


def measure(kind: str, count: int, dimension: int, rounds: int, out: Path | None) -> list[Row]:
    """Both, in turn."""
    found: dict[str, list[dict[str, float]]] = {name: [] for name in IMPLEMENTATIONS}
    for _ in range(rounds):
        for implementation in IMPLEMENTATIONS:
            with tempfile.TemporaryDirectory() as folder:
                values: dict[str, float] = {}
                for step in ("build", "search"):
                    words = [step, implementation, folder, kind, str(count), str(dimension)]
                    command = [sys.executable, "-m", "benchmarks.search", *words]
                    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT)
                    values |= json.loads(done.stdout)
                found[implementation].append(values)
    rows = []
    for implementation, runs in found.items():
        medians = {key: round(statistics.median(run[key] for run in runs), 4) for key in runs[0]}
        about = {"kind": kind, "gallery": count, "dimension": dimension, "implementation": implementation}
        row = Row(**stamp(), **about, **medians)  # type: ignore[arg-type]
        rows.append(row)
        print(describe(row), file=sys.stderr, flush=True)
        if out is not None:
            append(row, out)
    return rows


def describe(row: Row) -> str:
    """A row in a few words."""
    return (
        f"{row.kind} {row.gallery:,} x {row.dimension}, {row.implementation}: build {row.build_s:.2f} s, "
        f"{row.build_mb:,.0f} MB; open {row.open_s:.2f} s; query {row.query_ms:.2f} ms; {BATCH} queries "
        f"{row.batch_s:.2f} s; {row.search_mb:,.0f} MB; disk {row.disk_mb:,.0f} MB"
    )


if __name__ == "__main__":
    arguments: list[str] = sys.argv[1:]
    print(json.dumps(worker(arguments[0], arguments[1], Path(arguments[2]), arguments[3], *map(int, arguments[4:]))))
