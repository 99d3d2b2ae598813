"""The framework of the studies: files, resume, the command line."""

import csv
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Self

import numpy as np
import pytest
from PIL import Image

from nearfar.cli import main
from nearfar.report import style
from nearfar.studies import STUDIES, study
from nearfar.studies.study import Drawing, Findings, HeadOptions, StudyOptions, cells, run_study, study_module
from nearfar.training.config import LossConfig, option
from nearfar.training.options import ConfigError


@dataclass(frozen=True)
class Options(StudyOptions):
    powers: tuple[int, ...] = option((1, 2, 3), "to raise to")
    loud: bool = option(False, "say more")

    def small(self) -> Self:
        return replace(self, powers=(1,))


@dataclass(frozen=True)
class Trained(HeadOptions):
    loss: tuple[LossConfig, ...] = option((), "a loss")

    def small(self) -> Self:
        return replace(self, seeds=1)


class Powers:
    """A study of powers of numbers; it can be killed after some cells."""

    def __init__(self, options: type[StudyOptions] = Options):
        self.Options, self.calls, self.last = options, 0, None
        self.dies_after: int | None = None
        self.__doc__ = "Powers."

    def run(self, options, folder: Path, progress) -> Findings:
        self.last = options
        if isinstance(options, HeadOptions):
            return Findings({}, {}, ["trained"])
        settings = [{"power": p, "seed": s} for p in options.powers for s in (0, 1)]
        rows = cells(settings, lambda setting: self.measure(setting), folder, progress)
        with style.figure() as drawn:
            drawn.subplots().plot([row["power"] for row in rows], [row["value"] for row in rows])
        return Findings({"powers": rows}, {"powers": Drawing(drawn, "Powers.")}, [f"{len(rows)} < powers"])

    def measure(self, setting):
        if self.calls == self.dies_after:
            raise KeyboardInterrupt
        self.calls += 1
        return {"value": float(np.random.default_rng(setting["seed"]).normal()) ** setting["power"], "nothing": None}


@pytest.fixture
def powers(monkeypatch: pytest.MonkeyPatch) -> Powers:
    made = Powers()
    monkeypatch.setitem(STUDIES, "powers", "powers of numbers")
    monkeypatch.setattr(study, "importlib", SimpleNamespace(import_module=lambda name: made))
    return made


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_files(powers: Powers, tmp_path: Path) -> None:
    run_study("powers", out=tmp_path / "a", progress=print)
    names = {"study.yaml", "cells.jsonl", "powers.csv", "powers.png", "powers.svg", "report.html"}
    assert set(contents(tmp_path / "a")) == names
    with (tmp_path / "a" / "powers.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["power"], row["seed"], row["nothing"]) for row in rows[:3]] == [
        ("1", "0", ""),
        ("1", "1", ""),
        ("2", "0", ""),
    ]
    assert float(rows[2]["value"]) == float(rows[0]["value"]) ** 2
    with Image.open(tmp_path / "a" / "powers.png") as image:
        assert image.size == (570, 420) and image.getcolors()[0] is not None
        assert image.convert("RGB").getpixel((0, 0)) == (255, 255, 255)
    page = (tmp_path / "a" / "report.html").read_text()
    assert "6 &lt; powers" in page and "powers: [1, 2, 3]" in page and "<svg" in page


def test_the_same_again_is_the_same_files(powers: Powers, tmp_path: Path) -> None:
    for name in "ab":
        run_study("powers", out=tmp_path / name, progress=print)
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


def test_a_killed_study_goes_on_to_the_same_files(powers: Powers, tmp_path: Path) -> None:
    run_study("powers", out=tmp_path / "whole", progress=print)
    assert powers.calls == 6
    powers.calls, powers.dies_after = 0, 4
    with pytest.raises(KeyboardInterrupt):
        run_study("powers", out=tmp_path / "killed", progress=print)
    journal = tmp_path / "killed" / "cells.jsonl"
    assert len(journal.read_text().splitlines()) == 4
    with journal.open("a") as file:
        file.write('{"key": "cut o')  # killed in the middle of a line
    powers.calls, powers.dies_after = 0, None
    run_study("powers", out=tmp_path / "killed", progress=print)
    assert powers.calls == 2
    assert contents(tmp_path / "killed") == contents(tmp_path / "whole")
    run_study("powers", out=tmp_path / "killed", progress=print)
    assert powers.calls == 2


def test_cells_do_not_depend_on_their_order(powers: Powers, tmp_path: Path) -> None:
    settings = [{"power": p, "seed": s} for p in (1, 2) for s in (3, 4)]
    forwards = cells(settings, powers.measure, tmp_path / "a", print)
    backwards = cells(settings[::-1], powers.measure, tmp_path / "b", print)
    assert forwards == backwards[::-1]


def test_another_study_is_not_overwritten(powers: Powers, tmp_path: Path) -> None:
    run_study("powers", out=tmp_path, progress=print)
    with pytest.raises(
        ConfigError, match=r"contains another study, or this one with other options .* choose another --out"
    ):
        run_study("powers", Options(powers=(5,)), out=tmp_path, progress=print)
    (tmp_path / "study.yaml").unlink()
    with pytest.raises(ConfigError, match=r"has results of a study but no study\.yaml"):
        run_study("powers", out=tmp_path, progress=print)


def test_rows_of_a_table_agree(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"rows of t\.csv have different columns"):
        study.write(tmp_path, "noise", Options(), Findings({"t": [{"a": 1}, {"b": 2}]}, {}, []))


def test_the_folder_has_a_number_of_its_own(powers: Powers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        assert main(["study", "powers", "--small", "--quiet"]) == 0
    assert sorted(path.name for path in Path("studies").iterdir()) == ["powers-1", "powers-2"]


def test_options_of_the_command_line(powers: Powers, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["study", "powers", "--out", str(tmp_path / "a"), "--small", "--seed=3", "--loud"]) == 0
    assert powers.last == Options(seed=3, powers=(1,), loud=True)
    shown = capsys.readouterr()
    assert shown.out.splitlines() == ["2 < powers", f"look at it: {tmp_path / 'a'}/report.html"]
    assert "2 of 2: power 1, seed 1, value" in shown.err
    assert main(["study", "powers", "--out", str(tmp_path / "b"), "--powers", "4,5", "--quiet"]) == 0
    assert powers.last.powers == (4, 5) and not capsys.readouterr().err


def test_what_is_told_counts_more_than_small(powers: Powers, tmp_path: Path) -> None:
    assert main(["study", "powers", "--small", "--powers", "4,5", "--out", str(tmp_path), "--quiet"]) == 0
    assert powers.last.powers == (4, 5)


def test_options_of_training(powers: Powers, tmp_path: Path) -> None:
    powers.Options = Trained
    words = ["glyphs", "--seeds", "2", "--dimension", "64", "--loss", "CircleLoss", "--loss.m", "0.3"]
    assert main(["study", "powers", *words, "--out", str(tmp_path)]) == 0
    given = powers.last
    assert (given.config.data.path, given.config.model.dimension, list(given.all_seeds)) == ("glyphs", 64, [0, 1])
    assert given.loss == (LossConfig("CircleLoss", {"m": 0.3}),) and given.config.loss == ()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["powrs"], "there is no study powrs: did you mean powers?"),
        (["--small"], "the name of a study comes first"),
        (["powers", "--power", "2"], "there is no option --power: did you mean --powers?"),
        (["powers", "--powers", "two"], "powers must be a whole number"),
        (["powers", "photos"], "powers takes no data"),
        (["powers", "--backbone", "convnet"], "there is no option --backbone"),
    ],
)
def test_mistakes(powers: Powers, words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["study", *words]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["a", "b"], "takes one data set, not 2"),
        (["a", "--data.path", "b"], "DATA and --data.path are the same"),
        (["--seeds", "0"], "seeds must be at least 1"),
        (["--classes", "1"], "classes must be at least 2"),
    ],
)
def test_mistakes_of_training(
    powers: Powers, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    powers.Options = Trained
    assert main(["study", "powers", *words]) == 2
    assert message in capsys.readouterr().err


def test_listing_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["study"]) == 0
    shown = capsys.readouterr().out
    assert all(f"{name} " in shown for name in STUDIES)


@pytest.mark.parametrize("name", STUDIES)
def test_every_study_has_its_module_help_and_small_form(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    module = study_module(name)
    options = module.Options()
    assert options.small() != options
    with pytest.raises(SystemExit):
        main(["study", name, "--help"])
    shown = capsys.readouterr().out
    assert shown.startswith(f"usage: nearfar study {name} ") and "--small" in shown and "--seed" in shown
