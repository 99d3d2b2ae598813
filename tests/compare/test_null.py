"""One loss against itself: equals are not told apart, and a test that told them apart would be found out."""

import json
from pathlib import Path

import numpy as np
import pytest
import scipy.stats

from nearfar.cli import main
from nearfar.compare import null as module
from nearfar.compare.null import FalseAlarms, count_false_alarms, null_check
from nearfar.evaluation.class_means import ClassMean
from nearfar.training import finish
from tests.compare.making import SHARED, data, trunk_file

LABELS = np.repeat([f"bird {number}" for number in range(30)], 10)


def runs(count: int, seed: int = 0) -> np.ndarray:
    """Of one contestant, by numbers: runs differ, classes do, and what runs make of each class does."""
    g = np.random.default_rng(seed)
    of_run, of_class = g.normal(0, 0.003, (count, 1)), np.repeat(g.normal(0.5, 0.1, 30), 10)
    return of_class + of_run + np.repeat(g.normal(0, 0.01, (count, 30)), 10, 1) + g.normal(0, 0.05, (count, 300))


def test_equals_are_not_told_apart() -> None:
    found = [count_false_alarms(runs(12, seed), LABELS, draws=40, seed=seed) for seed in range(5)]
    assert [(each.pairs, each.draws) for each in found] == [(240, 40)] * 5
    whole = FalseAlarms(1200, sum(each.called for each in found), 200, sum(each.after_holm for each in found))
    assert whole.as_promised and whole.rate <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 200)


def test_what_tells_equals_apart_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same draws, with a test over queries in its place."""

    def by_query(values: np.ndarray, labels: np.ndarray) -> ClassMean:
        p = scipy.stats.ttest_1samp(values.mean(0), 0).pvalue
        return type("Told", (), {"p_value": p})()  # type: ignore[no-any-return]

    monkeypatch.setattr(module, "class_mean", by_query)
    found = count_false_alarms(runs(12), LABELS)
    assert found.rate > 0.15 and not found.as_promised


def test_as_promised_by_hand() -> None:
    """5 % and three times √(0.05 · 0.95 / 200) = 1.54 %: at most 9.62 %."""
    assert FalseAlarms(1200, 115, 200, 19).as_promised
    assert not FalseAlarms(1200, 116, 200, 0).as_promised and not FalseAlarms(1200, 0, 200, 20).as_promised


def test_a_loss_against_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NEARFAR_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(finish, "write_report", lambda *_: None)
    options = {**SHARED, "epochs": 1, "weights": trunk_file(tmp_path), "out": str(tmp_path / "c")}
    found = null_check(data(), loss="NormFaceLoss", seeds=2, draws=20, quiet=True, **options)
    assert (found.runs, found.seeds, found.classes) == (8, 2, 12)
    with np.load(tmp_path / "c" / "queries.npz") as queries:
        assert queries["NormFaceLoss map@r"].shape == (8, 72)
        assert len(np.unique(queries["labels"])) == 12 and len(np.unique(queries["ids"])) == 72
        again = count_false_alarms(queries["NormFaceLoss recall@1"].astype(float), queries["labels"], 2, 20)
    assert again == found.alarms["recall@1"]
    assert json.loads((tmp_path / "c" / "null.json").read_text())["alarms"]["recall@1"]["draws"] == 20
    assert not list((tmp_path / "c").glob("runs/*/model.safetensors"))
    assert "NormFaceLoss against itself on patterns, 12 unseen classes: 8 runs" in str(found)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--null", "Circle"], "did you mean CircleLoss"),
        (["--null", "CircleLoss", "--trials", "3"], "leave --trials out"),
        (["--null", "CircleLoss", "--losses", "ArcFaceLoss"], "leave --losses out"),
    ],
)
def test_mistakes(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", *words]) == 2
    assert message in capsys.readouterr().err
