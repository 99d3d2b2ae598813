"""Trained on one set, tested on all: which rows are in which set, and which number is where."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nearfar.cli import main
from nearfar.data import Pixels, Table
from nearfar.models import Embedder
from nearfar.studies import transfer
from nearfar.studies.heads import Heads
from nearfar.studies.transfer import FEATURES, Options, families, glyph_parts, parted
from nearfar.training.config import TrainConfig
from nearfar.training.options import ConfigError
from tests.studies.naive import cosines, recall_at_1
from tests.training.making import patterns


def halves() -> Table:
    """32 classes of 8; the light images of each are one set, the dark ones the other."""
    made = patterns(classes=32, each=8)
    return replace(made, columns={"light": np.tile([0, 1], 128)}, names={"light": ("dark", "bright")})


def characters(text: str, faces: tuple[str, ...]) -> Table:
    labels = np.arange(len(text)).repeat(len(faces))
    return Table(
        "glyphs",
        labels,
        tuple(text),
        np.zeros(len(labels), np.int8),
        Pixels(np.zeros((len(labels), 8, 8), np.uint8)),
        columns={"face": np.tile(np.arange(len(faces)), len(text))},
        names={"face": faces},
    )


def test_alphabets_and_faces() -> None:
    table = characters("aΩЖ7", ("DejaVuSans", "DejaVuSans-BoldOblique", "DejaVuSansMono", "STIXGeneralBol"))
    assert glyph_parts(table, "alphabets")[::4] == ["Latin", "Greek", "Cyrillic", "Symbols"]
    assert glyph_parts(table, "faces")[:4] == ["DejaVuSans", "DejaVuSans", "DejaVuSansMono", "STIX"]


def test_parts_have_enough_of_everything() -> None:
    """Of 9 classes, "many" has 3 images of each, "lone" one, "few" 3 of two classes."""
    train = patterns(classes=18, each=7).split("train")
    parts = ["few" if label < 2 and place < 3 else "many" if place < 6 and place >= 3 else "lone"
             for label in range(9) for place in range(7)]  # fmt: skip
    with pytest.raises(ConfigError, match=r"two sets with at least 8 classes of two images .* there are 1"):
        parted(train, train, parts, parts)
    parts = ["other" if part != "many" else part for part in parts]
    found = parted(train, train, parts, parts)
    assert {name: (len(rows), rows.num_classes) for name, (rows, _) in found.items()} == {
        "many": (27, 9), "other": (36, 9),
    }  # fmt: skip


def test_run(config: TrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = halves()
    monkeypatch.setattr("nearfar.data.opening.open", lambda path, layout=None: table)
    trained: list[Table] = []
    train = Heads.train

    def watch(heads: Heads, loss: Any, seed: int, **options: Any) -> Any:
        trained.append(heads.rows[0])
        return train(heads, loss, seed, **options)

    monkeypatch.setattr(Heads, "train", watch)
    found = transfer.run(Options(by="light", seeds=2, config=config), tmp_path, print)
    assert [set(rows.columns["light"].tolist()) for rows in trained] == [{1}, {1}, {0}, {0}]  # bright, dark
    assert all((len(rows), rows.num_classes) == (64, 16) for rows in trained)
    rows = {(row["trained on"], row["tested on"]): row["recall@1"] for row in found.tables["light"]}
    assert list(rows) == [(a, b) for a in (FEATURES, "bright", "dark") for b in ("bright", "dark")]
    model = Embedder("convnet", weights=config.model.weights, head=None, trunk_options={"width": 8})
    model.transform = model.preprocess = replace(model.preprocess, size=16, resize=None, crop=False)
    test = table.split("test")
    for value, name in enumerate(("dark", "bright")):
        own = test.select(test.columns["light"] == value)
        features = model.embed(own.images, output="features").numpy()
        assert rows[FEATURES, name] == pytest.approx(recall_at_1(cosines(features), own.labels))
    assert len(found.sentences) == 2 and "of 2 transfers gained" in found.sentences[0]


def test_sets_of_their_own(config: TrainConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    tables = {"a": patterns(classes=24), "b/c": patterns(classes=40, seed=1)}
    monkeypatch.setattr("nearfar.data.opening.open", lambda path, layout=None: tables[path])
    config = replace(config, data=replace(config.data, path="a"))
    found = families(Options(others=("b/c",), config=config), config)
    sizes = {name: (train.num_classes, test.num_classes) for name, (train, test) in found["sets"].items()}
    assert sizes == {"a": (12, 12), "c": (20, 20)}
    monkeypatch.setitem(tables, "d/c", tables["a"])
    with pytest.raises(ConfigError, match="two of the data sets have the same name"):
        families(Options(others=("b/c", "d/c"), config=config), config)


def test_mistakes(config: TrainConfig) -> None:
    with pytest.raises(ConfigError, match="leave one of them out"):
        Options(others=("b",), by="face")
    with pytest.raises(ConfigError, match="patterns is only one set: name others with --others"):
        families(Options(config=config), config)
    with pytest.raises(ConfigError, match="patterns has no column light, only labels"):
        families(Options(by="light", config=config), config)


def test_small_goes_with_sets_of_its_own(config: TrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on the command line: nearfar study transfer DATA --others DATA2 --small."""
    table = halves()
    monkeypatch.setattr("nearfar.data.opening.open", lambda path, layout=None: table)
    model = ["--weights", config.model.weights, "--backbone", "convnet", "--model.options", "{width: 8}", "--freeze"]
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    words = ["study", "transfer", str(one), "--others", str(two), "--small", "--size", "16", "--dimension", "8"]
    assert main([*words, *model, "--out", str(tmp_path / "out"), "--quiet"]) == 0
    lines = (tmp_path / "out" / "sets.csv").read_text().splitlines()
    assert [line.split(",")[:2] for line in lines[1:]] == [
        [a, b] for a in (FEATURES, "one", "two") for b in ("one", "two")
    ]
    assert Options().small().by == "faces"
    assert replace(Options(), by="alphabets").small().by == "alphabets"
    photos = replace(config, data=replace(config.data, path="photos"))
    assert Options(config=photos).small().by is None
