"""An index in a folder: what kills, corruption and other processes do to it; approximate structures."""

import json
import math
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from nearfar.retrieval import change as changing
from nearfar.retrieval import structures
from nearfar.retrieval.faiss_index import FaissIndex
from nearfar.retrieval.index import About, BusyIndexError, DamagedIndexError, RetrievalError, make_index, open_index
from nearfar.retrieval.recall import measured_recall
from nearfar.retrieval.store import Store
from tests.retrieval.making import names, vectors

ROOT = Path(__file__).parent.parent.parent
ABOUT = About("exact", "cosine", 16, "m")


def filled(folder: Path, count: int, about: About = ABOUT, seed: int = 0) -> FaissIndex:
    index = FaissIndex.make(folder, about)
    with index.change() as change:
        change.put(
            names(count), vectors(count, about.dimension, seed), ["old"] * count, [f"s{n}" for n in range(count)]
        )
    return index


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


# Kills

# At the n-th flush to the disk the process is killed, for every n, until a change gets through.
KILLED = """
import os, signal, sys
import numpy as np
from pathlib import Path
from nearfar.retrieval import change as changing, store
from nearfar.retrieval.faiss_index import FaissIndex
from nearfar.retrieval.index import About, open_index
from tests.retrieval.making import names, vectors

folder = Path(sys.argv[1])
changing.SPILL_BYTES = 20 * 16 * 4  # every 20 rows
states = []
for dying in range(1, 60):
    child = os.fork()
    if child == 0:
        flush, left = os.fsync, [dying]
        def fsync(number):
            left[0] -= 1
            if not left[0]:
                os.kill(os.getpid(), signal.SIGKILL)
            flush(number)
        os.fsync = fsync
        index = open_index(folder)
        with index.change() as change:
            for start in range(0, 90, 30):
                change.put(names(30, start), vectors(30, seed=1 + start), ["new"] * 30)
            change.remove(names(10, 90))
        os._exit(0)
    _, status = os.waitpid(child, 0)
    found = [item.label for item in open_index(folder).listed()]
    states.append((found.count("old"), found.count("new")))
    if status == 0:
        break
print(states)
"""


def test_killed_at_any_moment_it_is_the_old_one_or_the_new_one(tmp_path: Path) -> None:
    filled(tmp_path / "index", 100)
    command = [sys.executable, "-c", KILLED, str(tmp_path / "index")]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT)
    states = json.loads(done.stdout.replace("(", "[").replace(")", "]"))
    assert len(states) > 8  # it was killed at many places
    assert states[0] == [100, 0] and states[-1] == [0, 90]
    assert {tuple(state) for state in states} == {(100, 0), (0, 90)}
    index = open_index(tmp_path / "index")
    with index.change() as change:  # what the killed ones have left is cleared away by who has looked at it
        assert not change.known(["nothing"], ["s"], [""])[0]
    parts = Store(tmp_path / "index").manifest().parts
    named = {f"{part.name}.{ending}" for part in parts for ending in (*part.files, part.dead) if ending}
    assert files(tmp_path / "index") == named | {"index.json", "lock"}


def test_an_interrupted_build_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changing, "SPILL_BYTES", 10 * 16 * 4)
    monkeypatch.setattr(changing, "SPILL_SECONDS", math.inf)
    ids, x, states = names(50), vectors(50), [f"s{n}" for n in range(50)]
    index = FaissIndex.make(tmp_path / "index", ABOUT)
    with pytest.raises(KeyboardInterrupt), index.change() as change:  # noqa: PT012
        for start in range(0, 40, 5):
            change.put(ids[start : start + 5], x[start : start + 5], ["a"] * 5, states[start : start + 5])
        raise KeyboardInterrupt
    assert len(index) == 0 and not Store(tmp_path / "index").exists()
    index = FaissIndex.make(tmp_path / "index", ABOUT)
    with index.change() as change:  # another change in between does not lose it
        change.put(["between"], vectors(1, seed=8))
    assert [item.id for item in index.listed()] == ["between"]
    with index.change() as change:
        known = change.known(ids, ["changed", *states[1:]], ["a"] * 49 + ["b"])
        assert known.tolist() == [False] + [True] * 39 + [False] * 10
        rest = np.flatnonzero(~known)
        change.put([ids[n] for n in rest], x[rest])
    assert len(index) == 51
    assert [hits[0].id for hits in index.search(x, 1)] == ids
    assert "pending.json" not in files(tmp_path / "index")


def test_what_an_interrupted_build_of_another_model_left_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changing, "SPILL_BYTES", 64)
    with pytest.raises(ZeroDivisionError), FaissIndex.make(tmp_path / "index", ABOUT).change() as change:  # noqa: PT012
        change.put(["a"], vectors(1), None, ["s"])
        1 / 0  # noqa: B018
    other = FaissIndex.make(tmp_path / "index", About("exact", "cosine", 16, "other"))
    with other.change() as change:
        assert not change.known(["a"], ["s"], [""])[0]


# Readers


def test_readers_see_the_old_or_the_new_while_it_changes(tmp_path: Path) -> None:
    folder = tmp_path / "index"
    index = filled(folder, 40)
    seen: list[set[str]] = []
    looked = threading.Semaphore(0)
    stop = threading.Event()
    faults: list[Exception] = []

    def read() -> None:
        kept = open_index(folder)
        try:
            while not stop.is_set():
                kept.refresh()
                for opened in (kept, open_index(folder)):
                    hits = opened.search(vectors(1, seed=3), 40)[0]
                    assert len(hits) == 40
                    seen.append({hit.label for hit in hits})
                looked.release()
        except Exception as error:
            faults.append(error)
            looked.release(4)  # nobody is to wait for it

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for number in range(25):
        with index.change() as change:
            change.put(names(40), vectors(40, seed=number), [f"label {number}"] * 40)
        if number % 10 == 9:
            index.compact()
        if number % 5 == 4:  # so that they see several, however busy the machine; most changes they may miss
            while looked.acquire(blocking=False):
                pass
            if faults:
                break
            assert all(looked.acquire(timeout=300) for _ in range(4))  # one of them has looked twice since
    stop.set()
    for reader in readers:
        reader.join()
    assert not faults
    assert all(len(labels) == 1 for labels in seen)
    assert len({label for labels in seen for label in labels}) > 3


def test_an_open_index_stays_as_it_was_until_it_is_refreshed(tmp_path: Path) -> None:
    index = filled(tmp_path / "index", 30)
    reader = open_index(tmp_path / "index")
    with index.change() as change:
        change.remove(names(29))
    index.compact()
    assert len(reader) == 30 and len(reader.search(vectors(1), 30)[0]) == 30
    assert reader.refresh() and not reader.refresh()
    assert len(reader) == 1 and [hit.id for hit in reader.search(vectors(1), 30)[0]] == names(30)[29:]


def test_one_writer_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = filled(tmp_path / "index", 3)
    other = FaissIndex.open(tmp_path / "index")
    monkeypatch.setattr(Store.locked.__wrapped__, "__defaults__", (0.1,))
    with index.change(), pytest.raises(BusyIndexError, match="another process is changing"), other.change():
        pass
    with other.change() as change:
        change.remove(names(1))
    assert len(other) == 2


# Many changes


def test_many_small_changes_leave_few_pieces(tmp_path: Path) -> None:
    index = filled(tmp_path / "index", 50)
    kept = dict(zip(names(50), vectors(50), strict=True))
    rng = np.random.default_rng(0)
    for number in range(25):
        new = vectors(2, seed=100 + number)
        gone = str(rng.choice(list(kept)))
        with index.change() as change:
            change.put([f"n{number}", names(50)[number]], new)
            assert change.remove([gone]) == 1
        kept |= {f"n{number}": new[0], names(50)[number]: new[1]}
        del kept[gone]
    assert {item.id for item in index.listed()} == set(kept)
    assert len(Store(tmp_path / "index").manifest().parts) <= changing.MOST_SEGMENTS
    queries = vectors(10, seed=7)
    matrix = np.stack(list(kept.values()))
    matrix = matrix / np.linalg.norm(matrix, axis=1, keepdims=True)
    expected = [[list(kept)[n] for n in np.argsort(-(matrix @ query))[:8]] for query in queries]
    assert [[hit.id for hit in hits] for hits in index.search(queries, 8)] == expected
    index.compact()
    assert len(Store(tmp_path / "index").manifest().parts) == 1
    assert [[hit.id for hit in hits] for hits in open_index(tmp_path / "index").search(queries, 8)] == expected


def test_removed_ones_in_front_hide_nothing(tmp_path: Path) -> None:
    """The 200 nearest of 500 are removed: the search has to look behind them."""
    index = FaissIndex.make(tmp_path / "index", About("exact", "cosine", 2, "m"))
    angles = np.linspace(0, 1, 500)
    with index.change() as change:
        change.put(names(500), np.stack([np.cos(angles), np.sin(angles)], 1).astype(np.float32))
    with index.change() as change:
        change.remove(names(200))
    hits = index.search(np.array([[1.0, 0.0]], np.float32), 5)[0]
    assert [hit.id for hit in hits] == names(5, first=200)
    assert len(index.search(np.array([[1.0, 0.0]], np.float32), 400)[0]) == 300


def test_everything_removed_and_put_again(tmp_path: Path) -> None:
    index = filled(tmp_path / "index", 20)
    with index.change() as change:
        assert change.remove(names(20)) == 20
    assert len(index) == 0 and index.search(vectors(1), 3) == [[]]
    assert not [name for name in files(tmp_path / "index") if name.endswith("vectors")]
    with index.change() as change:
        change.put(["again"], vectors(1))
    assert index.search(vectors(1), 3)[0][0].id == "again"


# Approximate structures


@pytest.mark.parametrize(("kind", "count", "least"), [("hnsw", 2_000, 0.9), ("ivfpq", 10_500, 0.6)])
def test_approximate_kinds_find_most_and_go_on_finding_after_changes(
    tmp_path: Path, kind: str, count: int, least: float
) -> None:
    x = vectors(count)
    index = FaissIndex.make(tmp_path / "index", About(kind, "cosine", 16, "m"))  # type: ignore[arg-type]
    with index.change() as change:
        change.put(names(count), x)
    assert any(name.endswith(f".{kind}") for name in files(tmp_path / "index"))
    measured = measured_recall(index, k=10, queries=50)
    assert measured is not None and least <= measured.recall <= 1 and measured.milliseconds > 0
    assert f"recall@10 against exact search {measured.recall:.1%} (50 queries)" in str(measured)
    with index.change() as change:
        change.remove(names(50))
        change.put(["added", *names(1, first=60)], np.concatenate([x[:1], x[1:2]]))
    hits = [index.search(x[n : n + 1], 3)[0] for n in range(2)]
    assert hits[0][0].id == "added" and hits[1][0].id == names(1, first=60)[0]
    assert hits[0][0].similarity == pytest.approx(1, abs=1e-5)
    found = {hit.id for hits in index.search(x[:80], 20) for hit in hits}
    assert not found & set(names(50))
    assert [hits[0].id for hits in index.search(x[70:90], 1)] == names(20, first=70)
    index.compact("exact")
    assert measured_recall(open_index(tmp_path / "index"), queries=20).recall == 1  # type: ignore[union-attr]
    assert not any(name.endswith(f".{kind}") for name in files(tmp_path / "index"))


def test_a_structure_is_built_when_it_pays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(structures, "SMALLEST", {"hnsw": 100, "ivfpq": 100})
    about = About("hnsw", "cosine", 16, "m")
    index = filled(tmp_path / "index", 60, about)

    def built() -> int:
        return sum(part.count for part in Store(tmp_path / "index").manifest().parts if "hnsw" in part.files)

    assert built() == 0  # too few
    with index.change() as change:
        change.put(names(60, first=60), vectors(60, seed=1))
    assert built() == 120
    with index.change() as change:
        change.put(names(60, first=200), vectors(60, seed=2))
    assert built() == 120  # the rest is searched exactly
    with index.change() as change:
        change.put(names(90, first=300), vectors(90, seed=3))
    assert built() == 270  # more were outside than inside
    with index.change() as change:
        change.remove([item.id for item in list(index.listed())[:150]])
    assert built() == 120 and len(index) == 120


def test_recall_counts_what_is_missed(tmp_path: Path) -> None:
    """An index that gives the second half of what it should."""
    index = filled(tmp_path / "index", 200)
    proper = index.search
    index.search = lambda v, k=10, *, threshold=None: [hits[k // 2 :] for hits in proper(v, k)]  # type: ignore[method-assign,assignment]
    measured = measured_recall(index, k=9, queries=40)
    assert measured is not None and measured.recall == pytest.approx(5 / 9)
    assert measured_recall(filled(tmp_path / "small", 5), k=5) is None


# Damage


def damaged(folder: Path, ending: str) -> Path:
    return next(path for path in sorted(folder.iterdir()) if path.name.endswith(ending))


@pytest.mark.parametrize("ending", ["index.json", ".vectors", ".rows"])
@pytest.mark.parametrize("how", ["cut", "missing", "rubbish"])
def test_a_damaged_index_says_so(tmp_path: Path, ending: str, how: str) -> None:
    folder = tmp_path / "index"
    filled(folder, 30)
    path = damaged(folder, ending)
    size = path.stat().st_size
    if how == "missing":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[: size // 2] if how == "cut" else os.urandom(size))
    error = FileNotFoundError if (ending, how) == ("index.json", "missing") else DamagedIndexError
    message = "there is no index" if error is FileNotFoundError else "remove .* and build it again"
    with pytest.raises(error, match=message):
        open_index(folder)
    if ending == "index.json" and how != "missing":
        index = make_index(folder, ABOUT, replace=True)
        with index.change() as change:
            change.put(["a"], vectors(1))
        assert len(open_index(folder)) == 1


def test_a_damaged_structure_and_a_newer_format(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(structures, "SMALLEST", {"hnsw": 10, "ivfpq": 10})
    folder = tmp_path / "index"
    filled(folder, 30, About("hnsw", "cosine", 16, "m"))
    path = damaged(folder, ".hnsw")
    path.write_bytes(b"x" * path.stat().st_size)
    with pytest.raises(DamagedIndexError, match="is not a FAISS index"):
        open_index(folder)
    manifest = folder / "index.json"
    manifest.write_text(manifest.read_text().replace('"format": 1', '"format": 2'))
    with pytest.raises(RetrievalError, match="it has format 2, this version of nearfar reads 1"):
        open_index(folder)


def test_other_peoples_folders_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").write_bytes(b"cat")
    with pytest.raises(RetrievalError, match="has other files"):
        make_index(tmp_path / "photos", ABOUT)
    with pytest.raises(RetrievalError, match="is a file: give a folder for the index"):
        make_index(tmp_path / "photos" / "cat.jpg", ABOUT)
    index = filled(tmp_path / "index", 5)
    (tmp_path / "index" / "notes.txt").write_text("mine")
    with index.change() as change:
        change.remove(names(5))
    index.compact()
    assert "notes.txt" in files(tmp_path / "index")
