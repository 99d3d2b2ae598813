"""What three processes check: that they find together, digit for digit, what one finds."""

from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from nearfar.evaluation import distributed_retrieval_metrics, retrieval_metrics
from tests.losses.distributed.processes import Check

N, G, DIMENSION = 90, 140, 12
PARTS = {"queries": (0, 17, 60, N), "gallery": (0, 1, 93, G)}  # uneven: one process has one item of the gallery


def embeddings(n: int, seed: int) -> np.ndarray:
    """With some that are equal, so that there are ties across processes."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, DIMENSION)).astype(np.float32)
    x[rng.integers(n, size=n // 4)] = x[rng.integers(n, size=n // 4)]
    return x


QUERIES, GALLERY = embeddings(N, 0), embeddings(G, 1)
GALLERY[:20] = QUERIES[:20]
LABELS, GALLERY_LABELS = np.arange(N) % 13, np.random.default_rng(2).integers(-1, 15, G)
CAMERAS, GALLERY_CAMERAS = np.arange(N) % 3, np.arange(G) % 4
NAMES = np.array([f"name {label}" for label in LABELS])
REID = {"gallery": GALLERY, "gallery_labels": GALLERY_LABELS, "cameras": CAMERAS, "gallery_cameras": GALLERY_CAMERAS}

CASES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "each other": (QUERIES, LABELS, {}),
    "each other, by names, doubles, ties for the model": (
        QUERIES.astype(np.float64), NAMES, {"ties": "optimistic", "ks": (1, 3)},
    ),
    "tensors, dot products, ids": (
        torch.from_numpy(QUERIES) * 3, torch.from_numpy(LABELS), {"similarity": "dot", "ids": np.arange(N) // 2},
    ),
    "distances, in small tiles and blocks": (
        QUERIES, LABELS, {"similarity": "l2", "tile": 7, "memory_budget": 2000, "per_query": True},
    ),
    "a gallery with cameras and junk": (QUERIES, LABELS, REID),
    "intervals, in small blocks": (QUERIES, LABELS, {**REID, "ci": True, "tile": 8, "memory_budget": 0}),
    "one metric": (QUERIES, LABELS, {"metrics": "map@r", "tile": 16}),
}  # fmt: skip


def part(values: Any, rows: tuple[int, ...]) -> Any:
    return values[rows[dist.get_rank()] : rows[dist.get_rank() + 1]]


def checks() -> dict[str, Check]:
    def check(case: str, holds: str) -> Check:
        x, labels, options = CASES[case]
        expected = retrieval_metrics(x, labels, **options)
        given = dict(options)
        if holds == "part":
            x, labels = part(x, PARTS["queries"]), part(labels, PARTS["queries"])
            for name in ("cameras", "ids"):
                if name in given:
                    given[name] = part(given[name], PARTS["queries"])
            for name in ("gallery", "gallery_labels", "gallery_cameras"):
                if name in given:
                    given[name] = part(given[name], PARTS["gallery"])

        def run() -> None:
            found = distributed_retrieval_metrics(x, labels, holds=holds, progress=False, **given)
            assert found.keys() == expected.keys()
            for name, value in expected.items():
                if name == "per_query":
                    for metric, values in value.items():
                        np.testing.assert_array_equal(found[name][metric], values)
                elif name == "query_labels":
                    np.testing.assert_array_equal(found[name], value)
                else:
                    assert found[name] == value, (name, found[name], value)
            assert 0 < expected.get("recall@1", 0.5) < 1

        return run

    return {
        **{f"{case}, each has {holds}": check(case, holds) for case in CASES for holds in ("all", "part")},
        "a process without a part": no_part,
        "labels of some alone": some_cameras,
    }


def no_part() -> None:
    rows = QUERIES[: 0 if dist.get_rank() == 1 else 5]
    with pytest.raises(ValueError, match="process 1 has no gallery"):
        distributed_retrieval_metrics(rows, LABELS[: len(rows)])


def some_cameras() -> None:
    cameras = CAMERAS if dist.get_rank() == 1 else None
    with pytest.raises(ValueError, match="that others do not"):
        distributed_retrieval_metrics(QUERIES, LABELS, cameras=cameras)
