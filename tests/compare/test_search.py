"""The search, with trainings that are made up: fair turns, budget, giving up, going on."""

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from nearfar.compare import search as module
from nearfar.compare.budget import Budget, Costs, Plan
from nearfar.compare.journal import Journal
from nearfar.compare.pace import Pace
from nearfar.compare.search import SearchResult, Trial, search
from nearfar.compare.settings import Comparison, Effort
from nearfar.compare.spaces import RATES, read_contestant, space_of
from nearfar.compare.trial import Outcome, configured, cross_judged
from nearfar.training.config import LossConfig, TrainConfig
from nearfar.training.options import ConfigError, with_options

LOSSES = ("CircleLoss/pair", "ArcFaceLoss", "SupConLoss")
SETTINGS = {"CircleLoss/pair": 8, "ArcFaceLoss": 11, "SupConLoss": 5}  # 8 thirds of 3, 4 and 2 dimensions
STARTS = (0.5, 0.3)  # of the folds: the second is harder
Score = Callable[[LossConfig, Mapping[str, float]], float]


def outcome(value: float, seconds: float = 1.0) -> Outcome:
    return Outcome(value, ((value, value),), 10, seconds, 0.01, 1000, False)


class Made:
    """Stands for the trainings: counts them, and makes up what they come to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, score: Score, seconds: float = 1.0):
        self.calls: list[tuple[str, int, dict[str, float]]] = []
        self.order: list[Trial] = []
        self.now = 0.0
        self._score, self._seconds = score, seconds
        monkeypatch.setattr(module, "run_fold", self._run)

    def _run(
        self, workbench: Any, fold: Any, loss: LossConfig, setting: Mapping[str, float], clock: Callable[[], float]
    ) -> Outcome:
        self.calls.append((loss.name, workbench.folds.index(fold), dict(setting)))
        self.now += self._seconds
        return outcome(fold.start_value + self._score(loss, setting), self._seconds)

    def trial(self, trial: Trial, best: Trial) -> None:
        self.order.append(trial)

    def pace(self, path: Path, seconds: float, costs: Costs, named: bool = False) -> tuple[Journal, Pace]:
        """Of a budget whose clock goes by the trainings that are made up."""
        budget = Budget(seconds, lambda: self.now)
        journal = Journal(path, lambda: budget.spent)
        budget.resume(journal.spent)
        return journal, Pace(budget, Plan(LOSSES, 8, 2, 2), costs, journal, named)

    def search_within(self, path: Path, seconds: float, costs: Costs, named: bool = False) -> SearchResult:
        journal, pace = self.pace(path, seconds, costs, named)
        config = with_options(TrainConfig(), {"freeze": True})
        workbench: Any = SimpleNamespace(config=config, folds=[SimpleNamespace(start_value=s) for s in STARTS])
        return search(Comparison(LOSSES, Effort(8, 2, 2, seconds), config, named), workbench, journal, self, pace)

    def search(self, path: Path, **options: Any) -> SearchResult:
        effort = Effort(**{"trials": 8, "folds": 2, **options.pop("effort", {})})
        config = with_options(TrainConfig(), {"freeze": True, "seed": options.pop("seed", 0)})
        workbench: Any = SimpleNamespace(config=config, folds=[SimpleNamespace(start_value=s) for s in STARTS])
        return search(Comparison(LOSSES, effort, config), workbench, Journal(path), self, **options)


def by_rate(loss: LossConfig, setting: Mapping[str, float]) -> float:
    """The larger the rate, the better."""
    return setting["lr"]


def by_chance(loss: LossConfig, setting: Mapping[str, float]) -> float:
    digest = hashlib.blake2b(f"{loss.name} {sorted(setting.items())}".encode(), digest_size=2).digest()
    return int.from_bytes(digest, "big") / 2**20


def test_losses_take_turns_and_have_settings_in_proportion_to_their_dimensions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Made(monkeypatch, by_rate)
    found = made.search(tmp_path / "j")
    assert {name: len(trials) for name, trials in found.trials.items()} == SETTINGS
    assert found.rounds == 8
    assert [trial.loss for trial in made.order[:3]] == list(LOSSES)
    done = dict.fromkeys(LOSSES, 0)
    for trial in made.order:
        assert trial.number == done[trial.loss]
        done[trial.loss] += 1
        shares = [done[name] / SETTINGS[name] for name in LOSSES]
        assert max(shares) - min(shares) < 0.4  # nobody is far ahead


def test_a_loss_of_two_forms_is_searched_over_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here class weights are worse than samples, which the search has to find out."""
    made = Made(monkeypatch, lambda _, setting: 0.2 if setting["level"] == "pair" else 0.1)
    config = with_options(TrainConfig(), {"freeze": True})
    workbench: Any = SimpleNamespace(config=config, folds=[SimpleNamespace(start_value=s) for s in STARTS])
    found = search(Comparison(("CircleLoss",), Effort(12, 2, 2), config), workbench, Journal(tmp_path / "j"), made)
    trials = found.trials["CircleLoss"]
    assert len(trials) == 20  # 12 thirds of 5 dimensions
    assert trials[0].setting == {"level": "pair", "lr": 3e-4, "loss.m": 0.4, "loss.gamma": 80.0}
    starts = {"lr": 3e-4, "classes": 0.03, "loss.m": 0.25, "loss.gamma": 128.0}
    assert trials[1].setting == {"level": "class", **starts}
    assert found.best("CircleLoss").setting["level"] == "pair"
    levels = [trial.setting["level"] for trial in trials]
    assert 1 < levels.count("class") < 10
    chosen = [configured(config, read_contestant("CircleLoss"), trial.setting)
              for trial in trials]  # fmt: skip
    assert [own.loss[0].class_level for own in chosen] == [level == "class" for level in levels]


def test_mining_is_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Made(monkeypatch, lambda _, setting: 0.2 if setting["loss.mining"] == "semihard" else 0.1)
    config = with_options(TrainConfig(), {"freeze": True})
    workbench: Any = SimpleNamespace(config=config, folds=[SimpleNamespace(start_value=s) for s in STARTS])
    found = search(
        Comparison(("TripletMarginLoss",), Effort(20, 2, 2), config), workbench, Journal(tmp_path / "j"), made
    )
    assert found.trials["TripletMarginLoss"][0].setting["loss.mining"] == "all"
    assert found.best("TripletMarginLoss").setting["loss.mining"] == "semihard"


def test_who_judges_a_look_has_not_chosen_it() -> None:
    """By hand: the second half would stop at the second look, where the first has 0.4; the first at the third."""
    assert cross_judged([(0.1, 0.2), (0.4, 0.6), (0.5, 0.3)]) == pytest.approx((0.4 + 0.3) / 2)
    looks = np.random.default_rng(0).normal(0.5, 0.1, (2000, 10, 2))  # nothing but chance
    assert np.mean([cross_judged([tuple(look) for look in each]) for each in looks]) == pytest.approx(0.5, abs=0.01)
    assert looks.mean(2).max(1).mean() > 0.6  # what the best look of all classes would say


def test_defaults_come_first_and_settings_stay_in_their_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = Made(monkeypatch, by_rate).search(tmp_path / "j")
    first = {name: trials[0].setting for name, trials in found.trials.items()}
    assert first["CircleLoss/pair"] == {"lr": 3e-4, "loss.m": 0.4, "loss.gamma": 80.0}
    assert first["ArcFaceLoss"] == {"lr": 3e-4, "classes": 0.03, "loss.margin": 0.5, "loss.scale": 64.0}
    for name, trials in found.trials.items():
        space = space_of(read_contestant(name), "frozen")
        for trial in trials:
            assert set(trial.setting) == set(space)
            assert all(space[key].low <= value <= space[key].high for key, value in trial.setting.items())  # type: ignore[union-attr]
        assert len({tuple(trial.setting.values()) for trial in trials}) == SETTINGS[name]


def test_the_best_is_of_those_judged_on_all_folds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = Made(monkeypatch, by_rate).search(tmp_path / "j", effort={"trials": 12})
    for name, trials in found.trials.items():
        complete = [trial for trial in trials if len(trial.outcomes) == 2]
        assert all(trial.pruned == (len(trial.outcomes) < 2) for trial in trials)
        assert found.best(name).setting["lr"] == max(trial.setting["lr"] for trial in complete)
        value = sum(STARTS) / 2 + found.best(name).setting["lr"]
        assert found.best(name).value == pytest.approx(value)


def test_what_is_worse_than_the_median_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Made(monkeypatch, by_rate)
    found = made.search(tmp_path / "j", effort={"trials": 12})
    pruned = 0
    for trials in found.trials.values():
        for number, trial in enumerate(trials):
            rates = sorted(t.setting["lr"] for t in trials[:number] if not t.pruned)
            median = (rates[(len(rates) - 1) // 2] + rates[len(rates) // 2]) / 2 if rates else 0.0
            assert trial.pruned == (len(rates) >= 3 and trial.setting["lr"] < median)
            pruned += trial.pruned
    assert pruned > 3
    assert len(made.calls) == 2 * 36 - pruned  # 12, 16 and 8 of them


def test_the_search_searches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """TPE finds the large rates more often than chance does."""
    found = Made(monkeypatch, by_rate).search(tmp_path / "j", effort={"trials": 30})
    rates = [trial.setting["lr"] for trials in found.trials.values() for trial in trials[10:]]
    middle = (RATES["frozen"].low * RATES["frozen"].high) ** 0.5
    assert sum(rate > middle for rate in rates) > 0.7 * len(rates)


@pytest.mark.parametrize("killed_after", [1, 5, 17, 30])
def test_going_on_is_as_if_never_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed_after: int) -> None:
    whole = Made(monkeypatch, by_chance).search(tmp_path / "whole")
    lines = (tmp_path / "whole").read_bytes().splitlines(keepends=True)
    assert len(lines) > 30
    (tmp_path / "part").write_bytes(b"".join(lines[:killed_after]) + lines[killed_after][:20])
    made = Made(monkeypatch, by_chance)
    assert made.search(tmp_path / "part") == whole
    assert (tmp_path / "part").read_bytes() == (tmp_path / "whole").read_bytes()
    assert len(made.calls) == len(lines) - killed_after


def test_seeds_decide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Made(monkeypatch, by_chance)
    first, again, other = (made.search(tmp_path / name, seed=seed) for name, seed in (("a", 0), ("b", 0), ("c", 1)))
    assert first == again
    assert other != first
    # What one loss gets does not depend on who else takes part.
    alone = Journal(tmp_path / "d")
    config = with_options(TrainConfig(), {"freeze": True})
    workbench: Any = SimpleNamespace(config=config, folds=[SimpleNamespace(start_value=s) for s in STARTS])
    found = search(Comparison(("SupConLoss",), Effort(8, 3, 2), config), workbench, alone, made)
    assert found.trials["SupConLoss"] == first.trials["SupConLoss"]


COSTS = Costs(fold=1.0, run=1.3, look=0.0, pair=0.0, end=3.0)


def test_a_budget_takes_settings_from_all_equally(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By hand: a setting takes 2 folds x 1 s (none is given up before the fourth); the first round has one of each loss,
    the second adds 1, 2 and 0, which makes 2, 3 and 1 of them, the third 1, 1 and 1. The runs of the best take 2 seeds x
    3 x 1.3 s = 7.8 s, the end 3 s. So after the first, 6 + (6 + 7.8 + 3) / 0.9 = 24.67 must not be more than the budget
    for another one, and 12 + 18.67 after the second.
    """
    made = Made(monkeypatch, by_rate)
    for budget, settings in ((24.6, (1, 1, 1)), (24.7, (2, 3, 1)), (30.6, (2, 3, 1)), (30.7, (3, 4, 2))):
        found = made.search_within(tmp_path / str(budget), budget, COSTS)
        assert {name: len(trials) for name, trials in found.trials.items()} == dict(zip(LOSSES, settings, strict=True))


def test_a_machine_that_became_slow_has_fewer_losses_with_equally_many_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By hand: a training takes 3 s, not 1 s, so that 12 s are gone when the third loss asks for 2 s, three losses' runs
    for 7.8 s and the end for 3 s: 38.4 s at that pace.
    """
    slow = Made(monkeypatch, by_rate, seconds=3.0)
    for seconds, losses in ((50.3, 2), (50.5, 3)):
        found = slow.search_within(tmp_path / str(seconds), seconds, COSTS)
        assert list(found.trials) == list(LOSSES[:losses])
        assert {len(trials) for trials in found.trials.values()} == {1}
    found = slow.search_within(tmp_path / "named", 50.3, COSTS, named=True)
    assert {name: len(trials) for name, trials in found.trials.items()} == dict.fromkeys(LOSSES, 1)


@pytest.mark.parametrize("killed_after", [1, 4, 9, 13])
def test_within_a_budget_too_going_on_is_as_if_never_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed_after: int
) -> None:
    whole = Made(monkeypatch, by_chance).search_within(tmp_path / "whole", 35.0, COSTS)
    lines = (tmp_path / "whole").read_bytes().splitlines(keepends=True)
    assert len(lines) > 20
    (tmp_path / "part").write_bytes(b"".join(lines[:killed_after]) + lines[killed_after][:20])
    assert Made(monkeypatch, by_chance).search_within(tmp_path / "part", 35.0, COSTS) == whole
    assert (tmp_path / "part").read_bytes() == (tmp_path / "whole").read_bytes()


def test_the_budget_remembers_what_was_spent_before_a_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Made(monkeypatch, by_rate, seconds=10.0)
    first = slow.search_within(tmp_path / "j", 400.0, COSTS)
    fast = Made(monkeypatch, by_rate, seconds=0.1)
    assert fast.search_within(tmp_path / "j", 400.0, COSTS) == first
    assert not fast.calls


def test_a_setting_that_diverges_is_a_trial_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Made(monkeypatch, by_rate)

    def diverging(workbench: Any, fold: Any, loss: LossConfig, setting: Mapping[str, float], clock: Any) -> Outcome:
        return Outcome(0.0, (), 1, 1.0, 0.01, None, True) if setting["lr"] > 1e-4 else outcome(0.5)

    monkeypatch.setattr(module, "run_fold", diverging)
    found = made.search(tmp_path / "j")
    assert {name: len(trials) for name, trials in found.trials.items()} == SETTINGS
    assert all(found.best(name).setting["lr"] <= 1e-4 for name in LOSSES)
    assert any(trial.outcomes[0].diverged for trial in made.order)


def test_a_journal_of_another_search_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Made(monkeypatch, by_chance)
    made.search(tmp_path / "j", effort={"trials": 2})
    text = (tmp_path / "j").read_text()
    (tmp_path / "j").write_text(text.replace('"loss.m": 0.4', '"loss.m": 0.3'))
    with pytest.raises(ConfigError, match="another setting for trial 0 of CircleLoss"):
        made.search(tmp_path / "j", effort={"trials": 2})
