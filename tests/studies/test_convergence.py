"""Curves of trainings, and pairs at the boundary."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from nearfar.compare.spaces import read_contestant
from nearfar.studies import convergence, crossing
from nearfar.studies.convergence import (
    Options,
    best_of,
    curve_rows,
    end_rows,
    rates,
    second_rows,
    trial_options,
    with_arguments,
)
from nearfar.studies.crossing import Tracker, members, spread_of
from nearfar.studies.networks import Networks
from nearfar.studies.study import Findings, run_study
from nearfar.training.config import OptimiserConfig, TrainConfig
from nearfar.training.options import ConfigError, with_options
from tests.compare.making import trunk_file
from tests.training.making import SMALL, patterns

CURVE = {
    "loss": "ProxyAnchorLoss",
    "settings": "defaults",
    "seed": 0,
    "looked at": [0, 2],
    "seconds": [0.0, 0.5],
    "recall@1": [0.1, 0.7],
    "map@r": [0.05, 0.3],
    "diverged": False,
    "s_p": [None, 0.4],
    "s_n": [0.2, 0.1],
}


def test_rows_of_a_curve() -> None:
    who = {"loss": "ProxyAnchorLoss", "settings": "defaults", "seed": 0}
    assert curve_rows([CURVE]) == [
        {**who, "step": 1, "s_p": None, "s_n": 0.2, "recall@1": None},
        {**who, "step": 2, "s_p": 0.4, "s_n": 0.1, "recall@1": 0.7},
    ]
    assert second_rows([CURVE])[1] == {**who, "step": 2, "seconds": 0.5}
    ended = end_rows([CURVE])[0]
    assert (ended["start recall@1"], ended["recall@1"], ended["s_p"]) == (0.1, 0.7, 0.4)


def test_sentences_say_who_gets_there_first() -> None:
    looked = {"looked at": [0, 1, 2], "seconds": [0, 1, 2]}
    slow = {**CURVE, **looked, "loss": "TripletMarginLoss", "recall@1": [0.1, 0.2, 0.6]}
    fast = {**CURVE, **looked, "recall@1": [0.1, 0.69, 0.7]}
    names = ("TripletMarginLoss", "ProxyAnchorLoss")
    words = convergence.about_curves([slow, fast], SimpleNamespace(losses=names))
    assert words[0].endswith(
        "starts at 10.0 % and ends, in per cent, at: TripletMarginLoss 60.0, ProxyAnchorLoss 70.0."
    )
    assert words[1].endswith(
        "(ProxyAnchorLoss) is reached after: TripletMarginLoss never, ProxyAnchorLoss 1 steps, 1.0 s."
    )
    assert "end higher than pair losses: holds" in words[2] and "there sooner: holds" in words[2]
    level = {**slow, "recall@1": [0.1, 0.2, 0.69]}
    assert (
        "end higher than pair losses: unclear"
        in convergence.about_curves([level, fast], SimpleNamespace(losses=names))[2]
    )
    gone = {**fast, "diverged": True}
    words = convergence.about_curves([slow, gone], SimpleNamespace(losses=names))
    assert "ProxyAnchorLoss diverged" in words[0] and "ProxyAnchorLoss never" in words[1]


def test_the_search_begins_with_the_defaults_and_stays_near_them() -> None:
    own = OptimiserConfig(lr=1e-3, proxies=2.0)
    assert trial_options("ProxyAnchorLoss", 0, own, 0) == {}
    drawn = [trial_options("ProxyAnchorLoss", trial, own, 0) for trial in (1, 2)]
    assert drawn[0] != drawn[1] and drawn[0] == trial_options("ProxyAnchorLoss", 1, own, 0)
    for options in drawn:
        assert set(options) == {"lr", "optimiser.proxies", "loss.margin", "loss.alpha"}
        assert 1e-3 / 3.1 <= options["lr"] <= 3.1e-3 and 2 / 3.1 <= options["optimiser.proxies"] <= 6.2
        assert 32 / 3 <= options["loss.alpha"] <= 96 and 0 <= options["loss.margin"] <= 0.225
    own = OptimiserConfig(lr=1e-3, classes=1e-2)  # absolute, as the defaults have it
    assert 1e-2 / 3.1 <= trial_options("ProxyAnchorLoss", 1, own, 0)["optimiser.classes"] <= 3.1e-2
    assert trial_options("TripletMarginLoss", 1, own, 0)["loss.mining"] in (
        "batch_hard",
        "easy_positive",
        "semihard",
        "all",
    )
    tried = [
        {"search": "A", "options": {}, "recall@1": 0.5},
        {"search": "A", "options": {"lr": 1.0}, "recall@1": None},
        {"search": "A", "options": {"lr": 2.0}, "recall@1": 0.6},
    ]
    assert best_of(tried, "A") == {"lr": 2.0} and best_of(tried[:2], "A") == {} == best_of([], "A")
    loss = with_arguments(read_contestant("ProxyAnchorLoss"), {"lr": 1.0, "loss.alpha": 8.0})
    assert loss.arguments == {"alpha": 8.0} and rates({"lr": 1.0, "loss.alpha": 8.0}) == {"lr": 1.0}


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
    tracker = Tracker(member, torch.zeros(3, dtype=torch.long))
    weight = 5 * torch.eye(3, 4)  # lengths do not matter
    for step in range(4):
        tracker.update(torch.stack([at(*way[step]) for way in PLACES]), weight)
    inside = [[s_n**2 + (1 - s_p) ** 2 <= 2 * 0.25**2 for s_n, s_p in way] for way in PLACES]
    assert inside == [[False, False, False, True], [True, False, True, True], [False] * 4]
    np.testing.assert_allclose(tracker.crossed[0], (0.1, 0.9), atol=1e-6)
    np.testing.assert_allclose(tracker.crossed[1], (0.1, 0.8), atol=1e-6)
    assert np.isnan(tracker.crossed[2]).all()
    assert tracker.inside.tolist() == [True, True, False]
    np.testing.assert_allclose(tracker.last, [(0.1, 0.9), (0.2, 0.9), (0.5, 0.7)], atol=1e-6)


def test_sentence_and_spread() -> None:
    assert spread_of([[0.0, 0.0], [3.0, 4.0]]) == 2.5
    row = {
        "pairs of": "Circle", "followed": 4, "inside": 0.75, "crossed": [[0.0, 0.0], [3.0, 4.0]], "last": [[1.0, 1.0]],
    }  # fmt: skip
    assert crossing.sentence(row) == (
        "Circle: 50 % of 4 images crossed the boundary, with a spread of 2.500; in the end 75 % are inside it, "
        "about (1.00, 1.00), with a spread of 0.000."
    )
    assert "0 % of 4 images crossed the boundary; in" in crossing.sentence({**row, "crossed": []})
    wide = {**row, "pairs of": "AM", "crossed": [[0.0, 0.0], [6.0, 8.0]], "last": [[0.0, 0.0], [1.0, 1.0]]}
    assert crossing.verdict([wide, row])[0].endswith("closer together than those of AM: holds.")
    assert crossing.verdict([row, wide])[0].endswith("does not.")
    assert "only 20 % of the pairs are inside" in crossing.verdict([wide, {**row, "inside": 0.2}])[0]


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> Options:
    """The small form on patterns, with a network of a millisecond."""
    folder = tmp_path_factory.mktemp("data")
    table = patterns(classes=24, each=8, noise=60.0)
    splits = np.where(table.labels < 12, "train", "test")
    pixels = np.stack([np.asarray(table.images[row]) for row in range(len(table))])
    np.savez(folder / "patterns.npz", images=pixels, labels=table.labels, splits=splits)
    config = with_options(TrainConfig(), {**SMALL, "options": {"width": 4}, "data.path": str(folder / "patterns.npz")})
    return replace(Options().small(), config=config, classes=None)


@pytest.fixture(scope="module")
def found(options: Options, tmp_path_factory: pytest.TempPathFactory) -> tuple[Findings, Path]:
    folder = tmp_path_factory.mktemp("study")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NEARFAR_CACHE", str(tmp_path_factory.mktemp("cache")))
        return run_study("convergence", options, out=folder, progress=print), folder


def test_the_study(found: tuple[Findings, Path], options: Options) -> None:
    findings, folder = found
    assert {path.stem for path in folder.glob("*.csv")} == {"curves", "seconds", "ends", "pairs", "search"}
    assert {path.stem for path in folder.glob("*.png")} == {"recall", "similarities", "pairs"}
    rows = [row for row in findings.tables["curves"] if row["settings"] == "defaults"]
    assert len(rows) == 2 * 12 and [row["step"] for row in rows if row["recall@1"] is not None][:3] == [4, 8, 12]
    starts = {row["start recall@1"] for row in findings.tables["ends"]}
    assert len(starts) == 1  # the same start for all losses
    assert {row["settings"] for row in findings.tables["ends"]} == {"defaults", "best"}
    assert len(findings.tables["search"]) == 2 * options.trials
    assert len(findings.tables["pairs"]) >= 2 * 40
    assert findings.sentences[0].startswith("The setting: convnet of width 4, 12 steps")
    assert any("% of the pairs are inside" in sentence or "holds" in sentence for sentence in findings.sentences[-1:])


def test_a_killed_study_ends_with_the_same_numbers(
    found: tuple[Findings, Path], options: Options, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEARFAR_CACHE", str(tmp_path / "cache"))
    whole = found[1]
    lines = (whole / "cells.jsonl").read_text().splitlines(keepends=True)
    kept = [line for line in lines if '"search' in line or '"pairs of' in line]  # the curves are trained again
    assert len(kept) == 2 * options.trials + 2
    for path in ("study.yaml",):
        (tmp_path / path).write_bytes((whole / path).read_bytes())
    (tmp_path / "cells.jsonl").write_text("".join(kept))
    trained = []
    train = Networks.train
    monkeypatch.setattr(
        Networks, "train", lambda self, loss, *a, **k: (trained.append(loss.name), train(self, loss, *a, **k))[1]
    )
    run_study("convergence", options, out=tmp_path, progress=print)
    assert set(trained) == {"ProxyAnchorLoss", "CircleLoss"} and len(trained) == len(lines) - len(kept)
    for name in ("curves.csv", "ends.csv", "pairs.csv", "pairs.svg", "similarities.svg"):
        assert (tmp_path / name).read_bytes() == (whole / name).read_bytes(), name
    again = (tmp_path / "cells.jsonl").read_text().splitlines()
    assert {json.loads(line)["key"] for line in again} == {json.loads(line)["key"] for line in lines}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"trials": 0}, "at least 1, the defaults"),
        ({"looks": 0}, "looks must be from 1"),
        ({"steps": 3, "looks": 4}, "looks must be from 1 to the number of steps, 3"),
        ({"losses": ()}, "shows 1 to 6 losses, not 0"),
        ({"losses": ("CircelLoss",)}, "did you mean CircleLoss"),
    ],
)
def test_wrong_options(wrong: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Options(**wrong)


def test_heads_on_a_frozen_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """--freeze, by the same steps."""
    monkeypatch.setenv("NEARFAR_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("nearfar.studies.heads.reopen", lambda path, layout=None: patterns())
    options = {**SMALL, "path": "patterns", "weights": trunk_file(tmp_path), "freeze": True}
    small = replace(Options().small(), config=with_options(TrainConfig(), options), tracked=0)
    found = run_study("convergence", small, out=tmp_path / "study", progress=print)
    assert set(found.figures) == {"recall", "similarities"}
    assert len({row["start recall@1"] for row in found.tables["ends"]}) == 1
