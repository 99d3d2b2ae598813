"""Curves of trainings, and pairs at the boundary."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from nearfar.studies import convergence, crossing, heads
from nearfar.studies.convergence import Options, curve_rows, end_rows, second_rows
from nearfar.studies.crossing import Tracker, members, spread_of
from nearfar.studies.study import Findings, run_study
from nearfar.training.config import TrainConfig
from nearfar.training.options import ConfigError, with_options
from tests.compare.making import trunk_file
from tests.training.making import SMALL, patterns

CURVE = {
    "loss": "A",
    "seed": 0,
    "looked at": [0, 2],
    "seconds": [0.0, 0.5],
    "recall@1": [0.1, 0.7],
    "s_p": [0.3, 0.4],
    "s_n": [0.2, 0.1],
}


def test_rows_of_a_curve() -> None:
    assert curve_rows([CURVE]) == [
        {"loss": "A", "seed": 0, "step": 1, "s_p": 0.3, "s_n": 0.2, "recall@1": None},
        {"loss": "A", "seed": 0, "step": 2, "s_p": 0.4, "s_n": 0.1, "recall@1": 0.7},
    ]
    assert second_rows([CURVE])[1] == {"loss": "A", "seed": 0, "step": 2, "seconds": 0.5}
    assert end_rows([CURVE])[0]["start recall@1"] == 0.1 and end_rows([CURVE])[0]["recall@1"] == 0.7


def test_sentences_say_who_gets_there_first() -> None:
    slow = {**CURVE, "loss": "B", "looked at": [0, 1, 2], "recall@1": [0.1, 0.2, 0.6], "seconds": [0, 1, 2]}
    fast = {**CURVE, "loss": "C", "looked at": [0, 1, 2], "recall@1": [0.1, 0.69, 0.7], "seconds": [0, 1, 2]}
    words = convergence._about_curves([slow, fast], SimpleNamespace(losses=("B", "C")))
    assert words[0] == "Recall@1 starts at 10.0 % and ends, in per cent, at: B 60.0, C 70.0."
    assert words[1].endswith("to the best end (C) is reached after: B never, C 1 steps.")


def test_looks_end_with_the_last_step() -> None:
    assert Options(steps=100, looks=4).look_at == [25, 50, 75, 100]
    assert Options(steps=10, looks=3).look_at == [3, 7, 10]


PLACES = [
    [(0.5, 0.5), (0.3, 0.7), (0.2, 0.7), (0.1, 0.9)],  # crosses in the end
    [(0.1, 0.9), (0.5, 0.5), (0.1, 0.8), (0.2, 0.9)],  # starts inside, leaves, crosses back
    [(0.5, 0.5), (0.6, 0.6), (0.5, 0.6), (0.5, 0.7)],  # never
]


def at(s_n: float, s_p: float) -> torch.Tensor:
    """An embedding at these similarities to the class vectors e_1 (its own), e_2 and e_3 (0)."""
    return torch.tensor([s_p, s_n, 0, (1 - s_n**2 - s_p**2) ** 0.5])


def test_the_tracker_sees_pairs_cross_the_circle() -> None:
    member = members(0.35, [0.25], 64.0)["Circle, m = 0.25"]
    tracker = Tracker(member, torch.zeros(3, 1), torch.zeros(3, dtype=torch.long))
    weight = 5 * torch.eye(3, 4)  # lengths do not matter
    for step in range(4):
        tracker.see(torch.stack([at(*way[step]) for way in PLACES]), weight)
    inside = [[s_n**2 + (1 - s_p) ** 2 <= 2 * 0.25**2 for s_n, s_p in way] for way in PLACES]
    assert inside == [[False, False, False, True], [True, False, True, True], [False] * 4]
    np.testing.assert_allclose(tracker.crossed[0], (0.1, 0.9), atol=1e-6)
    np.testing.assert_allclose(tracker.crossed[1], (0.1, 0.8), atol=1e-6)
    assert np.isnan(tracker.crossed[2]).all()
    np.testing.assert_allclose(tracker.last, [(0.1, 0.9), (0.2, 0.9), (0.5, 0.7)], atol=1e-6)


def test_sentence_and_spread() -> None:
    assert spread_of([[0.0, 0.0], [3.0, 4.0]]) == 2.5
    row = {"pairs of": "Circle", "followed": 4, "crossed": [[0.0, 0.0], [3.0, 4.0]], "last": [[1.0, 1.0]]}
    assert crossing.sentence(row) == (
        "Circle: 50 % of 4 images crossed the boundary, in places that spread by 2.500; in the end they spread by 0.000."
    )
    assert "0 % of 4 images crossed the boundary; in" in crossing.sentence({**row, "crossed": []})


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> Options:
    """The small form on patterns, with a network of a millisecond."""
    folder = tmp_path_factory.mktemp("data")
    table = patterns(classes=24, each=8, noise=60.0)
    splits = np.where(table.labels < 12, "train", "test")
    pixels = np.stack([np.asarray(table.images[row]) for row in range(len(table))])
    np.savez(folder / "patterns.npz", images=pixels, labels=table.labels, splits=splits)
    config = with_options(
        TrainConfig(), {**SMALL, "weights": trunk_file(folder), "data.path": str(folder / "patterns.npz")}
    )
    return replace(Options().small(), config=config, classes=None)


@pytest.fixture(scope="module")
def found(options: Options, tmp_path_factory: pytest.TempPathFactory) -> tuple[Findings, Path]:
    folder = tmp_path_factory.mktemp("study")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NEARFAR_CACHE", str(tmp_path_factory.mktemp("cache")))
        return run_study("convergence", options, out=folder, progress=print), folder


def test_the_study(found: tuple[Findings, Path], options: Options) -> None:
    findings, folder = found
    assert {path.stem for path in folder.glob("*.csv")} == {"curves", "seconds", "ends", "pairs"}
    assert {path.stem for path in folder.glob("*.png")} == {"recall", "similarities", "pairs"}
    rows = findings.tables["curves"]
    assert len(rows) == 2 * 12 and [row["step"] for row in rows if row["recall@1"] is not None][:3] == [4, 8, 12]
    starts = {row["start recall@1"] for row in findings.tables["ends"]}
    assert len(starts) == 1  # the same start for all losses
    for row in findings.tables["ends"]:
        assert row["s_p"] > row["s_n"]
    assert len(findings.tables["pairs"]) >= 2 * 40


def test_a_killed_study_ends_with_the_same_numbers(
    found: tuple[Findings, Path], options: Options, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEARFAR_CACHE", str(tmp_path / "cache"))
    whole = found[1]
    lines = (whole / "cells.jsonl").read_text().splitlines(keepends=True)
    kept = lines[1:3]  # Circle's curve and AM-Softmax's pairs: the others are trained again
    for path in ("study.yaml",):
        (tmp_path / path).write_bytes((whole / path).read_bytes())
    (tmp_path / "cells.jsonl").write_text("".join(kept))
    trained = []
    train = heads.Heads.train
    monkeypatch.setattr(
        heads.Heads, "train", lambda self, loss, *a, **k: (trained.append(loss.name), train(self, loss, *a, **k))[1]
    )
    run_study("convergence", options, out=tmp_path, progress=print)
    assert trained == ["ProxyAnchorLoss", "CircleLoss"]
    for name in ("curves.csv", "ends.csv", "pairs.csv", "pairs.svg", "similarities.svg"):
        assert (tmp_path / name).read_bytes() == (whole / name).read_bytes(), name
    again = (tmp_path / "cells.jsonl").read_text().splitlines()
    assert {json.loads(line)["key"] for line in again} == {json.loads(line)["key"] for line in lines}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"looks": 0}, "from 1 to as many looks"),
        ({"steps": 3, "looks": 4}, "there are 3 steps to look at"),
        ({"losses": ()}, "shows 1 to 6 losses, not 0"),
        ({"losses": ("CircelLoss",)}, "did you mean CircleLoss"),
    ],
)
def test_wrong_options(wrong: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Options(**wrong)
