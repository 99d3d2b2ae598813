"""Files that are not what was written: the command says which, and what to do."""

import os
import random
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

from nearfar.cli import main
from nearfar.data import FeatureCache, embedded
from nearfar.retrieval.index import DamagedIndexError, RetrievalError, open_index
from nearfar.training.runs import Run
from nearfar.training.train import StoppedError, train
from tests.faults import jobs
from tests.retrieval.making import photos
from tests.training.making import SMALL

RUBBISH = random.Random(0).randbytes(999)
HOW: dict[str, Callable[[bytes], bytes]] = {
    "cut": lambda old: old[: len(old) // 2],
    "empty": lambda old: b"",
    "rubbish": lambda old: RUBBISH,
    "words": lambda old: b"neither here nor there\n",
    "list": lambda old: b"[1, 2]",
    "zeros": lambda old: bytes(len(old)),
    "row": lambda old: old + b"what,should,be,numbers\n",
}
EVERY = tuple(HOW)[:-1]


@dataclass(frozen=True)
class Case:
    """A file below the folder of `place`, how it is damaged, the command that meets it, and what that says."""

    file: str
    hows: tuple[str, ...]
    words: str
    says: str


CASES = [
    Case("run/config.yaml", ("empty", "rubbish", "words", "list", "zeros"), "evaluate RUN", r"config\.yaml"),
    Case("run/metrics.json", EVERY, "report RUN", r"metrics\.json is damaged .*: remove"),
    Case("run/split.csv", EVERY, "evaluate RUN", r"split\.csv is damaged"),
    Case("run/held_out.npz", EVERY, "index RUN --index NEW --far 0.1", r"held_out\.npz is damaged .*: remove it"),
    Case("stopped/split.csv", EVERY, "train --resume STOPPED --quiet", r"split\.csv is damaged"),
    Case("run/curves.csv", ("rubbish", "row"), "report RUN", r"curves\.csv is damaged .*: remove"),
    Case("run/model.safetensors", EVERY, "evaluate RUN", r"model\.safetensors is damaged or not a safetensors file"),
    Case("run/model.safetensors", ("cut", "rubbish"), "embed RUN --out OUT.npz", r"model\.safetensors is damaged"),
    Case("stopped/config.yaml", ("empty", "rubbish", "list"), "train --resume STOPPED", r"config\.yaml"),
    Case("stopped/metrics.json", EVERY, "train --resume STOPPED --quiet", r"metrics\.json is damaged .*: remove"),
    Case(
        "stopped/curves.csv",
        ("rubbish",),
        "train --resume STOPPED --quiet",
        r"curves\.csv is damaged .*: remove it",
    ),
    Case(
        "stopped/checkpoints/last.pt", EVERY, "train --resume STOPPED --quiet", r"last\.pt is damaged .*: remove .*ch"
    ),
    Case(
        "stopped/checkpoints/best.pt", EVERY, "train --resume STOPPED --quiet", r"best\.pt is damaged .*: remove .*ch"
    ),
    Case("index/index.json", EVERY, "search RUN PHOTO --index INDEX", r"damaged: .*index\.json .*build it again"),
    Case("index/*.vectors", EVERY, "search RUN PHOTO --index INDEX", r"damaged: .*vectors .*build it again"),
    Case("index/*.rows", EVERY, "search RUN PHOTO --index INDEX", r"damaged: .*rows .*build it again"),
    Case("index/*.dead-*", EVERY, "search RUN PHOTO --index INDEX", r"damaged: .*build it again"),
    Case("photos/pattern 0/000.png", EVERY, "search RUN PHOTO --index INDEX", r"photos/pattern 0/000\.png"),
    Case("given.npz", EVERY, "train GIVEN --quiet --out NEW", r"given\.npz"),
]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, one that was stopped, an index from which images were taken, and their data."""
    folder = tmp_path_factory.mktemp("whole")
    data = photos(folder / "photos", classes=8, each=4)
    options = {**SMALL, "batch_size": 8, "k": 2, "epochs": 2, "quiet": True}
    train(data, out=str(folder / "run"), **options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("nearfar.training.train.finish", _stop)
        with pytest.raises(StoppedError):
            train(data, out=str(folder / "stopped"), **options)
    index = str(folder / "index")
    assert main(["index", str(folder / "run"), str(data), "--index", index]) == 0
    assert main(["index", str(folder / "run"), "--index", index, "--remove", str(data / "pattern 7")]) == 0
    np.savez(folder / "given.npz", images=np.zeros((40, 16, 16), np.uint8), labels=np.arange(40) % 10)
    return folder


def _stop(*_: object) -> None:
    raise StoppedError("after the last step")


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.file} {case.words.split()[0]}")
def test_it_is_said(case: Case, whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = {"RUN": "run", "STOPPED": "stopped", "INDEX": "index", "PHOTO": "photos/pattern 0/000.png"}
    places = {name: str(whole / path) for name, path in names.items()}
    places |= {"OUT.npz": str(tmp_path / "out.npz"), "NEW": str(tmp_path / "new"), "GIVEN": str(whole / "given.npz")}
    words = [places.get(word, word) for word in case.words.split()]
    (path,) = whole.glob(case.file)
    before, kept = path.read_bytes(), tmp_path / "kept"
    folder = path.parent if path.parent.name != "checkpoints" else path.parent.parent
    shutil.copytree(folder, kept)
    for how in case.hows:
        try:
            path.write_bytes(HOW[how](before))
            assert path.read_bytes() != before
            code = main(words)
            said = capsys.readouterr().err
            assert code == 2 and re.search(case.says, said), f"{case.file}, {how}: {said[:800] or code}"
            assert len(said) < 800, said[:800]
        finally:
            shutil.rmtree(folder)
            shutil.copytree(kept, folder)
    assert not (tmp_path / "out.npz").exists() and not (tmp_path / "new").exists()


def test_doing_what_is_said_helps(whole: Path, tmp_path: Path) -> None:
    """A damaged checkpoint, metrics and curve are removed, and the run comes to the end that it would have had."""
    folder = tmp_path / "stopped"
    for name in ("checkpoints", "metrics.json", "curves.csv"):
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(whole / "stopped", folder)
        path = folder / name
        path.unlink() if path.is_file() else shutil.rmtree(path)
        assert main(["train", "--resume", str(folder), "--quiet"]) == 0
        assert (folder / "model.safetensors").read_bytes() == (whole / "run" / "model.safetensors").read_bytes()
        assert Run(folder).metrics["after"] == Run(whole / "run").metrics["after"]


def test_what_only_helps_is_passed_over(whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What a change of an index has left behind is for going on faster: damaged, it is not taken."""
    index = tmp_path / "index"
    shutil.copytree(whole / "index", index)
    for how in HOW.values():
        (index / "pending.json").write_bytes(how(b'{"of": "x", "parts": []}'))
        assert main(["index", str(whole / "run"), str(whole / "photos"), "--index", str(index)]) == 0
    assert len(open_index(index)) == 32


# Manifests with one value of another kind

WRONG = ["null", "-1", '"x"', "[]", "{}", "1e999"]


def test_any_value_of_the_manifest_may_be_wrong(whole: Path, tmp_path: Path) -> None:
    """Then it is refused with a reason, or it is a value that only says something of the index."""
    index = tmp_path / "index"
    shutil.copytree(whole / "index", index)
    manifest = index / "index.json"
    text = manifest.read_text()
    refused = opened = 0
    for found in re.finditer(r': ("[^"]*"|-?\d[\d.e-]*|\[\]|\{\}|null)', text):
        for wrong in WRONG:
            manifest.write_text(text[: found.start(1)] + wrong + text[found.end(1) :])
            try:
                open_index(index).close()
                opened += 1
            except (DamagedIndexError, RetrievalError) as error:
                assert str(index) in str(error), (found.group(), wrong)  # noqa: PT017
                refused += 1
    assert refused > 60 and opened < 120


# Caches


@pytest.mark.parametrize("ending", ["ids", "rows", "json"])
@pytest.mark.parametrize("how", ["cut", "empty", "rubbish", "words"])
def test_features(ending: str, how: str, tmp_path: Path) -> None:
    """Ids that are damaged find nothing, rows that are missing are computed again; a damaged description is told."""
    images, encode = jobs.cached_images(), jobs.Encode()
    expected = FeatureCache(tmp_path, "key").compute(images, encode)[:]
    (path,) = tmp_path.glob(f"*/*.{ending}")
    if ending == "rows" and how in ("rubbish", "words"):
        return  # bytes of a row are not known to be wrong
    path.write_bytes(HOW[how](path.read_bytes()))
    if ending == "json":
        with pytest.raises(ValueError, match=r"about\.json is damaged: remove this folder to compute it again"):
            FeatureCache(tmp_path, "key").compute(images, encode)
        shutil.rmtree(path.parent)
    assert np.array_equal(FeatureCache(tmp_path, "key").compute(images, encode)[:], expected)
    assert encode.asked > jobs.IMAGES


@pytest.mark.parametrize("how", EVERY)
def test_glyphs_are_made_again(how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "_make", jobs.drawn)
    labels = embedded.glyphs(4, 3, 8, cache=tmp_path).labels
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    path.write_bytes(HOW[how](whole))
    assert np.array_equal(embedded.glyphs(4, 3, 8, cache=tmp_path).labels, labels)
    assert path.read_bytes() == whole and os.listdir(tmp_path) == [path.name]


def test_a_checkpoint_that_is_no_state(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    for thing in ([1, 2], {"other": 1}, torch.zeros(2)):
        torch.save(thing, tmp_path / "checkpoints" / "last.pt")
        with pytest.raises(RuntimeError, match="it does not contain a state"):
            Run(tmp_path).load_checkpoint("last")
