"""How often a comparison of equals claims a difference, by simulation.

    python -m benchmarks claims

Two contestants that are equal on the mean of all classes and runs, measured on the same queries of C classes by S runs
each. Drawn are what one does better than the other in a class, what a run is better by, what a run makes of a class,
and queries. A cell says how often 0 is outside the 95 % interval: by `class_mean`, and by Student's t of the queries,
of the classes, or of the runs only. The table goes into docs/compare.md.
"""

import math
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.results import ROOT
from nearfar.evaluation import student
from nearfar.evaluation.class_means import class_mean

DRAWS = 2000
OF_CLASS, OF_CELL, OF_QUERY, QUERIES = 0.02, 0.01, 0.05, 10  # standard deviations; queries of a class
OF_RUN = (0.002, 0.01)
CLASSES, RUNS = (10, 30, 100), (2, 3, 5, 9)
BY = ("classes and runs", "queries", "classes", "runs")


def drawn(g: np.random.Generator, runs: int, classes: int, of_run: float) -> NDArray[np.float64]:
    """Differences (runs, queries) of two contestants that are equal."""
    run = g.normal(0, of_run * math.sqrt(2), (runs, 1))
    cell = g.normal(0, OF_CELL * math.sqrt(2), (runs, classes)) + g.normal(0, OF_CLASS, classes)
    query = g.normal(0, OF_QUERY, classes * QUERIES) + g.normal(0, OF_QUERY, (runs, classes * QUERIES))
    return run + np.repeat(cell, QUERIES, 1) + query


def cell(runs: int, classes: int, of_run: float, draws: int = DRAWS) -> list[float]:
    """The share of draws in which a difference is claimed, for each of `BY`."""
    g = np.random.default_rng([runs, classes, round(1e6 * of_run)])
    labels = np.repeat(np.arange(classes), QUERIES)
    claims = np.zeros(len(BY))
    for _ in range(draws):
        values = drawn(g, runs, classes, of_run)
        by_query = values.mean(0)
        samples = (by_query, by_query.reshape(classes, QUERIES).mean(1), values.mean(1))
        p_values = [class_mean(values, labels).p_value, *map(_students, samples)]
        claims += np.array(p_values) < 0.05
    return list(claims / draws)


def _students(sample: NDArray[np.float64]) -> float:
    error = sample.std(ddof=1) / math.sqrt(len(sample))
    return student.beyond(float(sample.mean()), ((float(error), len(sample) - 1),))


def table(draws: int = DRAWS) -> str:
    """Markdown, of all cells."""
    from benchmarks.tables import markdown

    rows = []
    for of_run in OF_RUN:
        for classes in CLASSES:
            for runs in RUNS:
                shares = [f"{100 * share:.1f} %" for share in cell(runs, classes, of_run, draws)]
                rows.append([f"{of_run:g}", str(classes), str(runs), *shares])
                print(*rows[-1], flush=True)
    return markdown(["standard deviation of runs", "classes", "runs", *(f"by {name}" for name in BY)], rows)


def measure(draws: int = DRAWS, root: Path = ROOT) -> int:
    """All cells, printed, and written into the page; 1 if it has no place for them."""
    from benchmarks.tables import replace

    found = table(draws)
    return int(not replace(root / "docs" / "compare.md", found)) if draws >= DRAWS else 0
