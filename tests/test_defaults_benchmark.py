"""The benchmark of every loss by its defaults: what it trains, that it resumes where it was stopped, what it writes."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from benchmarks import defaults

from nearfar.losses import list_losses
from nearfar.training.build import build_loss
from nearfar.training.collapse import CollapseError
from nearfar.training.loss_defaults import defaults_of
from nearfar.training.options import read_losses

INTERVALS = {"recall@1": (0.7, 0.9), "map@r": (0.3, 0.5)}


def candidate(recall: float) -> dict[str, Any]:
    return {"metrics": {"recall@1": recall, "map@r": recall / 2}, "intervals": INTERVALS}


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Every call of `train`; ArcFace collapses."""
    calls: list[dict[str, Any]] = []

    def train(data: str, **options: Any) -> Any:
        calls.append({"data": data, **options})
        if options["loss"] == "ArcFaceLoss":
            raise CollapseError("collapsed")
        candidates = {"trained": candidate(0.8), "start" if data == "glyphs" else "features": candidate(0.1)}
        return SimpleNamespace(metrics={"candidates": candidates, "train_seconds": 90.0})

    monkeypatch.setattr(defaults, "train", train)
    return calls


def test_every_registered_loss_is_trained() -> None:
    names = defaults.every_loss()
    assert len(set(names)) == len(names)
    assert names[: len(defaults.FIRST)] == list(defaults.FIRST)
    for info in list_losses():
        mentioned = any(info.name in name for name in names)
        assert mentioned == (info.level != "towers"), info.name
        if info.level == "pair or class":
            assert f"{info.name}, class-level" in names
    for name in names:
        losses = read_losses(name.removesuffix(defaults.CLASS_LEVEL), "loss")
        assert list(build_loss(losses, 3, 4).modules())


def test_it_resumes_where_it_was_stopped(trained: list[dict[str, Any]], tmp_path: Path) -> None:
    out, losses = tmp_path / "rows.csv", ["NormFaceLoss", "ArcFaceLoss", "CircleLoss, class-level"]
    assert defaults.measure(["glyphs", "somewhere/CUB"], losses[:2], [0], out) == 0
    assert [(call["data"], call["loss"]) for call in trained] == [
        ("glyphs", "NormFaceLoss"), ("glyphs", "ArcFaceLoss"),
        ("somewhere/CUB", "NormFaceLoss"), ("somewhere/CUB", "ArcFaceLoss"),
    ]  # fmt: skip
    assert ["freeze" in call for call in trained] == [False, False, True, True]
    del trained[:]
    defaults.measure(["glyphs"], losses, [0, 1], out)
    assert [(call["loss"], call["seed"]) for call in trained] == [
        ("CircleLoss", 0), ("NormFaceLoss", 1), ("ArcFaceLoss", 1), ("CircleLoss", 1),
    ]  # fmt: skip
    assert trained[0]["loss.class_level"] is True


def test_the_table(trained: list[dict[str, Any]], tmp_path: Path) -> None:
    out = tmp_path / "rows.csv"
    defaults.measure(["glyphs", "CUB"], ["NormFaceLoss", "ArcFaceLoss"], [0, 1], out)
    shown = defaults.table(defaults.read(out))
    assert "| `NormFaceLoss` | 80.0 [70.0, 90.0] | 40.0 [30.0, 50.0] | 1.5 | 0, 1 |  |" in shown
    assert "| *before training* | 10.0" in shown and "| *the features* | 10.0" in shown
    reason = defaults_of("ArcFaceLoss", "scratch").why
    assert f"| `ArcFaceLoss` | - | - | - | 0, 1 | 2 of 2 collapsed; {reason} |" in shown
    assert "| `ArcFaceLoss` | - | - | - | 0, 1 | 2 of 2 collapsed |" in shown
