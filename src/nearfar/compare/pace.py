"""`Pace`: checks before every part of a comparison whether the rest still fits into the budget.

Other work on the machine makes everything slower than measured. The next parts are expected to be slower by the same
factor as the last ones. Every decision is written to the journal, so that a resumed comparison repeats it.
"""

from collections import deque

from nearfar.compare.budget import FEWEST_LOSSES, FEWEST_SEEDS, PLANNED, Budget, Costs, Plan
from nearfar.compare.journal import Journal
from nearfar.compare.spaces import share

REMEMBERED = 6  # parts that determine the pace
FASTEST = 0.7  # times the measured cost; a lucky moment promises no more


class Pace:
    """Decides whether to continue.

    Args:
        plan: the first decision. Losses may still be left out, from its end, if the user has not `named` them.
    """

    def __init__(self, budget: Budget, plan: Plan, costs: Costs, journal: Journal, named: bool):
        self.budget, self.plan, self.costs, self.named = budget, plan, costs, named
        self._journal = journal
        self._last: deque[tuple[float, float]] = deque(maxlen=REMEMBERED)

    def took(self, expected: float, seconds: float) -> None:
        """Note how long a part took."""
        self._last.append((expected, seconds))

    @property
    def slower(self) -> float:
        """The ratio of the time that parts take to the measured one."""
        expected = sum(part[0] for part in self._last)
        return max(FASTEST, sum(part[1] for part in self._last) / expected) if expected > 0 else 1.0

    def another_round(self, number: int, losses: int) -> bool:
        """Whether there is time for one more round of settings for this number of losses."""
        plan = self._with(losses, self.plan.seeds)
        settings = sum(share(name, number + 1) - share(name, number) for name in plan.losses)
        ahead = settings * plan.folds * self.costs.fold + self._end(plan)
        return self._fits(f"round {number}", ahead / PLANNED)  # an optional round must not endanger the rest

    def another_loss(self, name: str, losses: int) -> bool:
        """Whether there is time for one more loss in the first round, the last of `losses`."""
        plan = self._with(losses, min(FEWEST_SEEDS, self.plan.seeds))
        return self._may_keep(losses) or self._fits(f"loss {name}", plan.folds * self.costs.fold + self._end(plan))

    def another_seed(self, number: int, losses: int) -> bool:
        """Whether there is time for one more run of each loss."""
        ahead = losses * self.costs.run + self.costs.last(self._with(losses, number + 1))
        return self._fits(f"seed {number}", ahead)

    def another_run(self, name: str, losses: int) -> bool:
        """Whether there is time for the first run of one more loss, the last of `losses`, and for all second runs."""
        seeds = min(FEWEST_SEEDS, self.plan.seeds)
        ahead = (1 + (seeds - 1) * losses) * self.costs.run + self.costs.last(self._with(losses, seeds))
        return self._may_keep(losses) or self._fits(f"run {name}", ahead)

    def _may_keep(self, losses: int) -> bool:
        return self.named or losses <= FEWEST_LOSSES

    def _with(self, losses: int, seeds: int) -> Plan:
        return Plan(self.plan.losses[:losses], 1, seeds, self.plan.folds)

    def _end(self, plan: Plan) -> float:
        return len(plan.losses) * plan.seeds * self.costs.run + self.costs.last(plan)

    def _fits(self, point: str, ahead: float) -> bool:
        key = f"time for {point}"
        entry = self._journal.get(key)
        if entry is None:
            fits = self.slower * ahead <= self.budget.left
            entry = self._journal.add(key, fits=fits, slower=round(self.slower, 3))
        return bool(entry["fits"])
