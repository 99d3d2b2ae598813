"""An index in Milvus Lite: killed while it writes, opened by two, addresses that are none."""

import math
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from nearfar.retrieval import milvus_index
from nearfar.retrieval.index import About, RetrievalError, make_index, open_index
from nearfar.retrieval.recall import measured_recall
from tests.retrieval.making import names, vectors

ROOT = Path(__file__).parent.parent.parent
ABOUT = About("exact", "cosine", 16, "m")

WRITING = """
import sys
from nearfar.retrieval import milvus_index
from nearfar.retrieval.index import About, make_index
from tests.retrieval.making import names, vectors

milvus_index.ROWS_AT_A_TIME = 10
index = make_index(sys.argv[1], About("exact", "cosine", 16, "m"))
with index.change() as change:
    for start in range(0, 100_000, 10):
        change.put(names(10, start), vectors(10, seed=start), ["a"] * 10, [f"s{start}"] * 10)
        print(start, flush=True)
"""


def test_a_kill_loses_nothing_and_another_process_is_kept_out(tmp_path: Path) -> None:
    where = f"milvus:{tmp_path / 'gallery.db'}"
    process = subprocess.Popen(
        [sys.executable, "-c", WRITING, where], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=ROOT
    )
    assert process.stdout is not None
    with process, process.stdout:
        for line in process.stdout:
            if int(line) >= 40:
                break
        with pytest.raises(RetrievalError, match="cannot be opened: is another process using it"):
            open_index(where)
        process.send_signal(signal.SIGKILL)
        last = [int(line) for line in process.stdout.read().splitlines()]
    sent = max([40, *last]) + 10  # what it said it had sent
    index = open_index(where)
    there = [item.id for item in index.listed()]
    assert len(there) == len(set(there)) and set(there) >= set(names(sent))
    ids, states = names(sent + 20), [f"s{n // 10 * 10}" for n in range(sent + 20)]
    with index.change() as change:  # go on: what is there is known
        known = change.known(ids, states, ["a"] * len(ids))
        assert known[:sent].all() and not known[-10:].any()
        rest = [n for n in range(len(ids)) if not known[n]]
        change.put([ids[n] for n in rest], vectors(len(rest), seed=1), ["a"] * len(rest))
    assert len(index) == len({*there, *ids})
    assert index.search(vectors(10), 1)[0][0].id == ids[0]
    index.close()


def test_batches_kinds_and_collections(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(milvus_index, "ROWS_AT_A_TIME", 64)
    monkeypatch.setattr(milvus_index, "BETWEEN_BATCHES", math.inf)
    where = f"milvus:{tmp_path / 'gallery.db'}#birds"
    index = make_index(where, ABOUT)
    with index.change() as change:
        change.put(names(300), vectors(300))
        assert len(index) == 256  # whole batches are there already
        change.put(names(30), vectors(30, seed=1))
    assert len(index) == 300
    before = index.search(vectors(5, seed=2), 10)
    index.compact("hnsw")
    assert index.about.kind == "hnsw"
    measured = measured_recall(index, k=5, queries=20)
    assert measured is not None and measured.recall > 0.9
    index.compact("exact")
    index.compact()
    assert [[hit.id for hit in hits] for hits in index.search(vectors(5, seed=2), 10)] == [
        [hit.id for hit in hits] for hits in before
    ]
    with pytest.raises(RetrievalError, match="an index in Milvus must be exact or hnsw, not ivfpq"):
        index.compact("ivfpq")
    with pytest.raises(RetrievalError, match="has 5000 bytes, but Milvus allows 4096"), index.change() as change:
        change.put(["x" * 5000], vectors(1))
    with pytest.raises(RetrievalError, match="is not UTF-8, which Milvus needs"), index.change() as change:
        change.put(["\udcff"], vectors(1))
    assert not index.refresh()
    index.close()
    with pytest.raises(RetrievalError, match="there is no collection 'nearfar'"):
        open_index(f"milvus:{tmp_path / 'gallery.db'}")


def test_a_collection_of_somebody_else(tmp_path: Path) -> None:
    path = tmp_path / "theirs.db"
    from pymilvus import MilvusClient

    client = MilvusClient(str(path))
    client.create_collection("nearfar", dimension=4)
    with pytest.raises(RetrievalError, match="has no description: nearfar did not make it"):
        open_index(f"milvus:{path}")


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("milvus:", "needs an address"),
        ("milvus:gallery", "must be a file .NAME.db. or a server"),
        ("milvus:./gallery.db#a-b", "the name of a collection must consist of letters, digits and _, not 'a-b'"),
    ],
)
def test_addresses_that_are_none(address: str, message: str) -> None:
    with pytest.raises(RetrievalError, match=message):
        open_index(address)


def test_a_server_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    from nearfar.retrieval import milvus_client

    def refuse(*args: object, **options: object) -> None:
        raise ConnectionError("nobody answers")

    monkeypatch.setattr(milvus_client, "MilvusClient", refuse)
    with pytest.raises(RetrievalError, match=r"milvus:http://nowhere:1 cannot be opened: is it running\? \(nobody"):
        open_index("milvus:http://nowhere:1")
