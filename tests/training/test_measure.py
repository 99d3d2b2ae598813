"""Embeddings of a table, measured by their codes: queries against a gallery with cameras, and lists of pairs, in loops."""

from dataclasses import replace

import numpy as np
import pytest

from nearfar.data import SPLITS, Pairs, Table
from nearfar.training.measure import measure
from tests.training.making import patterns

BITS = 12  # no multiple of 8


def made(rows: int = 40) -> tuple[Table, np.ndarray]:
    """Five classes in two cameras, every other row a query; with an unreadable row and distances that tie."""
    rng = np.random.default_rng(0)
    table = patterns(classes=5, each=rows // 5)
    ids = np.where(np.arange(rows) % 2, SPLITS.index("gallery"), SPLITS.index("query")).astype(np.int8)
    centres = rng.normal(size=(5, BITS))
    x = (centres[table.labels] + rng.normal(size=(rows, BITS))).astype(np.float32)
    x[7] = np.nan
    return replace(table, split_ids=ids, columns={"camera": rng.integers(0, 3, rows)}), x


def hamming(a: np.ndarray, b: np.ndarray) -> int:
    return sum((p > 0) != (q > 0) for p, q in zip(a.tolist(), b.tolist(), strict=True))


def test_codes_against_a_gallery_with_cameras() -> None:
    table, x = made()
    labels, camera = table.labels.tolist(), table.columns["camera"].tolist()
    hits = []
    for q in range(0, len(x), 2):
        there = [g for g in range(1, len(x), 2) if g != 7 and not (labels[g] == labels[q] and camera[g] == camera[q])]
        same = [hamming(x[q], x[g]) for g in there if labels[g] == labels[q]]
        other = [hamming(x[q], x[g]) for g in there if labels[g] != labels[q]]
        if same:
            hits.append(min(same) < min(other))  # a tie counts against the match
    found = measure(x, table, (1,), binary=True, per_query=True)
    assert found["recall@1"] == pytest.approx(np.mean(hits))
    assert 0 < np.mean(hits) < 1
    cosines = measure(x, table, (1,))
    assert found["cosine recall@1"] == cosines["recall@1"] != found["recall@1"]
    assert len(found["per_query"]["recall@1"]) == len(found["query_labels"]) == 20


@pytest.mark.filterwarnings("ignore:FAR")
def test_codes_of_pairs() -> None:
    """The accuracy of the best threshold of Hamming distance; equal distances fall on one side of it."""
    table, x = made()
    first, second = (part.ravel() for part in np.triu_indices(len(x), 1))
    same = table.labels[first] == table.labels[second]
    table = replace(table, pairs={"all": Pairs(first, second, same, np.zeros(len(first), np.int64))})
    there = [row for row in range(len(first)) if 7 not in (first[row], second[row])]
    distances = [hamming(x[first[row]], x[second[row]]) for row in there]
    best = max(
        np.mean([(d <= most) == same[row] for d, row in zip(distances, there, strict=True)])
        for most in range(-1, BITS + 1)
    )
    found = measure(x, table, (1,), binary=True)
    assert found["all accuracy"] == pytest.approx(best)
    assert "cosine all accuracy" in found
    accepted = [1 - 2 * d / BITS >= found["all threshold"] for d in distances]
    assert np.mean([yes == same[row] for yes, row in zip(accepted, there, strict=True)]) == pytest.approx(best)
