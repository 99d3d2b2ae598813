"""A collapse is seen by two looks, stops the run, and earns no threshold."""

import math
from pathlib import Path
from typing import Any

import pytest

from nearfar.cli import main
from nearfar.training import finish, thresholds
from nearfar.training.collapse import CollapseError, CollapseWatch
from nearfar.training.config import TrainConfig
from nearfar.training.options import with_options
from nearfar.training.train import train
from tests.training.making import SMALL, patterns


def seen(*looks: tuple[float, float]) -> list[bool]:
    watch = CollapseWatch(60)
    return [watch.sees(*look) for look in looks]


def test_two_looks_confirm_each_other() -> None:
    start, gone = (0.90, 0.88), (0.9990, 0.9988)
    assert seen(start, gone, gone) == [False, False, True]
    assert seen(start, gone, (0.95, 0.9), gone, gone) == [False, False, False, False, True]


def test_one_that_learns_in_a_narrow_cone_has_not_collapsed() -> None:
    assert not any(seen((0.9, 0.9), (0.996, 0.991), (0.996, 0.991)))  # samples of a class are half as far apart


def test_nothing_is_learned_in_one_point() -> None:
    assert seen((0.9, 0.9), (0.999998, 0.999996), (0.999998, 0.999996)) == [False, False, True]


def test_one_that_begins_so_is_given_time() -> None:
    start = (0.995, 0.995)
    assert not any(seen(start, (0.9952, 0.9945), (0.9955, 0.9940)))
    assert seen(start, start, start) == [False, False, True]


def test_no_pairs_of_a_class() -> None:
    assert seen((math.nan, 0.9), (math.nan, 0.999), (math.nan, 0.999)) == [False, False, True]


def test_it_looks_three_times_an_epoch() -> None:
    assert [step for step in range(1, 70) if CollapseWatch(66).due(step)] == [1, 22, 44, 66]
    assert [step for step in range(1, 31) if CollapseWatch(3).due(step)] == [1, 10, 20, 30]
    assert CollapseWatch(10**6).every == 500


# Gradients of batch-hard triplets at this rate push everything to one side.
COLLAPSING = {**SMALL, "loss": "TripletMarginLoss", "loss.mining": "batch_hard", "lr": 0.3, "epochs": 40}


def test_a_run_stops(tmp_path: Path) -> None:
    with pytest.raises(CollapseError, match=r"(?s)collapsed .*--loss.mining all.*--on-collapse continue") as caught:
        train(patterns(), out=str(tmp_path / "run"), quiet=True, **COLLAPSING)
    assert caught.value.exit_code == 3
    assert not (tmp_path / "run" / "report.html").exists()


def test_a_run_goes_on_if_told_to(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options: dict[str, Any] = {**COLLAPSING, "on_collapse": "continue"}
    run = train(patterns(), out=str(tmp_path / "run"), **options)
    assert run.finished and run.metrics["steps"] == run.load_checkpoint("last")["step"] > 40
    assert capsys.readouterr().err.count("training has collapsed") == 1


def test_what_is_no_better_than_it_began_has_no_threshold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finish, "learned", lambda *given: False)
    run = train(patterns(), out=str(tmp_path / "run"), quiet=True, max_steps=2, **SMALL)
    assert run.metrics["threshold"] is None and run.metrics["threshold_note"] == thresholds.NO_BETTER
    assert run.model().calibration == {}


def test_what_has_learned_something() -> None:
    scratch = with_options(TrainConfig(), {"backbone": "convnet"})
    pretrained = with_options(TrainConfig(), {"backbone": "efficientnet-lite0"})
    assert finish.learned("trained", {"start": 0.1, "trained": 0.2}, scratch)
    assert not finish.learned("trained", {"start": 0.1, "trained": 0.1}, scratch)
    assert not finish.learned("start", {"start": 0.1, "trained": 0.1}, scratch)
    assert finish.learned("start", {"start": 0.1, "trained": 0.1}, pretrained)
    assert finish.learned("features", {"features": 0.1, "trained": 0.1}, pretrained)


def test_the_option_may_be_written_with_a_dash(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--on-collapse", "continue", "--print_config"]) == 0
    assert "on_collapse: continue" in capsys.readouterr().out
