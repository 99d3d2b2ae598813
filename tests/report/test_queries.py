"""What queries find, against loops over single pairs."""

import numpy as np
import pytest

from nearfar.report import queries
from nearfar.report.queries import SearchResults, confusions, drawn_queries, examples, search


def naive(x, labels, query_rows, gallery, cameras, k):
    """For each query, the ranked rows with their cosines, one pair at a time."""
    found = {}
    for q in query_rows:
        ranked = []
        for g in gallery:
            if g == q or (cameras is not None and labels[g] == labels[q] and cameras[g] == cameras[q]):
                continue
            cosine = float(x[q].astype(np.float64) @ x[g] / (np.linalg.norm(x[q]) * np.linalg.norm(x[g])))
            ranked.append((-cosine, int(g)))
        ranked.sort()
        positive = [-s for s, g in ranked if labels[g] == labels[q]]
        negative = [-s for s, g in ranked if labels[g] != labels[q]]
        if positive and negative:
            found[int(q)] = ([g for _, g in ranked[:k]], positive[0], negative[0])
    return found


@pytest.mark.parametrize("with_cameras", [False, True])
@pytest.mark.parametrize("block", [1, 2**22])
def test_search_finds_what_single_pairs_say(with_cameras: bool, block: int, monkeypatch) -> None:
    monkeypatch.setattr(queries, "AT_A_TIME", block)
    rng = np.random.default_rng(3)
    x = rng.normal(size=(60, 5)).astype(np.float32) * rng.uniform(0.1, 9, (60, 1)).astype(np.float32)
    labels = rng.integers(0, 12, 60)
    labels[7] = 99  # alone: it has nothing to find
    cameras = rng.integers(0, 3, 60) if with_cameras else None
    asked, gallery = np.arange(0, 25), np.arange(10, 60)
    expected = naive(x, labels, asked, gallery, cameras, 6)
    found = search(x, labels, asked, gallery, cameras=cameras, k=6)
    assert found.queries.tolist() == list(expected)
    assert 7 not in expected and len(expected) > 10
    for place, (near, positive, negative) in enumerate(expected.values()):
        assert found.nearest[place].tolist() == near
        assert found.positive[place] == pytest.approx(positive, abs=1e-5)
        assert found.negative[place] == pytest.approx(negative, abs=1e-5)
    np.testing.assert_allclose(found.margin, found.positive - found.negative)


def test_ties_are_broken_by_the_lower_row_and_short_lists_end_with_minus_one() -> None:
    x = np.array([[1, 0], [1, 0], [1, 0], [0, 1]], np.float32)
    found = search(x, np.array([0, 0, 1, 1]), np.arange(2), np.arange(4), k=9)
    assert found.nearest.tolist() == [[1, 2, 3, -1], [0, 2, 3, -1]]
    assert search(x, np.array([0, 0, 1, 1]), np.arange(1), np.arange(4), k=1).nearest.tolist() == [[1]]


def test_a_zero_vector_is_as_far_from_all() -> None:
    x = np.array([[0, 0], [1, 0], [0, 1]], np.float32)
    found = search(x, np.array([0, 0, 1]), np.array([0]), np.arange(3), k=2)
    assert (found.positive, found.negative) == (0, 0)


def test_nothing_asked_nothing_found() -> None:
    x = np.eye(3, dtype=np.float32)
    found = search(x, np.arange(3), np.arange(0), np.arange(3), k=2)
    assert len(found.queries) == 0
    assert confusions(found, np.arange(3), 5) == []
    assert all(len(places) == 0 for places in examples(found, np.arange(3), 2).values())


def test_drawn_queries_are_few_where_the_gallery_is_large() -> None:
    rows = np.arange(0, 30_000, 3)
    assert drawn_queries(rows[:50], 10**9, 0).tolist() == rows[:50].tolist()
    few, many = drawn_queries(rows, 10**9, 0), drawn_queries(rows, 1000, 0)
    assert (len(few), len(many)) == (100, 2000)
    assert len(set(many)) == 2000 and set(many) <= set(rows)
    assert drawn_queries(rows, 1000, 0).tolist() == many.tolist() != drawn_queries(rows, 1000, 1).tolist()


def found_with(margins, nearest=None, similarity=None) -> SearchResults:
    n = len(margins)
    near = np.zeros((n, 1), np.int64) if nearest is None else np.array(nearest)[:, None]
    values = np.zeros((n, 1), np.float32) if similarity is None else np.array(similarity, np.float32)[:, None]
    return SearchResults(np.arange(n), near, values, np.array(margins, np.float32), np.zeros(n, np.float32))


def test_examples_by_hand() -> None:
    # The median of these is 0.1. Rows 0 and 1 are of one class, and so are 4 and 5.
    margins = [-0.9, -0.8, -0.5, 0.05, 0.1, 0.12, 0.3, 0.7, 0.9]
    labels = np.array([0, 0, 1, 2, 3, 3, 4, 5, 6])
    groups = examples(found_with(margins), labels, 2)
    assert list(groups) == ["best", "typical", "worst"]
    assert groups["best"].tolist() == [8, 7]
    assert groups["typical"].tolist() == [4, 3]
    assert groups["worst"].tolist() == [0, 2]


def test_a_query_is_in_one_group_only() -> None:
    groups = examples(found_with([0.1, 0.2, 0.3]), np.arange(3), 2)
    places = np.concatenate(list(groups.values())).tolist()
    assert sorted(places) == [0, 1, 2]


def test_confusions_by_hand() -> None:
    # Classes 0, 1, 2 with rows 0-2, 3-4, 5-6. Row 0 finds 3, row 1 finds 4, row 3 finds 0; row 5 finds 4.
    labels = np.array([0, 0, 0, 1, 1, 2, 2])
    found = found_with([0.0] * 7, [3, 4, 1, 0, 3, 4, 5], [0.5, 0.9, 0.8, 0.6, 0.7, 0.4, 0.3])
    first, second = confusions(found, labels, 5)
    assert (first.first, first.second, first.mistaken, first.queries, first.example) == (0, 1, 3, 5, (1, 4))
    assert (second.first, second.second, second.mistaken, second.queries, second.example) == (1, 2, 1, 4, (5, 4))
    assert confusions(found, labels, 1) == [first]
