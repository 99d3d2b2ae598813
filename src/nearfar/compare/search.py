"""The search: settings of every loss, each evaluated on held-out folds of the training classes.

A loss gets settings in proportion to the dimensions of its space, so that all spaces are searched equally well. Losses
take turns, so that none is ahead when the time ends. Settings come from Optuna's TPE, the defaults first; one that is
worse than the median of its predecessors is pruned after a fold. Draws depend only on the seed, the loss and its
results so far: a search that resumes after a kill draws the same settings and finds their results in the journal.
"""

import hashlib
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from nearfar.compare.journal import Journal
from nearfar.compare.pace import Pace
from nearfar.compare.settings import Comparison
from nearfar.compare.spaces import Dimension, Range, forms, read_contestant, share, space_of
from nearfar.compare.trial import Outcome, Setting, run_fold
from nearfar.compare.workbench import Workbench
from nearfar.errors import MissingPackageError
from nearfar.training.config import LossConfig
from nearfar.training.defaults import start_of
from nearfar.training.loss_defaults import Start
from nearfar.training.options import ConfigError

RANDOM_TRIALS = 4  # of a loss, before TPE models it
PRUNED_FROM = 3  # complete trials of a loss, before any is pruned


@dataclass(frozen=True)
class Trial:
    """One setting of a loss and its results on the folds; `pruned` if it ended before the last fold."""

    loss: str
    number: int
    setting: Setting
    outcomes: tuple[Outcome, ...]
    pruned: bool

    @property
    def value(self) -> float:
        """The mean over the folds."""
        return sum(outcome.value for outcome in self.outcomes) / len(self.outcomes)

    @property
    def seconds(self) -> float:
        """The time that it took."""
        return sum(outcome.seconds for outcome in self.outcomes)


@dataclass
class SearchResult:
    """All trials, by loss; `rounds` is the number of settings of a loss with three dimensions."""

    trials: dict[str, list[Trial]] = field(default_factory=dict)
    rounds: int = 0

    def best(self, loss: str) -> Trial:
        """The best trial of a loss among those evaluated on all folds; of equal ones, the first."""
        return max((trial for trial in self.trials[loss] if not trial.pruned), key=lambda trial: trial.value)

    @property
    def seconds(self) -> float:
        """The time that all trials took."""
        return sum(trial.seconds for trials in self.trials.values() for trial in trials)


class Watcher(Protocol):
    """Receives every trial."""

    def trial(self, trial: Trial, best: Trial) -> None: ...


def search(
    comparison: Comparison, workbench: Workbench, journal: Journal, watcher: Watcher, pace: Pace | None = None
) -> SearchResult:
    """Try settings of all losses.

    Args:
        pace: says when no time is left. Only whole rounds are done, so that all losses have their share; a loss for
            which the first round leaves no time is left out.
    """
    optuna = _optuna()
    studies = {name: optuna.create_study(direction="maximize") for name in comparison.contestants}
    result = SearchResult()
    for number in range(comparison.effort.trials):
        if pace is not None and number and not pace.another_round(number, len(result.trials)):
            break
        for name in list(result.trials) if number else comparison.contestants:
            if pace is not None and number == 0 and not pace.another_loss(name, len(result.trials) + 1):
                break
            trials = result.trials.setdefault(name, [])
            while len(trials) < share(name, number + 1):
                trials.append(_try(workbench, journal, name, studies[name], len(trials), pace))
                watcher.trial(trials[-1], result.best(name))
        result.rounds = number + 1
    return result


def fold_key(name: str, number: int, fold: int) -> str:
    """The journal's key of a training."""
    return f"{name} {number} {fold}"


def defaults(workbench: Workbench, name: str) -> list[dict[str, Any]]:
    """The settings to try first: the defaults of each form of the loss."""
    settings = []
    for loss in forms(name):
        space = space_of(loss, start_of(workbench.config.model))
        level = {"level": _level(loss)} if len(forms(name)) > 1 else {}
        settings.append(level | {key: _rounded(each.first, each) for key, each in space.items()})
    return settings


def _level(loss: LossConfig) -> str:
    return "class" if loss.class_level else "pair"


def _try(workbench: Workbench, journal: Journal, name: str, study: Any, number: int, pace: Pace | None) -> Trial:
    """Draw the next setting of a loss and evaluate it."""
    optuna = _optuna()
    seed = _seed(workbench.config.seed, name, number)
    study.sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=RANDOM_TRIALS)
    study.pruner = optuna.pruners.MedianPruner(n_startup_trials=PRUNED_FROM)
    if number == 0:
        for first in defaults(workbench, name):
            study.enqueue_trial(first)
    asked = study.ask()
    setting = _drawn(asked, name, start_of(workbench.config.model))
    outcomes: list[Outcome] = []
    gained = 0.0
    for index, fold in enumerate(workbench.folds):
        key = fold_key(name, number, index)
        entry = journal.get(key)
        if entry is None:
            clock = time.monotonic if pace is None else pace.budget.clock
            outcome = run_fold(workbench, fold, read_contestant(name), setting, clock=clock)
            entry = journal.add(key, setting=setting, **asdict(outcome))
        elif entry["setting"] != setting:
            raise ConfigError(
                f"the journal has another setting for trial {number} of {name} than the search draws now: the "
                "comparison was started by another version of optuna or nearfar. Start a new one"
            )
        outcomes.append(_outcome(entry))
        if pace is not None:
            pace.took(pace.costs.fold, outcomes[-1].seconds)
        # The gain over the initial model, since some folds are harder than others.
        gained += outcomes[-1].value - fold.start_value
        asked.report(gained / len(outcomes), index)
        if index + 1 < len(workbench.folds) and asked.should_prune():
            study.tell(asked, state=optuna.trial.TrialState.PRUNED)
            return Trial(name, number, setting, tuple(outcomes), pruned=True)
    study.tell(asked, gained / len(outcomes))
    return Trial(name, number, setting, tuple(outcomes), pruned=False)


def _drawn(asked: Any, name: str, start: Start) -> dict[str, Any]:
    """Draw a setting: the form first, then its dimensions."""
    by_level = {_level(loss): loss for loss in forms(name)}
    setting = {"level": asked.suggest_categorical("level", list(by_level))} if len(by_level) > 1 else {}
    loss = by_level[setting["level"]] if setting else next(iter(by_level.values()))
    for key, each in space_of(loss, start).items():
        if isinstance(each, Range):
            setting[key] = _rounded(asked.suggest_float(key, each.low, each.high, log=each.log), each)
        else:
            setting[key] = asked.suggest_categorical(key, list(each.values))
    return setting


def _outcome(entry: Mapping[str, Any]) -> Outcome:
    values = {name: entry[name] for name in Outcome.__dataclass_fields__}
    return Outcome(**values | {"evaluations": tuple((first, second) for first, second in values["evaluations"])})


def _rounded(value: Any, within: Dimension) -> Any:
    """Round to three digits, for legible configurations, within the range."""
    if not isinstance(within, Range):
        return value
    return min(max(float(f"{value:.3g}"), within.low), within.high)


def _seed(seed: int, name: str, number: int) -> int:
    digest = hashlib.blake2b(f"{seed} {name} {number}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big")


def _optuna() -> Any:
    try:
        import optuna
    except ImportError as error:
        raise MissingPackageError("a comparison searches with Optuna: pip install 'nearfar[compare]'") from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna
