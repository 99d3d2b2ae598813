"""Sweeps of scales, margins and dimensions: which losses they really train with."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nearfar.compare import trial
from nearfar.studies import sensitivity
from nearfar.studies.sensitivity import LINES, MAPS, Options, about_alpha, draw, loss_of, sentences, settings_of
from nearfar.training.build import build_loss
from nearfar.training.config import TrainConfig
from nearfar.training.options import ConfigError, with_options
from tests.training.making import SMALL, patterns


def test_the_grids_are_the_papers() -> None:
    counts = {part: len(settings_of(part, Options())) for part in (*MAPS, *LINES)}
    assert counts == {
        "gamma-m": 36,
        "optima": 9,
        "margins": 9,
        "alpha-delta": 25,
        "scale": 18,
        "dimension": 12,
        "alpha": 5,
    }
    for part in counts:
        settings = settings_of(part, Options())
        assert len({tuple(setting.items()) for setting in settings}) == len(settings)
    gammas = {setting["gamma"] for setting in settings_of("gamma-m", Options())}
    assert (min(gammas), max(gammas)) == (32, 1024)
    assert {setting["alpha"] for setting in settings_of("alpha-delta", Options())} == {4, 8, 16, 32, 64}


@pytest.mark.parametrize("part", [*MAPS, "scale", "alpha"])
def test_a_setting_is_what_the_loss_is_built_with(part: str) -> None:
    for setting in settings_of(part, Options()):
        loss: Any = build_loss((loss_of(part, setting),), 3, 4)
        assert type(loss).__name__ == setting["loss"].removesuffix("/class")
        if part == "scale":
            scale = loss.gamma if setting["loss"] == "CircleLoss/class" else loss.scale
            assert scale == setting["gamma"] and loss.weight.shape == (3, 4)
        else:
            assert all(getattr(loss, name) == setting[name] for name in MAPS.get(part, (part,)))
    if part == "optima":
        assert loss.optima_and_margins[2:] == (0.6, 0.4)  # as m gives them
        assert loss.gamma == 80


def test_run(config: TrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[tuple[Any, int]] = []
    build = trial.build_loss
    monkeypatch.setattr(
        trial,
        "build_loss",
        lambda losses, classes, size: built.append((losses[0], size)) or build(losses, classes, size),
    )
    options = Options(
        parts=("gamma-m", "dimension"), gamma=(32.0, 512.0), m=(-0.1, 0.3), dimensions=(4, 16), seeds=1, config=config
    )
    found = sensitivity.run(options, tmp_path, print)
    assert [(loss.name, dict(loss.arguments), size) for loss, size in built] == [
        ("CircleLoss", {"gamma": gamma, "m": m}, 8) for m in (-0.1, 0.3) for gamma in (32.0, 512.0)
    ] + [(name, {}, size) for size in (4, 16) for name in ("CircleLoss", "ProxyAnchorLoss")]
    assert list(found.tables) == list(found.figures) == ["gamma-m", "dimension"]
    assert [(row["gamma"], row["m"]) for row in found.tables["gamma-m"]] == [
        (32, -0.1), (512, -0.1), (32, 0.3), (512, 0.3),
    ]  # fmt: skip
    # The same cells in another order are the same cells.
    turned = replace(options, gamma=options.gamma[::-1], dimensions=options.dimensions[::-1])
    other = sensitivity.run(turned, tmp_path / "turned", print)
    for part in options.parts:
        assert sorted(map(str, other.tables[part])) == sorted(map(str, found.tables[part]))


def test_alpha_on_whole_networks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nearfar.studies.heads.reopen", lambda path, layout=None: patterns())
    config = with_options(TrainConfig(), {**SMALL, "path": "patterns", "options": {"width": 4}})
    options = Options(parts=("alpha",), alpha=(4.0, 32.0), steps=4, seeds=2, classes=12, config=config)
    found = sensitivity.run(options, tmp_path, print)
    rows = found.tables["alpha"]
    assert [row["alpha"] for row in rows] == [4, 32] and list(found.figures) == ["alpha"]
    assert rows[0]["recall@1"] != rows[1]["recall@1"]
    assert found.sentences[-1].startswith("The setting: convnet of width 4, 4 steps")


def test_what_is_said_of_alpha() -> None:
    rows = [
        {"alpha": alpha, "recall@1": value, "recall@1 ±": 0.01}
        for alpha, value in ((4.0, 0.5), (16.0, 0.6), (32.0, 0.7), (64.0, 0.65))
    ]
    words = about_alpha(rows)
    assert "holds here: α = 32 gives +10.0 points to α = 16" in words
    assert "is unclear here" in about_alpha([{**row, "recall@1 ±": 0.1} for row in rows])
    assert "does not hold here" in about_alpha([rows[1], {**rows[2], "recall@1": 0.5}])
    assert "without values on both sides" in about_alpha(rows[:2])


def test_sentences_and_map() -> None:
    rows: list[dict[str, Any]] = [
        {"loss": "CircleLoss", "gamma": gamma, "m": m, "recall@1": value, "recall@1 ±": 0.002}
        for m, gamma, value in ((0.0, 32.0, 0.5), (0.0, 64.0, 0.595), (0.2, 32.0, 0.55), (0.2, 64.0, 0.6))
    ]
    assert sentences("gamma-m", rows, 0.45) == [
        "gamma-m, CircleLoss: Recall@1 from 50.0 ± 0.2 % to 60.0 ± 0.2 %, best at γ = 64 and m = 0.2; 2 of 4 settings "
        "lie within a point of it; m from 0 to 0.2 among them. Before training it was 45.0 %."
    ]
    (axes,) = draw("gamma-m", rows, 0.45).axes
    texts = {text.get_position(): text.get_text() for text in axes.texts}
    assert texts[1, 0] == "59.5\n± 0.2" and texts[0, 1] == "55.0\n± 0.2"
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("γ", "m")
    for row in rows:
        row["recall@1"] = None
    assert sentences("gamma-m", rows, 0.45) == ["gamma-m: CircleLoss diverged everywhere."]


def test_mistakes() -> None:
    with pytest.raises(ConfigError, match="sensitivity has no part gama-m: did you mean gamma-m"):
        Options(parts=("gama-m",))
    with pytest.raises(ConfigError, match="at least one"):
        Options(parts=())
