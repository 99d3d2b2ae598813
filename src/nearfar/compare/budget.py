"""A budget of time: what a comparison costs, and the largest one that fits.

What is taken away, in this order, until it fits: settings, down to the defaults alone; runs of the best, down to two;
folds, down to one; and losses, from the end of their list, down to two. So breadth is kept longest. These plans are one
ladder, each cheaper than the one before it: more time never gives less of anything. All losses always have equally many
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

PLANNED = 0.9  # of the time that is left: what is planned is an estimate
FEWEST_SEEDS = 2  # without an interval over seeds nobody knows what a difference is worth
FEWEST_LOSSES = 2
BASELINES = 2


class BudgetError(ConfigError):
    """Nothing that could be called a comparison fits into the budget; the message says what would do."""


class Budget:
    """A time that is running out, from the moment it is made.

    Args:
        seconds: that there are.
        clock: seconds of a clock that never goes back.
    """

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic):
        if not 0 < seconds < math.inf:
            raise ConfigError(f"the budget must be a time, such as 10min, not {seconds} seconds")
        self.seconds, self.clock = seconds, clock
        self._began, self._before = clock(), 0.0

    def go_on(self, spent: float) -> None:
        """So much was spent before this process."""
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
    """How much is done: which losses, and of each of them settings (`trials` of a loss with three dimensions, see
    `spaces.share`), folds that settings are judged on, and runs.
    """

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
        pair: the test whether two contestants differ.
        end: what comes once: features of the test images, the baselines, the winner's report, the page.
    """

    fold: float
    run: float
    look: float
    pair: float
    end: float

    def of(self, plan: Plan) -> float:
        """All that is still ahead when nothing but the measuring is done."""
        settings = sum(share(name, plan.trials) for name in plan.losses)
        return settings * plan.folds * self.fold + len(plan.losses) * plan.seeds * self.run + self.last(plan)

    def last(self, plan: Plan) -> float:
        """What comes after the last run."""
        contestants = len(plan.losses) + BASELINES
        pairs = contestants * (contestants - 1) / 2
        return len(plan.losses) * plan.seeds * self.look + pairs * self.pair + self.end


def ladder(wished: Plan, named: bool) -> Iterator[Plan]:
    """Ever smaller plans, the wished one first.

    Args:
        named: the losses were asked for by name, and none of them is left out.
    """
    plan = wished
    yield plan
    for field, least in (("trials", 1), ("seeds", min(FEWEST_SEEDS, wished.seeds)), ("folds", 1)):
        while getattr(plan, field) > least:
            plan = replace(plan, **{field: getattr(plan, field) - 1})
            yield plan
    while not named and len(plan.losses) > FEWEST_LOSSES:
        plan = replace(plan, losses=plan.losses[:-1])
        yield plan


def choose(costs: Costs, wished: Plan, seconds: float, named: bool = False, spent: float = 0.0) -> Plan:
    """The largest plan that fits into a budget of so many seconds; a `BudgetError` if none does."""
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
    """A time as one would give it, not shorter: tens of seconds, or minutes from two on.

    >>> rounded_up(41), rounded_up(119), rounded_up(121)
    ('50s', '120s', '3min')
    """
    return f"{math.ceil(seconds / 10) * 10}s" if seconds <= 120 else f"{math.ceil(seconds / 60)}min"


def announced(plan: Plan, wished: Plan, costs: Costs, budget: Budget) -> list[str]:
    """What will be done within the budget, what not, and why."""
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
            f"because a training on a fold takes {_exactly(costs.fold)}, a run {_exactly(costs.run)}, and "
            f"{duration(budget.spent)} are gone; more settings are tried if time is left"
        )
    return lines


def shortened(facts: Mapping[str, Any]) -> str:
    """A sentence about what a budget has taken from a comparison, by its leaderboard's facts; nothing if it has not."""
    left_out = facts.get("left_out", ())
    parts = [
        f"{facts[name]} of {facts[f'{name}_wished']} {words}"
        for name, words in (("trials", "settings"), ("folds", "folds"), ("seeds", "runs"))
        if facts[name] < facts.get(f"{name}_wished", 0)
    ]
    if left_out:
        parts.append(f"none of {', '.join(left_out)}")
    if not parts or facts["budget"] is None:
        return ""
    return f"The budget of {duration(facts['budget'])} allowed {'; '.join(parts)}."


def _share(some: int, wished: int, one: str, many: str) -> str:
    return counted(some, one, many) if some == wished else f"{some} of {counted(wished, one, many)}"


def _exactly(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 10 else duration(seconds)
