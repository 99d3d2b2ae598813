"""A budget of time: what a comparison costs, and the largest one that fits.

Until the comparison fits, these are reduced, in this order: settings, down to the defaults; runs of the best, down to
two; folds, down to one; and losses, from the end of their list, down to two. So breadth is kept longest. The plans form
a ladder, each cheaper than the one before: more time never gives less of anything. All losses have the same numbers of
runs and folds, and settings in proportion to the dimensions of their spaces.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from nearfar.compare.spaces import share
from nearfar.foundation.durations import duration
from nearfar.training.options import ConfigError
from nearfar.training.progress import counted

PLANNED = 0.9  # share of the remaining time to plan with, since costs are estimates
FEWEST_SEEDS = 2  # a single run has no interval
FEWEST_LOSSES = 2
BASELINES = 2


class BudgetError(ConfigError):
    """No comparison fits into the budget; the message says how much time is needed."""


class Budget:
    """A time that runs out, from the moment the object is made.

    Args:
        seconds: the time.
        clock: a monotonic clock.
    """

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic):
        if not 0 < seconds < math.inf:
            raise ConfigError(f"the budget must be a time, such as 10min, not {seconds} seconds")
        self.seconds, self.clock = seconds, clock
        self._began, self._before = clock(), 0.0

    def resume(self, spent: float) -> None:
        """Count the seconds that were spent before this process."""
        self._before = spent

    @property
    def spent(self) -> float:
        """Seconds so far."""
        return self._before + self.clock() - self._began

    @property
    def left(self) -> float:
        """Seconds, negative once it is exceeded."""
        return self.seconds - self.spent


@dataclass(frozen=True)
class Plan:
    """The extent of a comparison: its losses and, for each, settings (see `spaces.share`), runs (`seeds`) and folds."""

    losses: tuple[str, ...]
    trials: int
    seeds: int
    folds: int


@dataclass(frozen=True)
class Costs:
    """Seconds that the parts of a comparison take, as measured before the search.

    Args:
        fold: a setting trained on a fold.
        run: a run of a best setting, with its files.
        look: a run measured on the test rows.
        pair: the test of a pair of contestants.
        end: parts that run once: features of the test images, the baselines, the winner's report, the page.
    """

    fold: float
    run: float
    look: float
    pair: float
    end: float

    def of(self, plan: Plan) -> float:
        """The seconds from the search to the end."""
        settings = sum(share(name, plan.trials) for name in plan.losses)
        return settings * plan.folds * self.fold + len(plan.losses) * plan.seeds * self.run + self.last(plan)

    def last(self, plan: Plan) -> float:
        """The seconds after the last run."""
        contestants = len(plan.losses) + BASELINES
        pairs = contestants * (contestants - 1) / 2
        return len(plan.losses) * plan.seeds * self.look + pairs * self.pair + self.end


def ladder(requested: Plan, named: bool) -> Iterator[Plan]:
    """Ever smaller plans, starting with the requested one; losses that the user `named` are not left out."""
    plan = requested
    yield plan
    for field, least in (("trials", 1), ("seeds", min(FEWEST_SEEDS, requested.seeds)), ("folds", 1)):
        while getattr(plan, field) > least:
            plan = replace(plan, **{field: getattr(plan, field) - 1})
            yield plan
    while not named and len(plan.losses) > FEWEST_LOSSES:
        plan = replace(plan, losses=plan.losses[:-1])
        yield plan


def choose(costs: Costs, wished: Plan, seconds: float, named: bool = False, spent: float = 0.0) -> Plan:
    """The largest plan that fits into a budget, `spent` of it gone; raises `BudgetError` if none does."""
    plan = wished
    for plan in ladder(wished, named):
        if costs.of(plan) <= PLANNED * (seconds - spent):
            return plan
    needed = spent + costs.of(plan) / PLANNED
    count = len(plan.losses)
    least = f"{counted(count, 'loss', 'losses')} with one setting and {counted(plan.seeds, 'run')} each"
    fewer = f"name fewer than these {count} losses" if named and count > FEWEST_LOSSES else "choose less data"
    raise BudgetError(
        f"a budget of {duration(seconds)} is too short for a comparison: {duration(spent)} went into features and "
        f"measuring, and {least} take {duration(costs.of(plan))} more here. Give --budget {rounded_up(needed)} or "
        f"more, or {fewer}"
    )


def rounded_up(seconds: float) -> str:
    """Format a time as a user would write it, rounded up to tens of seconds, or to minutes from two minutes.

    >>> rounded_up(41), rounded_up(119), rounded_up(121)
    ('50s', '120s', '3min')
    """
    return f"{math.ceil(seconds / 10) * 10}s" if seconds <= 120 else f"{math.ceil(seconds / 60)}min"


def announcement(plan: Plan, wished: Plan, costs: Costs, budget: Budget) -> list[str]:
    """Describe what is done within the budget, what is left out, and why."""
    counts = [
        (len(plan.losses), len(wished.losses), "loss", "losses"),
        (plan.trials, wished.trials, "setting", "settings"),
        (plan.folds, wished.folds, "fold", "folds"),
        (plan.seeds, wished.seeds, "run of the best", "runs of the best"),
    ]
    fits = ", ".join(_share(*count) for count in counts)
    lines = [f"fits into {duration(budget.seconds)}: {fits}"]
    if plan != wished:
        left_out = [name for name in wished.losses if name not in plan.losses]
        lines += [f"left out: {', '.join(left_out)}"] if left_out else []
        lines.append(
            f"since a training on a fold takes {_exactly(costs.fold)}, a run {_exactly(costs.run)}, and "
            f"{duration(budget.spent)} are spent; more settings are tried if time is left"
        )
    return lines


def omissions(facts: Mapping[str, Any]) -> str:
    """A sentence about what a budget left out, by a leaderboard's facts; "" if nothing was left out."""
    left_out = facts.get("left_out", ())
    clauses = [
        f"{facts[name]} of {facts[f'{name}_wished']} {words}"
        for name, words in (("trials", "settings"), ("folds", "folds"), ("seeds", "runs"))
        if facts[name] < facts.get(f"{name}_wished", 0)
    ]
    if left_out:
        clauses.append(f"none of {', '.join(left_out)}")
    if not clauses or facts["budget"] is None:
        return ""
    return f"The budget of {duration(facts['budget'])} allowed {'; '.join(clauses)}."


def _share(planned: int, wished: int, one: str, many: str) -> str:
    return counted(planned, one, many) if planned == wished else f"{planned} of {counted(wished, one, many)}"


def _exactly(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 10 else duration(seconds)
