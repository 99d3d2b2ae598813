"""Whole comparisons within a budget, by a clock that goes on by a second whenever it is looked at."""

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nearfar.compare import comparison as module
from nearfar.compare import costs as costs_module
from nearfar.compare.budget import Budget, BudgetError, Costs
from nearfar.compare.comparison import compare
from nearfar.compare.costs import check_features, measure_costs
from nearfar.compare.journal import Journal
from nearfar.compare.leaderboard import Leaderboard
from nearfar.compare.settings import Comparison, Effort
from nearfar.compare.spaces import LOSSES
from nearfar.compare.terminal import print_leaderboard
from nearfar.compare.workbench import EVALUATIONS, Rows, Workbench, hold_out_test
from nearfar.data import FeatureCache
from nearfar.training import finish
from nearfar.training.config import TrainConfig
from nearfar.training.options import with_options
from nearfar.training.timing import lacking_features
from tests.compare.making import SHARED, data, small, trunk_file
from tests.compare.test_compare import Killed, without_times
from tests.training.making import patterns

# By hand: three losses with one setting on one fold and two runs take 3 x (100 + 2 x 350) + 500 = 2,900 s, four 3,700 s.
COSTS = Costs(fold=100.0, run=300.0, look=50.0, pair=0.0, end=500.0)
SECONDS = 3_800.0  # 0.9 of them are 3,420 s


class Ticks:
    """Goes on by a second whenever it is looked at."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1
        return self.now


@pytest.fixture(scope="module", autouse=True)
def surroundings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NEARFAR_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setattr(finish, "write_report", lambda *_: None)
        patch.setattr(module, "write_report", lambda *_: None)
        patch.setattr(module, "measure_costs", lambda *_: COSTS)
        patch.setattr(module, "Budget", partial(Budget, clock=Ticks()))
        yield


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> str:
    return trunk_file(tmp_path_factory.mktemp("trunk"))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, weights: str) -> Leaderboard:
    return within(tmp_path_factory.mktemp("whole") / "c", weights)


def within(out: Path, weights: str, **changed: Any) -> Leaderboard:
    return small(out, weights, **{"losses": None, "trials": 1, "budget": SECONDS, **changed})


def entries(folder: Path) -> dict[str, dict[str, Any]]:
    lines = (folder / "journal.jsonl").read_text().splitlines()
    return {entry["key"]: entry for entry in map(json.loads, lines)}


# Plans that are kept


def test_what_fits_is_done_and_what_does_not_is_said(whole: Leaderboard, capsys: pytest.CaptureFixture[str]) -> None:
    plan = entries(whole.folder)["plan"]
    assert (plan["losses"], plan["trials"], plan["seeds"], plan["folds"]) == (list(LOSSES[:3]), 1, 2, 1)
    assert {row.name for row in whole.rows if not row.baseline} == set(LOSSES[:3])
    runs = sorted(run.name for run in (whole.folder / "runs").iterdir())
    assert runs == sorted(f"{name}-{seed}" for name in LOSSES[:3] for seed in (0, 1))
    facts = whole.facts
    assert facts["left_out"] == list(LOSSES[3:]) and facts["budget"] == SECONDS
    assert [facts[name] for name in ("trials", "folds", "folds_wished", "seeds", "seeds_wished")] == [1, 1, 2, 2, 2]
    said = f"The budget of 1 h 3 min allowed 1 of 2 folds; none of {', '.join(LOSSES[3:])}."
    assert said in (whole.folder / "report.html").read_text()
    print_leaderboard(whole)
    assert said in " ".join(capsys.readouterr().out.split())


def test_losses_that_were_named_all_take_part(tmp_path: Path, weights: str) -> None:
    names = [LOSSES[-1], LOSSES[0], LOSSES[-3], LOSSES[-2]]
    with pytest.raises(BudgetError, match="Give --budget 69min or more, or name fewer than these 4 losses"):
        within(tmp_path / "c", weights, losses=names)
    assert not (tmp_path / "c").exists()  # and the same folder can be tried again
    board = within(tmp_path / "c", weights, losses=names, budget="75 min")
    assert {row.name for row in board.rows if not row.baseline} == set(names) and board.facts["left_out"] == []


def test_what_is_refused_leaves_nothing(tmp_path: Path, weights: str) -> None:
    with pytest.raises(BudgetError, match=r"a budget of 10 min is too short .* 2 losses with one setting and 2 runs"):
        within(tmp_path / "c", weights, budget=600)
    assert not (tmp_path / "c").exists()


def kill_after(patch: pytest.MonkeyPatch, key: str) -> None:
    original = Journal.add

    def killed(self: Journal, name: str, **values: Any) -> Any:
        entry = original(self, name, **values)
        if name == key:
            raise Killed
        return entry

    patch.setattr(Journal, "add", killed)


@pytest.mark.parametrize("key", ["plan", f"{LOSSES[1]} 0 0", f"run {LOSSES[2]}-0", "time for seed 1"])
def test_who_goes_on_keeps_the_plan(
    key: str, whole: Leaderboard, tmp_path: Path, weights: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        kill_after(patch, key)
        with pytest.raises(Killed):
            within(tmp_path / "c", weights)
    with monkeypatch.context() as patch:  # another machine would decide otherwise
        patch.setattr(module, "measure_costs", lambda *_: Costs(1.0, 1.0, 1.0, 0.0, 1.0))
        compare(data(), resume=tmp_path / "c", quiet=True)
    assert without_times(tmp_path / "c") == without_times(whole.folder)
    mine, theirs = entries(tmp_path / "c"), entries(whole.folder)
    assert list(mine) == list(theirs)
    assert {**mine["plan"], "at": 0} == {**theirs["plan"], "at": 0}
    with np.load(tmp_path / "c" / "queries.npz") as first, np.load(whole.folder / "queries.npz") as second:
        assert all(np.array_equal(first[name], second[name]) for name in second)


def test_few_classes_have_few_folds(tmp_path: Path, weights: str) -> None:
    options = {**SHARED, "losses": ["NormFaceLoss"], "trials": 1, "seeds": 1, "epochs": 1, "weights": weights}
    table = patterns(classes=14, each=6, noise=60.0)
    board = compare(table, **options, quiet=True, out=str(tmp_path / "c"))
    assert board.facts["folds"] == board.facts["folds_wished"] == 3  # of seven training classes


# Costs


def prepared(weights: str, folds: int = 2, **options: Any) -> tuple[Comparison, Workbench, Rows]:
    config = with_options(TrainConfig(), {**SHARED, "epochs": 2, "freeze": True, "weights": weights, **options})
    rows = hold_out_test(data(), config, folds)
    tables = [(fold.split("train"), fold.split("val")) for fold in rows.seen.folds(folds, seed=0)]
    return Comparison(("NormFaceLoss", "SupConLoss"), Effort(), config), Workbench(config, tables), rows


def test_the_run_that_is_timed_is_one_of_the_comparison(tmp_path: Path, weights: str) -> None:
    """Batches hold all nine classes of the smallest fold. A run that cross-fits would have eight, and take longer."""
    comparison, workbench, rows = prepared(weights, folds=4, batch_size=36, k=4)
    assert (rows.classes, workbench.config.sampler.p) == (12, 9)
    assert measure_costs(comparison, workbench, rows, Journal(tmp_path / "j"), Budget(1e6, Ticks())).run > 0


def test_costs_are_measured_without_a_test_image(tmp_path: Path, weights: str, monkeypatch: pytest.MonkeyPatch) -> None:
    comparison, workbench, rows = prepared(weights)
    tests = {np.asarray(rows.test.images[i]).tobytes() for i in range(len(rows.test))}  # type: ignore[index]
    compute = FeatureCache.compute

    def watch(self: FeatureCache, images: Any, *args: Any, **options: Any) -> Any:
        assert not any(np.asarray(images[i]).tobytes() in tests for i in range(len(images)))
        return compute(self, images, *args, **options)

    monkeypatch.setattr(FeatureCache, "compute", watch)
    journal, budget = Journal(tmp_path / "j"), Budget(1e6, Ticks())
    costs = measure_costs(comparison, workbench, rows, journal, budget)
    assert min(costs.fold, costs.run, costs.look, costs.pair, costs.end) > 0
    entry = journal.get("NormFaceLoss 0 0")
    assert entry is not None  # the first training of the search is done
    assert costs.fold == entry["seconds"] and entry["setting"]["loss.scale"] == 30.0
    again = measure_costs(comparison, workbench, rows, journal, budget)
    assert again.fold == costs.fold and len(journal) == 1


def test_a_long_training_is_cut_short_and_the_rest_calculated(tmp_path: Path, weights: str) -> None:
    """By hand: a second until the first step, one for each of the steps, and one for each look."""
    comparison, workbench, rows = prepared(weights)
    journal = Journal(tmp_path / "j")
    costs = measure_costs(comparison, workbench, rows, journal, Budget(10.0, Ticks()))
    steps = 2 * len(workbench.loader(workbench.folds[0]))
    assert steps > 4
    assert costs.fold in (1 + steps + EVALUATIONS, 2 + steps + EVALUATIONS)
    assert len(journal) == 0


def test_features_that_are_there_cost_nothing(tmp_path: Path, weights: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEARFAR_CACHE", str(tmp_path))
    _, workbench, rows = prepared(weights)
    assert lacking_features(workbench.embedder, rows.test) == len(rows.test) == 72
    assert lacking_features(workbench.embedder, rows.seen) == 0


def test_features_that_would_take_too_long_are_not_begun(
    tmp_path: Path, weights: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By hand: a second for sixteen images is 9 s for 144; the clock was looked at seven times before."""
    monkeypatch.setenv("NEARFAR_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(costs_module, "MANY", 100)
    with pytest.raises(BudgetError, match="features of 144 images take 9 s here, once"):
        within(tmp_path / "c", weights, budget=10.0)
    assert not (tmp_path / "c").exists() and not list((tmp_path / "cache").glob("features/*/*.rows"))
    comparison, _, rows = prepared(weights)  # which makes those of the training images
    check_features(comparison.shared, rows, Budget(1.0, Ticks()))
