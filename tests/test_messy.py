"""Every command that takes data, twice on a messy folder: it works, says what it leaves out and why, and the second time,
from caches, comes to the same.
"""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from nearfar.cli import main
from tests.compare.making import trunk_file
from tests.messy import Messy, messy
from tests.retrieval.making import run as made_run

SMALL = ["--backbone", "convnet", "--options", "{width: 8}", "--size", "16", "--dimension", "8", "--workers", "0"]
Said = tuple[int, str, str]
Call = Callable[..., Said]


@pytest.fixture(scope="module")
def mess(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Messy]:
    folder = tmp_path_factory.mktemp("data")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NEARFAR_CACHE", str(folder / "cache"))
        patch.chdir(folder)
        yield messy(folder / "my photos")


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> str:
    return trunk_file(tmp_path_factory.mktemp("weights"))


@pytest.fixture(scope="module")
def run(mess: Messy, tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(made_run(tmp_path_factory.mktemp("runs") / "run", mess.folder, threshold=0.6).folder)


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    def called(*words: str | Path) -> Said:
        code = main([str(word) for word in words])
        said = capsys.readouterr()
        assert "Traceback" not in said.err and "Warning" not in said.err, said.err
        return code, said.out, said.err

    return called


def named(mess: Messy, text: str) -> None:
    """How many are left out, and the first five with their reasons."""
    assert f"left out: {len(mess.broken)} of {mess.total} images cannot be read" in text, text
    for name in sorted(mess.broken)[:5]:
        assert re.search(f"{re.escape(name)}: .*({mess.broken[name]})", text), (name, text)


def told(mess: Messy, text: str) -> None:
    """And where the others are."""
    named(mess, text)
    assert f"nearfar doctor '{mess.folder}' lists them" in text


def good(mess: Messy) -> int:
    return mess.total - len(mess.broken)


def test_duplicates(mess: Messy, call: Call) -> None:
    results = []
    for _ in range(2):
        code, out, err = call("duplicates", mess.folder, "--threshold", "0.9999", "--json")
        told(mess, err)
        results.append(json.loads(out))
        assert code == 0 and results[-1]["images"] == mess.total and results[-1]["broken"] == len(mess.broken)
        assert {str(Path(name).relative_to(mess.folder)) for name in results[-1]["left_out"]} == mess.broken.keys()
        same = [
            [member["image"] for member in group["images"] if member["identical"]] for group in results[-1]["groups"]
        ]
        assert {"mug, red/1.png", "thing 11/stray.png"} in [
            {str(Path(name).relative_to(mess.folder)) for name in group} for group in same
        ]
    assert results[0] == results[1]


def test_index_and_search(mess: Messy, run: str, call: Call) -> None:
    for embedded in (good(mess), 0):
        code, out, err = call("index", run)
        told(mess, err)
        assert code == 0 and f"{good(mess)} images" in out
        unchanged = good(mess) - embedded
        assert f"{embedded} embedded, {unchanged} unchanged, {len(mess.broken)} cannot be read" in out
    queries = [mess.folder / name for name in mess.odd[:8]]
    first, second = (call("search", run, *queries, "--k", "2", "--json") for _ in range(2))
    assert first == second and first[0] == 0
    found = json.loads(first[1])
    assert [result["hits"][0]["id"] for result in found] == [str(query) for query in queries]  # each finds itself


def test_a_broken_query_does_not_keep_others_from_being_answered(mess: Messy, run: str, call: Call) -> None:
    call("index", run)
    good_one, broken = mess.folder / "mug, red/0.png", [mess.folder / name for name in mess.broken]
    code, out, err = call("search", run, good_one, *broken, "--k", "1")
    assert code == 1 and f"{good_one}" in out
    for path, word in zip(broken, mess.broken.values(), strict=True):
        assert re.search(f"left out: {re.escape(str(path))}: .*({word})", err)
    code, _, err = call("search", run, broken[0])
    assert code == 2 and f"{broken[0]}: truncated" in err
    code, _, err = call("search", run, *broken)
    assert code == 2 and f"none of the {len(broken)} images can be read" in err


def test_files_that_are_named(mess: Messy, run: str, tmp_path: Path, call: Call) -> None:
    """Of those, any number may be broken, and the exit code says so."""
    names = ["mug, red/0.png", "mug, red/truncated.jpg", "thing 05/notes.jpeg"]
    paths, where = [mess.folder / name for name in names], ["--index", str(tmp_path / "index")]
    code, out, err = call("index", run, *paths, *where)
    assert code == 1 and "1 embedded, 0 unchanged, 2 cannot be read" in out
    assert "left out: 2 of 3 images" in err and f"{paths[1]}: truncated" in err
    code, out, _ = call("embed", run, *paths, "--out", tmp_path / "x.npz")
    assert code == 1 and "1 embeddings of 8 numbers; 2 images cannot be read" in out


def test_embed(mess: Messy, run: str, tmp_path: Path, call: Call) -> None:
    arrays = []
    for out in (tmp_path / "1.npz", tmp_path / "2.npz"):
        code, said, err = call("embed", run, mess.folder, "--out", out)
        told(mess, err)
        assert code == 0 and f"{good(mess)} embeddings of 8 numbers; {len(mess.broken)} images cannot be read" in said
        with np.load(out) as found:
            arrays.append({name: found[name] for name in found.files})
    assert all(np.array_equal(arrays[0][name], arrays[1][name]) for name in arrays[0])
    paths = {str(Path(path).relative_to(mess.folder)) for path in arrays[0]["paths"].tolist()}
    assert paths >= set(mess.odd) and not paths & mess.broken.keys()
    assert np.isfinite(arrays[0]["embeddings"]).all()


def test_more_than_allowed_is_an_error(mess: Messy, run: str, tmp_path: Path, call: Call) -> None:
    for words in (
        ["index", run, mess.folder, "--index", tmp_path / "index"],
        ["embed", run, mess.folder, "--out", tmp_path / "x.npz"],
        ["duplicates", mess.folder],
        ["compare", mess.folder],
    ):
        code, _, err = call(*words, "--max_broken", "0.05")
        assert code == 2 and f"{len(mess.broken)} of {mess.total} images" in err and "more than the 5% allowed" in err


def test_serve(mess: Messy, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from nearfar.serve.server import evaluation_rows, open_run

    made = made_run(tmp_path / "run", mess.folder, threshold=0.6)
    first = open_run("a", made)
    told(mess, capsys.readouterr().err)
    second = open_run("a", made)  # from the index
    for served in (first, second):
        assert len(served.gallery.catalogue.ids) == good(mess)
        assert served.analysis.diagnosis() is not None
    evaluated = evaluation_rows(made)
    assert evaluated is not None and len(evaluated.ids) == 40


def test_doctor(mess: Messy, weights: str, call: Call) -> None:
    """All of them, with their reasons, and all else that is wrong."""
    results = []
    for _ in range(2):
        code, out, _ = call("doctor", mess.folder, *SMALL, "--weights", weights)
        assert code == 1
        for name, word in mess.broken.items():
            assert re.search(f"      {re.escape(name)}: .*({word})", out), (name, out)
        results.append(re.sub(r"time .*\n", "", out))
        text = " ".join(out.split())
        for expected in (
            f"{mess.total} pictures, of which {len(mess.broken)} cannot be read",
            "13, of 1 to 7 each, median 7",
            "test 40 of 6 classes",
            "1 picture is both trained on and tested, byte for byte",
            "thing 11/stray.png (test)",
            "13 classes are few: ",
            "1 of 13 classes has only one picture",
            "1 picture is contained more than once, byte for byte",
            "thing 08/0.png (test) = thing 08/copy of 0.png (test)",
        ):
            assert expected in text
        assert "no problems found" not in out
    assert results[0] == results[1]


def test_compare(mess: Messy, weights: str, tmp_path: Path, call: Call) -> None:
    words = [mess.folder, *SMALL, "--weights", weights, "--losses", "ContrastiveLoss", "--epochs", "1", "--trials", "1"]
    boards = []
    for out in (tmp_path / "1", tmp_path / "2"):
        code, _, err = call("compare", *words, "--seeds", "1", "--folds", "2", "--out", out)
        told(mess, err)
        assert code == 0
        rows = json.loads((out / "leaderboard.json").read_text())["rows"]
        boards.append([row["metrics"] for row in rows])
    assert boards[0] == boards[1]


def test_study(mess: Messy, weights: str, tmp_path: Path, call: Call) -> None:
    words = ["few", mess.folder, "--small", "--samples", "2,4", *SMALL, "--weights", weights]
    found = []
    for out in (tmp_path / "1", tmp_path / "2"):
        code, said, err = call("study", *words, "--out", out)
        told(mess, err)
        assert code == 0
        found.append(said.replace(str(out), ""))
    assert found[0] == found[1]


def test_train_evaluate_report_export(mess: Messy, weights: str, tmp_path: Path, call: Call) -> None:
    """From the folder to a model for others; the second time, from caches, to the same figures."""
    figures = []
    for out in (tmp_path / "1", tmp_path / "2"):
        words = [mess.folder, *SMALL, "--weights", weights, "--freeze", "--epochs", "2", "--out", out]
        code, _, err = call("train", *words)
        assert code == 0 and (out / "report.html").is_file() and (out / "model.safetensors").is_file()
        named(mess, err)
        metrics = json.loads((out / "metrics.json").read_text())
        code, said, _ = call("evaluate", out, "--json")
        measured = json.loads(said)
        assert code == 0 and measured["images"] == 40 and measured["map@r"] == metrics["after"]["map@r"]
        code, said, err = call("evaluate", out, mess.folder)
        assert code == 0
        named(mess, said + err)
        assert call("report", out)[0] == 0
        assert call("export", out, "--format", "safetensors", "--out", tmp_path / f"{out.name}-exported")[0] == 0
        figures.append((metrics["before"], metrics["after"]))
    assert figures[0] == figures[1]


def test_train_the_whole_network(mess: Messy, tmp_path: Path, call: Call) -> None:
    figures = []
    for out in (tmp_path / "1", tmp_path / "2"):
        code, _, err = call("train", mess.folder, *SMALL, "--max_steps", "2", "--out", out)
        assert code == 0
        named(mess, err)
        figures.append(json.loads((out / "metrics.json").read_text())["after"])
    assert figures[0] == figures[1]
