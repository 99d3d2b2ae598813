"""Adding and taking away: at once visible, on the disk before it is answered, whole or not at all."""

import errno
import http.client
import json
import select
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from nearfar.retrieval.index import BusyIndexError, open_index
from nearfar.serve.app import create_app
from nearfar.serve.limits import Limits
from nearfar.serve.served_gallery import ServedGallery, item_key
from tests.serve.listening import PATIENCE, listening
from tests.serve.making import FREE, TOKEN, bearer, client, embed, picture, served


def test_an_added_picture_is_found_and_stays(tmp_path) -> None:
    run = served(tmp_path)
    asking = client(run)
    content = picture(size=(48, 32), seed=3)
    answer = asking.post("/api/runs/a/items", params={"label": " new class "}, content=content, headers=bearer())
    assert answer.status_code == 201
    added = answer.json()["added"]
    assert added["label"] == "new class" and answer.json()["images"] == 61
    first = asking.post("/api/runs/a/search?k=1", content=content).json()["neighbours"][0]
    assert first["item"] == added["item"] and first["similarity"] > 0.999
    assert asking.get("/api/runs/a/items", params={"label": "new class"}).json()["total"] == 1
    assert asking.get(f"/api/runs/a/items/{added['item']}/picture").status_code == 200
    assert asking.get("/api/state").json()["runs"][0]["classes"] == 11

    stored = open_index(tmp_path / "index")  # as another process, or the next start, sees it
    (image,) = [item.id for item in stored.listed() if item.label == "new class"]
    assert Path(image).parent == tmp_path / "added"
    np.testing.assert_allclose(stored.vectors([image]), embed(image), atol=1e-6)  # of the picture as it is kept

    again = asking.post("/api/runs/a/items?label=other", content=content, headers=bearer()).json()
    assert again["added"]["item"] == added["item"] and again["images"] == 61  # its class has changed
    assert asking.get("/api/runs/a/items", params={"label": "new class"}).json()["total"] == 0

    gone = asking.delete(f"/api/runs/a/items/{added['item']}", headers=bearer())
    assert gone.json() == {"removed": added["item"], "images": 60}
    assert not Path(image).exists()
    assert asking.get(f"/api/runs/a/items/{added['item']}/picture").status_code == 404
    assert asking.delete(f"/api/runs/a/items/{added['item']}", headers=bearer()).status_code == 404


def test_a_file_of_the_gallery_is_never_deleted(tmp_path) -> None:
    run = served(tmp_path)
    asking = client(run)
    path = tmp_path / "photos" / "004.png"
    assert asking.get(f"/api/runs/a/items/{item_key(str(path))}/picture").status_code == 200
    assert asking.delete(f"/api/runs/a/items/{item_key(str(path))}", headers=bearer()).status_code == 200
    assert path.exists() and str(path) not in open_index(tmp_path / "index")
    assert asking.get(f"/api/runs/a/items/{item_key(str(path))}/picture").status_code == 404  # though it had been shown


@pytest.mark.parametrize("label", ["", "   ", "a\nb", "a\0b", "x" * 201])
def test_names_that_are_none(tmp_path, label: str) -> None:
    answer = client(served(tmp_path, classes=2, each=2)).post(
        "/api/runs/a/items", params={"label": label}, content=picture(), headers=bearer()
    )
    assert answer.status_code == 422


@pytest.mark.parametrize("where", ["picture", "index"])
def test_a_full_disk_changes_nothing(tmp_path, monkeypatch, where: str) -> None:
    run = served(tmp_path, classes=3, each=3)
    asking = client(run)

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "/somewhere/secret")

    if where == "picture":
        monkeypatch.setattr("nearfar.serve.served_gallery.write_file", full)
    else:
        monkeypatch.setattr("nearfar.retrieval.store.Store.commit", full)
    answer = asking.post("/api/runs/a/items?label=new", content=picture(seed=4), headers=bearer())
    assert answer.status_code == 507 and answer.json() == {"detail": "the disk is full: nothing was changed"}
    assert asking.get("/api/runs/a/items").json()["total"] == 9
    assert list((tmp_path / "added").glob("*.png")) == []
    if where == "index":
        item = item_key(run.gallery.catalogue.ids[0])
        assert asking.delete(f"/api/runs/a/items/{item}", headers=bearer()).status_code == 507
    monkeypatch.undo()
    assert asking.post("/api/runs/a/search?k=9", content=picture()).status_code == 200
    assert asking.post("/api/runs/a/items?label=new", content=picture(seed=4), headers=bearer()).status_code == 201
    assert len(open_index(tmp_path / "index")) == 10


def test_an_index_that_another_process_changes(tmp_path, monkeypatch, caplog) -> None:
    run = served(tmp_path, classes=2, each=2)

    def busy(*_: object) -> None:
        raise BusyIndexError("/secret/index is being changed")

    monkeypatch.setattr(type(run.gallery.index), "change", busy)
    answer = client(run).post("/api/runs/a/items?label=new", content=picture(), headers=bearer())
    assert answer.status_code == 409 and "secret" not in answer.text
    assert "/secret/index is being changed" in caplog.text


def test_readers_and_writers_together_lose_nothing(tmp_path) -> None:
    """Four add, one takes away, three search, over real sockets; then everything is as it was answered."""
    run = served(tmp_path)
    removed = [item_key(image) for image in run.gallery.catalogue.ids[:12]]
    app = create_app({"a": run}, token=TOKEN, limits=FREE, prepare=False)
    searching = True
    all_search = threading.Barrier(4)  # the three who search, and who begins to change

    with listening(app) as (host, port):

        def ask(method: str, address: str, body: bytes | None = None, headers: dict[str, str] | None = None):
            connection = http.client.HTTPConnection(host, port, timeout=PATIENCE)
            try:
                connection.request(method, address, body, headers or {})
                answer = connection.getresponse()
                return answer.status, json.loads(answer.read())
            finally:
                connection.close()

        def add(number: int) -> str:
            content = picture(seed=100 + number)
            status, answer = ask("POST", f"/api/runs/a/items?label=new{number % 3}", content, bearer())
            assert status == 201, answer
            return answer["added"]["item"]

        def remove(item: str) -> None:
            assert ask("DELETE", f"/api/runs/a/items/{item}", None, bearer())[0] == 200

        def search(seed: int) -> int:
            done = 0
            while searching or done < 2:  # once before anything is changed, and once more
                status, answer = ask("POST", "/api/runs/a/search?k=5", picture(seed=seed))
                assert status == 200 and len(answer["neighbours"]) == 5
                similarities = [one["similarity"] for one in answer["neighbours"]]
                assert similarities == sorted(similarities, reverse=True)
                assert ask("GET", "/api/runs/a/items?limit=200")[0] == 200
                done += 1
                if done == 1:
                    all_search.wait(PATIENCE)
            return done

        with ThreadPoolExecutor(8) as pool:
            readers = [pool.submit(search, seed) for seed in range(3)]
            all_search.wait(PATIENCE)
            gone = [pool.submit(remove, item) for item in removed]
            added = set(pool.map(add, range(20)))
            for one in gone:
                one.result()
            searching = False
            assert all(reader.result() > 1 for reader in readers)

    kept = {item_key(item.id) for item in open_index(tmp_path / "index").listed()}
    assert len(added) == 20 and added <= kept
    assert kept.isdisjoint(removed) and len(kept) == 60 + 20 - 12
    assert {item_key(str(path)) for path in (tmp_path / "added").glob("*.png")} == added
    fresh = ServedGallery(open_index(tmp_path / "index"), lambda image: image, tmp_path / "added")
    assert set(fresh.catalogue.keys) == kept == set(run.gallery.catalogue.keys)


HEAD = b"POST /api/runs/a/search HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: %d\r\n\r\n"


def test_slow_and_broken_connections_hold_nothing_up(tmp_path) -> None:
    run = served(tmp_path, classes=2, each=2)
    patient = create_app({"a": run}, token=TOKEN, limits=Limits(rate=None, upload_seconds=3600), prepare=False)
    with listening(patient) as (host, port):
        slow, gone = (socket.create_connection((host, port), timeout=PATIENCE) for _ in range(2))
        for one in (slow, gone):
            one.sendall(HEAD % 1000 + b"half")
        gone.close()
        connection = http.client.HTTPConnection(host, port, timeout=PATIENCE)
        connection.request("GET", "/api/state")
        assert connection.getresponse().status == 200
        connection.close()
        assert select.select([slow], [], [], 0)[0] == []  # which was still waited for
        slow.close()
        with socket.create_connection((host, port), timeout=PATIENCE) as large:  # refused by what it says it will send
            large.sendall(HEAD % 999_999_999_999)
            assert b" 413 " in large.recv(100)
    assert threading.active_count() < 60


def test_a_picture_that_does_not_arrive_in_its_time_is_given_up(tmp_path) -> None:
    run = served(tmp_path, classes=2, each=2)
    hasty = create_app({"a": run}, token=TOKEN, limits=Limits(rate=None, upload_seconds=0.01), prepare=False)
    with (
        listening(hasty) as (host, port),
        socket.create_connection((host, port), timeout=PATIENCE) as slow,
    ):
        slow.sendall(HEAD % 1000 + b"half")  # and never the rest
        assert b" 408 " in slow.recv(100)
