"""What fits into a budget, by costs that are made up, and a clock that goes when it is told to."""

from dataclasses import fields
from itertools import pairwise
from pathlib import Path

import pytest

from nearfar.compare.budget import (
    PLANNED,
    Budget,
    BudgetError,
    Costs,
    Plan,
    announcement,
    choose,
    ladder,
    omissions,
)
from nearfar.compare.journal import Journal
from nearfar.compare.pace import Pace
from nearfar.compare.spaces import LOSSES
from nearfar.training.options import ConfigError

WISHED = Plan(LOSSES, trials=10, seeds=3, folds=4)
COSTS = Costs(fold=1.0, run=3.0, look=0.5, pair=0.0, end=5.0)
DIMENSIONS = (5, 4, 4, 5, 2, 4, 5, 3, 3, 2, 3, 3)  # of LOSSES: rates, arguments, mining and form


class Clock:
    """Goes when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def sizes(plan: Plan) -> tuple[int, int, int, int]:
    return len(plan.losses), plan.folds, plan.seeds, plan.trials


def by_hand(losses: int, folds: int, seeds: int, trials: int) -> float:
    settings = sum(max(1, round(trials * own / 3)) if trials > 1 else 1 for own in DIMENSIONS[:losses])
    return settings * folds * 1.0 + losses * seeds * (3.0 + 0.5) + 5.0


# The plan


@pytest.mark.parametrize(
    "wanted",
    [(12, 4, 3, 10), (12, 4, 3, 9), (12, 4, 3, 1), (12, 4, 2, 1), (12, 2, 2, 1), (12, 1, 2, 1), (7, 1, 2, 1), (2, 1, 2, 1)],
)  # fmt: skip
def test_the_largest_plan_that_fits(wanted: tuple[int, int, int, int]) -> None:
    exactly = by_hand(*wanted) / PLANNED
    assert sizes(choose(COSTS, WISHED, exactly + 0.01)) == wanted
    assert sizes(choose(COSTS, WISHED, exactly + 20.01, spent=20.0)) == wanted
    if wanted != (2, 1, 2, 1):
        assert sizes(choose(COSTS, WISHED, exactly - 0.01)) != wanted


def test_settings_go_first_then_seeds_folds_and_losses_from_the_end() -> None:
    steps = [sizes(plan) for plan in ladder(WISHED, named=False)]
    assert steps[:10] == [(12, 4, 3, trials) for trials in range(10, 0, -1)]
    assert steps[10:14] == [(12, 4, 2, 1), (12, 3, 2, 1), (12, 2, 2, 1), (12, 1, 2, 1)]
    assert steps[14:] == [(losses, 1, 2, 1) for losses in range(11, 1, -1)]
    assert all(plan.losses == LOSSES[: len(plan.losses)] for plan in ladder(WISHED, named=False))


@pytest.mark.parametrize(
    "costs",
    [COSTS, Costs(0.1, 9.0, 0.0, 0.2, 1.0), Costs(30.0, 30.0, 30.0, 0.0, 0.0), Costs(2.0, 0.1, 0.1, 0.1, 60.0)],
)
def test_more_time_never_gives_less(costs: Costs) -> None:
    plans = []
    for seconds in range(1, 5000, 7):
        try:
            plans.append(choose(costs, WISHED, float(seconds)))
        except BudgetError:
            assert not plans
    assert len({sizes(plan) for plan in plans}) > 5
    for less, more in pairwise(plans):
        assert all(a <= b for a, b in zip(sizes(less), sizes(more), strict=True))
        assert more.losses[: len(less.losses)] == less.losses
        assert costs.of(less) <= costs.of(more)


def test_what_was_asked_for_is_never_exceeded() -> None:
    wished = Plan(LOSSES[:3], trials=2, seeds=1, folds=2)
    assert choose(COSTS, wished, 1e9) == wished
    assert {plan.seeds for plan in ladder(wished, named=False)} == {1}  # as was asked for


def test_losses_that_were_named_are_kept() -> None:
    for plan in ladder(WISHED, named=True):
        assert plan.losses == LOSSES
    enough = by_hand(12, 1, 2, 1) / PLANNED
    assert sizes(choose(COSTS, WISHED, enough + 0.01, named=True)) == (12, 1, 2, 1)
    with pytest.raises(BudgetError, match="name fewer than these 12 losses") as refused:
        choose(COSTS, WISHED, enough - 0.01, named=True)
    assert 110 < enough < 120 and "Give --budget 120s or more" in str(refused.value)
    alone = Plan(("CircleLoss",), 10, 3, 4)
    assert choose(COSTS, alone, by_hand(1, 1, 2, 1) / PLANNED + 0.01, named=True).losses == ("CircleLoss",)


def test_what_is_refused_is_told_the_smallest_budget_that_would_do() -> None:
    """Two losses: 2 x (1 + 2 x 3.5) + 5 = 21 s of which 0.9 may be planned, after 10 s: 33.3 s."""
    with pytest.raises(BudgetError, match=r"a budget of 15 s is too short .* Give --budget 40s or more") as refused:
        choose(COSTS, WISHED, 15.0, spent=10.0)
    assert isinstance(refused.value, ConfigError)
    assert sizes(choose(COSTS, WISHED, 40.0, spent=10.0)) == (2, 1, 2, 1)


def test_many_contestants_need_many_tests() -> None:
    """By hand: 12 losses and 2 baselines are 91 pairs."""
    costs = Costs(0.0, 0.0, 0.0, 1.0, 0.0)
    assert costs.of(WISHED) == 91
    assert costs.of(Plan(LOSSES[:2], 1, 1, 1)) == 6


def test_it_says_what_it_will_do_and_what_not() -> None:
    clock = Clock()
    budget = Budget(120.0, clock)
    clock.now += 12
    said = announcement(Plan(LOSSES[:5], 1, 2, 1), WISHED, COSTS, budget)
    assert said[0] == "fits into 2 min: 5 of 12 losses, 1 of 10 settings, 1 of 4 folds, 2 of 3 runs of the best"
    assert said[1] == f"left out: {', '.join(LOSSES[5:])}"
    assert "a training on a fold takes 1.0 s, a run 3.0 s, and 12 s are spent" in said[2]
    assert announcement(WISHED, WISHED, COSTS, budget) == [
        "fits into 2 min: 12 losses, 10 settings, 4 folds, 3 runs of the best"
    ]


def test_the_report_says_what_was_left_out() -> None:
    facts = {"trials": 1, "trials_wished": 10, "folds": 3, "folds_wished": 3, "seeds": 2, "seeds_wished": 3,
             "left_out": ["NormFaceLoss", "ContrastiveLoss"], "budget": 120.0}  # fmt: skip
    said = "The budget of 2 min allowed 1 of 10 settings; 2 of 3 runs; none of NormFaceLoss, ContrastiveLoss."
    assert omissions(facts) == said
    assert omissions({"trials": 3, "trials_wished": 3, "folds": 2, "seeds": 2, "budget": None}) == ""


# The time that passes


def test_a_budget_runs_from_the_moment_it_is_made() -> None:
    clock = Clock()
    budget = Budget(60.0, clock)
    clock.now += 25
    assert (budget.spent, budget.left) == (25.0, 35.0)
    budget.resume(40.0)
    assert (budget.spent, budget.left) == (65.0, -5.0)
    with pytest.raises(ConfigError, match="must be a time"):
        Budget(0.0)


def pace(path: Path, clock: Clock, seconds: float, named: bool = False) -> Pace:
    budget = Budget(seconds, clock)
    journal = Journal(path, lambda: budget.spent)
    budget.resume(journal.spent)
    return Pace(budget, Plan(LOSSES[:4], 1, 2, 1), COSTS, journal, named)


def test_what_is_ahead_must_fit(tmp_path: Path) -> None:
    """By hand, for four losses: the second round has 2, 2, 2 and 2 settings more and takes 8 s, their runs 24 s, and what
    comes last 4 x 2 x 0.5 + 5 = 9 s, in all 41 s, which must not be more than 0.9 of what is left.
    """
    for number, (gone, fits) in enumerate(((54.3, True), (54.5, False))):
        clock = Clock()
        made = pace(tmp_path / str(number), clock, 100.0)
        clock.now += gone
        assert made.another_round(1, 4) is fits
    for number, (gone, fits) in enumerate(((78.9, True), (79.1, False))):  # the second run of each: 12 s and 9 s
        clock = Clock()
        made = pace(tmp_path / f"seed {number}", clock, 100.0)
        clock.now += gone
        assert made.another_seed(1, 4) is fits
    for number, (gone, fits) in enumerate(((79.9, True), (80.1, False))):  # a third loss: 1 + 3 runs, 3 s and 5 s
        clock = Clock()
        made = pace(tmp_path / f"run {number}", clock, 100.0)
        clock.now += gone
        assert made.another_run("CosFaceLoss", 3) is fits


def test_a_machine_that_became_slower_has_less_time(tmp_path: Path) -> None:
    clock = Clock()
    made = pace(tmp_path / "j", clock, 100.0)
    assert made.slower == 1.0
    for _ in range(3):
        made.took(1.0, 4.0)
    assert made.slower == 4.0
    assert not made.another_round(1, 4)  # 41 s have become 164 s
    for _ in range(10):
        made.took(1.0, 0.1)
    assert made.slower == 0.7  # and no luck is trusted
    assert made.another_round(2, 4)


def test_losses_are_left_out_only_if_nobody_named_them_and_never_the_first_two(tmp_path: Path) -> None:
    clock = Clock()
    for named in (False, True):
        made = pace(tmp_path / str(named), clock, 1.0, named)
        clock.now += 50
        assert made.another_loss("CosFaceLoss", 3) is named
        assert made.another_run("CosFaceLoss", 3) is named
        assert made.another_loss("ProxyAnchorLoss", 2) and made.another_run("ProxyAnchorLoss", 2)


def test_who_goes_on_decides_as_before(tmp_path: Path) -> None:
    clock = Clock()
    first = pace(tmp_path / "j", clock, 100.0)
    clock.now += 50
    assert first.another_round(1, 4)
    clock.now += 20.0
    assert not first.another_round(2, 4)
    clock.now += 1000
    again = pace(tmp_path / "j", clock, 100.0)
    assert again.budget.spent == 70.0  # what it was when the last entry was made
    assert again.another_round(1, 4) and not again.another_round(2, 4)


def test_all_costs_count() -> None:
    for field in fields(Costs):
        costs = Costs(**{each.name: float(each.name == field.name) for each in fields(Costs)})
        assert costs.of(WISHED) > 0
