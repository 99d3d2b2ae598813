"""What is compared, and how it is kept; the journal."""

from pathlib import Path

import pytest

from nearfar.compare.journal import Journal
from nearfar.compare.settings import (
    Effort,
    make_comparison,
    new_folder,
    read_comparison,
    write_comparison,
)
from nearfar.training.config import TrainConfig
from nearfar.training.options import ConfigError, with_options


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"trials": 0}, "trials must be at least 1"),
        ({"seeds": 0}, "seeds must be at least 1"),
        ({"folds": 1}, "folds must be at least 2"),
        ({"budget": 0.0}, "budget must be a time"),
        ({"budget": float("nan")}, "budget must be a time"),
    ],
)
def test_effort_is_checked(options: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Effort(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "losses", "finetune", "message"),
    [
        ({}, ["ArcFaceLoss", "ArcFaceLoss"], False, "ArcFaceLoss is named twice"),
        ({}, ["Circle"], False, "did you mean CircleLoss"),
        ({"loss": "CircleLoss"}, None, False, "takes the option losses, not loss"),
        ({"devices": 2}, None, False, "on one device"),
        ({"evaluation.watch_test": True}, None, False, "once, at the end"),
        ({"freeze": True}, None, True, "leave one of them out"),
        ({"lr": 1e-3}, None, False, r"optimiser\.lr is searched"),
        ({"optimiser.classes": 0.1}, None, False, r"optimiser\.classes is searched"),
    ],
)
def test_comparisons_are_checked(options: dict[str, object], losses: list[str], finetune: bool, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_comparison(with_options(TrainConfig(), options), losses, Effort(), finetune)


def test_a_comparison_is_kept_as_it_is(tmp_path: Path) -> None:
    shared = with_options(TrainConfig(), {"size": 64, "dimension": 32, "options": {"width": 8}})
    comparison = make_comparison(shared, ["CircleLoss/class", "SupConLoss"], Effort(3, 2, 5, 600.0), finetune=False)
    assert comparison.shared.model.freeze
    write_comparison(comparison, tmp_path)
    assert read_comparison(tmp_path) == comparison and comparison.named
    everyone = make_comparison(shared, None, Effort(), finetune=False)
    write_comparison(everyone, tmp_path / "all")
    assert read_comparison(tmp_path / "all") == everyone and not everyone.named
    with pytest.raises(ConfigError, match="already contains a comparison: nearfar compare --resume"):
        write_comparison(comparison, tmp_path)


def test_what_is_no_comparison(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not a comparison"):
        read_comparison(tmp_path / "none")
    (tmp_path / "compare.yaml").write_text("losses: [CircleLoss]\n")
    with pytest.raises(ConfigError, match="is damaged"):
        read_comparison(tmp_path)


def test_folders_are_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = with_options(TrainConfig(), {"data.path": "some/my photos"})
    assert new_folder(config) == Path("comparisons/my-photos-1")
    new_folder(config).mkdir(parents=True)
    assert new_folder(config) == Path("comparisons/my-photos-2")


def test_the_journal_keeps_what_it_was_told(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "journal.jsonl"
    journal = Journal(path)
    journal.add("a 0", value=0.1 + 0.2, values=[1e-17, 3.0])
    journal.add("a 1", value=None)
    with pytest.raises(ValueError, match="already has a 0"):
        journal.add("a 0", value=1.0)
    again = Journal(path)
    assert len(again) == 2
    assert again.get("a 0") == {"key": "a 0", "value": 0.1 + 0.2, "values": [1e-17, 3.0]}
    assert again.get("b") is None


def test_a_line_that_was_cut_off_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    for key in ("a", "b"):
        Journal(path).add(key, value=1.0)
    whole = path.read_bytes()
    for cut in range(1, len(whole) // 2):
        path.write_bytes(whole[:-cut])
        journal = Journal(path)
        assert len(journal) == 1
        journal.add("b", value=1.0)
        assert path.read_bytes() == whole
