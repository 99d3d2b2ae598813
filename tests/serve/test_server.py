"""The command: from runs to a server, and what a kill leaves behind."""

import contextlib
import http.client
import json
import signal
import socket
import threading
import urllib.request

import numpy as np
import pytest

from nearfar.cli import main
from nearfar.retrieval.index import open_index
from nearfar.serve import server
from nearfar.serve.limits import Limits
from nearfar.serve.served_gallery import item_key
from nearfar.serve.server import ServerOptions, evaluation_rows, serve
from nearfar.training.evaluate import rows_of
from nearfar.training.runs import Run
from tests.serve.conftest import CLASSES, EACH
from tests.serve.listening import PATIENCE, started
from tests.serve.making import bearer, picture


def get(address: str, **headers: str):
    with urllib.request.urlopen(urllib.request.Request(address, headers=headers), timeout=PATIENCE) as answer:
        return json.loads(answer.read() or b"null")


def test_a_run_is_served_and_a_kill_loses_nothing(glyph_runs, glyph_folder) -> None:
    run = glyph_runs[0]
    with started(str(run)) as server:
        assert f"index from {CLASSES * EACH} images" in server.printed or (run / "index").is_dir()
        state = get(f"{server.address}/api/state")
        (about,) = state["runs"]
        assert (about["name"], about["loss"], about["images"]) == ("trained", "MultiSimilarityLoss", CLASSES * EACH)
        assert about["data"] == "glyphs" and about["metrics"]["recall_at_1"] > 0
        mistakes = get(f"{server.address}/api/runs/a/mistakes")
        measured = Run(run).metrics["after"]["recall@1"]
        assert mistakes["evaluation"] and mistakes["right"] / mistakes["queries"] == pytest.approx(measured, abs=1e-9)
        assert mistakes["queries"] == CLASSES * EACH // 2  # the test classes alone

        path = sorted(glyph_folder.rglob("*.png"))[5]
        found = json.loads(_post(server.address, "/api/runs/a/search?k=1", path.read_bytes())[1])["neighbours"][0]
        assert found["item"] == item_key(str(path)) and found["similarity"] == pytest.approx(1, abs=1e-4)

        added: list[str] = []
        enough = threading.Event()

        def add() -> None:
            for seed in range(1000):
                with contextlib.suppress(OSError, http.client.HTTPException):
                    address, headers = f"/api/runs/a/items?label=new{seed}", bearer(server.token)
                    status, answer = _post(server.address, address, picture(seed=seed), headers)
                    assert status == 201
                    added.append(json.loads(answer)["added"]["item"])
                    if len(added) == 8:
                        enough.set()
                    continue
                return  # it is gone

        writing = threading.Thread(target=add)
        writing.start()
        assert enough.wait(PATIENCE)
        assert server.stop(signal.SIGKILL) == -signal.SIGKILL
        writing.join(PATIENCE)
        assert not writing.is_alive()
    index = open_index(run / "index")
    kept = {item_key(item.id) for item in index.listed()}
    assert set(added) <= kept and len(kept) - CLASSES * EACH - len(added) in (0, 1)  # one was not answered any more
    pictures = {item_key(str(path)) for path in (run / "added").glob("*.png")}
    assert set(added) <= pictures
    with index.change() as change:  # it can be changed as before
        change.remove([item.id for item in index.listed() if item.label.startswith("new")])
    assert len(index) == CLASSES * EACH


def _post(address: str, path: str, content: bytes, headers: dict[str, str] | None = None) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(address.removeprefix("http://"), timeout=PATIENCE)
    try:
        connection.request("POST", path, content, headers or {})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def test_the_images_a_run_is_measured_on(glyph_runs) -> None:
    run = Run(glyph_runs[0])
    evaluated = evaluation_rows(run)
    assert evaluated is not None
    assert list(evaluated.ids) == [str(path) for path in rows_of(run, None)[0].paths]
    assert evaluated.query.all() and evaluated.gallery.all() and evaluated.cameras is None
    assert np.asarray(evaluated.query).shape == (CLASSES * EACH // 2,)


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["none"], "none"),
        (["a", "b", "c"], "serve takes one run, or two to compare, not 3"),
        (["a", "--index", "x", "y"], "there are 2 indexes for 1 runs"),
        (["a", "--max-upload", "0"], "--max-upload must be positive"),
        (["a", "--host", "no.such.host.invalid"], "cannot listen on no.such.host.invalid"),
    ],
)
def test_mistakes_on_the_command_line(words: list[str], problem: str, capsys, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    for run in "abc":
        (tmp_path / run).mkdir()
        (tmp_path / run / "config.yaml").touch()
    assert main(["serve", *words, "--port", "0"]) == 2
    assert problem in capsys.readouterr().err


def test_a_port_that_is_taken(tmp_path, capsys) -> None:
    (tmp_path / "config.yaml").touch()
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        assert main(["serve", str(tmp_path), "--port", str(port)]) == 2
    assert f"cannot listen on 127.0.0.1, port {port}" in capsys.readouterr().err


@pytest.mark.parametrize("token", ["short", "x" * 15, "with a space in the middle", "é" * 20])
def test_a_token_that_is_too_weak(token: str, monkeypatch) -> None:
    monkeypatch.setenv("NEARFAR_TOKEN", token)
    with pytest.raises(ValueError, match="NEARFAR_TOKEN must have at least 16 ASCII characters"):
        serve(["a"], ServerOptions(port=0, limits=Limits()))


def test_another_models_index_is_refused(glyph_runs, capsys, tmp_path) -> None:
    from nearfar.retrieval.index import About, make_index

    index = make_index(tmp_path / "other", About("exact", "cosine", 8, "another model"))
    with index.change() as change:
        change.put(["x"], np.ones((1, 8), np.float32), ["y"])
    assert main(["serve", str(glyph_runs[0]), "--index", str(tmp_path / "other"), "--port", "0"]) == 2
    assert "was made with another model" in capsys.readouterr().err


def test_answers_are_sent_at_once() -> None:
    """asyncio turns Nagle's algorithm off for sockets that name their protocol alone: else each takes 40 ms more."""
    with server._listen("127.0.0.1", 0) as listening:
        assert listening.proto == socket.IPPROTO_TCP
