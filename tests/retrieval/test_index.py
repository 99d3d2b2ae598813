"""What every index can do, checked on both engines against naive loops."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nearfar.retrieval.index import About, Index, RetrievalError, WrongModelError, index_exists, make_index, open_index
from tests.retrieval.making import names, vectors

LABELS = ["cat", "dog", ""]


@pytest.fixture(params=["folder", "milvus"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "index") if request.param == "folder" else f"milvus:{tmp_path / 'gallery.db'}"


def about(**changes: Any) -> About:
    return About(**{"kind": "exact", "similarity": "cosine", "dimension": 16, "model": "m", **changes})


def filled(where: str, count: int = 60, **changes: Any) -> Index:
    index = make_index(where, about(**changes))
    with index.change() as change:
        change.put(names(count), vectors(count), [LABELS[n % 3] for n in range(count)], [f"s{n}" for n in range(count)])
    return index


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float(sum(x * y for x, y in zip(a, b, strict=True)) / (np.sqrt(sum(a * a)) * np.sqrt(sum(b * b))))


def nearest(query: np.ndarray, kept: dict[str, np.ndarray], k: int) -> list[tuple[str, float]]:
    """By comparing with each, one after the other."""
    scored = [(name, cosine(query.astype(float), vector.astype(float))) for name, vector in kept.items()]
    return sorted(scored, key=lambda pair: -pair[1])[:k]


def assert_finds(index: Index, kept: dict[str, np.ndarray], k: int = 5) -> None:
    queries = vectors(4, seed=9)
    found = index.search(queries, k)
    for query, hits in zip(queries, found, strict=True):
        expected = nearest(query, kept, k)
        assert [hit.id for hit in hits] == [name for name, _ in expected]
        assert [hit.similarity for hit in hits] == pytest.approx([s for _, s in expected], abs=1e-5)


def test_it_finds_what_comparing_with_each_finds(where: str) -> None:
    index = filled(where)
    assert len(index) == 60
    assert_finds(index, dict(zip(names(60), vectors(60), strict=True)))
    assert [hit.label for hit in index.search(vectors(1), 1)[0]] == ["cat"]  # of number 0, by itself
    index.close()


def test_add_replace_and_remove_and_what_is_there_when_opened_again(where: str) -> None:
    index = filled(where)
    kept = dict(zip(names(60), vectors(60), strict=True))
    fresh = vectors(8, seed=5)
    with index.change() as change:
        assert change.remove([names(60)[0], names(60)[7], "nowhere", names(60)[0]]) == 2
        change.put([names(60)[1], "new 'one'"], fresh[:2], ["horse", 'b"ee'])
    del kept[names(60)[0]], kept[names(60)[7]]
    kept |= {names(60)[1]: fresh[0], "new 'one'": fresh[1]}
    for opened in (index, None):
        if opened is None:
            index.close()
            opened = open_index(where)
        assert len(opened) == 59
        assert_finds(opened, kept, k=59)
        assert names(60)[0] not in opened and "new 'one'" in opened
        assert [item.label for item in opened.items([names(60)[1], "new 'one'"])] == ["horse", 'b"ee']
        assert {item.id for item in opened.listed()} == set(kept)
        pieces = [(name, row) for ids, rows in opened.pieces() for name, row in zip(ids, rows, strict=True)]
        assert len(pieces) == 59
        for name, row in pieces:
            assert row == pytest.approx(kept[name] / np.linalg.norm(kept[name]), abs=1e-6)
        stored = opened.vectors([names(60)[1], names(60)[2]])
        assert stored[0] == pytest.approx(fresh[0] / np.linalg.norm(fresh[0]), abs=1e-6)
    opened.close()


def test_in_one_change_the_last_word_counts(where: str) -> None:
    index = make_index(where, about())
    x = vectors(6)
    with index.change() as change:
        change.put(["a", "c", "d"], x[3:6])
    with index.change() as change:
        change.put(["a", "b", "d"], x[:3])
        assert change.remove(["d"]) == 1
        change.put(["a", "c"], x[2:4])
        assert change.remove(["b", "z"]) == 1
        change.put(["b"], x[4:5])
        assert change.remove(["c"]) == 1
    assert_finds(index, {"a": x[2], "b": x[4]}, k=9)
    index.close()


def test_thresholds_k_and_an_empty_index(where: str) -> None:
    index = make_index(where, about(threshold={"threshold": 0.25, "target": "far"}))
    assert index.search(vectors(2), 3) == [[], []]
    assert len(index) == 0
    x = vectors(5)
    with index.change() as change:
        change.put(names(5), x)
    assert len(index.search(x[:1], 50)[0]) == 5
    everything = index.search(x[:1], 5)[0]
    bound = everything[1].similarity
    assert [hit.id for hit in index.search(x[:1], 5, threshold=bound - 1e-4)[0]] == [hit.id for hit in everything[:2]]
    assert index.search(x[:1], 5, threshold=1.1) == [[]]
    assert index.about.threshold == {"threshold": 0.25, "target": "far"}
    index.set_threshold({"threshold": 0.5})
    assert index.about.threshold == {"threshold": 0.5}
    index.close()
    assert open_index(where).about.threshold == {"threshold": 0.5}


def test_what_need_not_be_put_again(where: str) -> None:
    index = filled(where)
    ids = [*names(4), "new"]
    with index.change() as change:
        known = change.known(ids, ["s0", "other", "s2", "", "s"], ["cat", "dog", "", "cat", ""])
        assert known.tolist() == [True, False, True, False, False]
    assert len(index) == 60
    index.close()


def test_codes_are_compared_by_their_bits(where: str) -> None:
    index = filled(where, similarity="hamming", dimension=16)
    query = vectors(1, seed=3)[0]
    bits = {name: vector > 0 for name, vector in zip(names(60), vectors(60), strict=True)}
    expected = {name: 1 - 2 * sum((query > 0) != code) / 16 for name, code in bits.items()}
    hits = index.search(query[None], 60)[0]
    assert {hit.id: hit.similarity for hit in hits} == pytest.approx(expected, abs=1e-6)
    assert [hit.similarity for hit in hits] == sorted((hit.similarity for hit in hits), reverse=True)
    stored = index.vectors([names(60)[4]])[0]
    assert stored == pytest.approx(np.where(bits[names(60)[4]], 0.25, -0.25))
    index.close()


def test_another_model_is_refused(where: str) -> None:
    index = filled(where, count=3, run="runs/birds")
    index.check("m")
    with pytest.raises(WrongModelError, match=r"was made with another model \(runs/birds\).*--rebuild"):
        index.check("other")
    index.close()


def test_one_that_is_there_is_not_overwritten_by_chance(where: str) -> None:
    assert not index_exists(where)
    with pytest.raises(FileNotFoundError, match="there is no index"):
        open_index(where)
    filled(where, count=3).close()
    assert index_exists(where)
    with pytest.raises(RetrievalError, match="already has an index"):
        make_index(where, about())
    index = make_index(where, about(model="new"), replace=True)
    with index.change() as change:
        change.put(["only"], vectors(1))
    index.close()
    opened = open_index(where)
    assert opened.about.model == "new" and [item.id for item in opened.listed()] == ["only"]
    opened.close()


BAD = [
    (["a"], np.zeros((1, 7), np.float32), r"vectors must be \(N, 16\), not \(1, 7\)"),
    (["a"], np.zeros((1, 16), np.int64), "must be real numbers, not int64"),
    (["a"], np.full((1, 16), np.nan, np.float32), "row 0 is NaN or infinite: leave out"),
    (["a", "b"], np.zeros((1, 16), np.float32), "a vector, a label and a state for each"),
    (["a", "a"], np.zeros((2, 16), np.float32), "the ids of one call of put must be distinct"),
]


def test_bad_vectors_are_told_and_change_nothing(where: str) -> None:
    index = filled(where, count=3)
    for ids, given, message in BAD:
        with pytest.raises(RetrievalError, match=message), index.change() as change:  # noqa: PT012
            change.put(["b"], vectors(1))
            change.put(ids, given)
    assert sorted(item.id for item in index.listed()) == names(3)
    with pytest.raises(RetrievalError, match=r"queries must be \(N, 16\)"):
        index.search(np.zeros((1, 3), np.float32))
    with pytest.raises(RetrievalError, match="k must be"):
        index.search(vectors(1), 0)
    with pytest.raises(KeyError, match="there is no image nowhere in the index"):
        index.vectors(["nowhere"])
    index.close()


def test_both_engines_find_the_same(tmp_path: Path) -> None:
    x, queries = vectors(800, seed=1), vectors(25, seed=2)
    found = []
    for where in (str(tmp_path / "index"), f"milvus:{tmp_path / 'gallery.db'}"):
        index = make_index(where, about())
        with index.change() as change:
            change.put(names(800), x)
        with index.change() as change:
            change.remove(names(100))
            change.put(names(50, first=300), vectors(50, seed=4))
        found.append(index.search(queries, 20))
        index.close()
    for ours, theirs in zip(*found, strict=True):
        assert [hit.id for hit in ours] == [hit.id for hit in theirs]
        assert [hit.similarity for hit in ours] == pytest.approx([hit.similarity for hit in theirs], abs=1e-5)


def test_an_index_that_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(RetrievalError, match="there is no kind of index 'lsh': the kinds are exact, hnsw, ivfpq"):
        about(kind="lsh")
    with pytest.raises(RetrievalError, match="binary codes must be exact, not hnsw"):
        about(kind="hnsw", similarity="hamming")
    with pytest.raises(RetrievalError, match="dimension must be at least 1"):
        about(dimension=0)
    with pytest.raises(RetrievalError, match="similarity must be"):
        about(similarity="l2")
    with pytest.raises(RetrievalError, match="an index in Milvus must be exact or hnsw, not ivfpq"):
        make_index(f"milvus:{tmp_path / 'gallery.db'}", about(kind="ivfpq"))
