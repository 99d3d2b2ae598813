"""The search: settings of every loss, each judged on folds of classes that it was not trained on.

A loss has settings in proportion to the dimensions of its space, or those with many would be searched worse. Losses
take turns, so that at every moment all have had the same chances. Settings come from Optuna's TPE, the loss's defaults
first; one that is worse than the median of those before it is given up after a fold.
What is drawn depends on the seed, the loss, and the results so far alone, so that a search which goes on after a kill
draws the same again, and finds its results in the journal.
"""

import hashlib
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from nearfar.compare.ground import Ground
from nearfar.compare.journal import Journal
from nearfar.compare.pace import Pace
from nearfar.compare.settings import Comparison
from nearfar.compare.spaces import Dimension, Range, forms, share, space_of
from nearfar.compare.trial import Outcome, Setting, run_fold
from nearfar.errors import MissingPackageError
from nearfar.training.config import LossConfig
from nearfar.training.defaults import start_of
from nearfar.training.loss_defaults import Start
from nearfar.training.options import ConfigError

RANDOM_TRIALS = 4  # of a loss, before TPE has something to go by
PRUNED_FROM = 3  # trials of a loss that are complete, before others are given up


@dataclass(frozen=True)
class Trial:
    """One setting of a loss, and what it came to on the folds; given up early if they are not all there."""

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
        """That it took."""
        return sum(outcome.seconds for outcome in self.outcomes)


@dataclass
class Found:
    """All trials, by loss; `rounds` is how many settings a loss with three dimensions has."""

    trials: dict[str, list[Trial]] = field(default_factory=dict)
    rounds: int = 0

    def best(self, loss: str) -> Trial:
        """The best setting of a loss, of those that were judged on all folds; of equals, the first."""
        return max((trial for trial in self.trials[loss] if not trial.pruned), key=lambda trial: trial.value)

    @property
    def seconds(self) -> float:
        """That all of them took."""
        return sum(trial.seconds for trials in self.trials.values() for trial in trials)


class Watcher(Protocol):
    """Is told how the search goes."""

    def trial(self, trial: Trial, best: Trial) -> None: ...


def search(
    comparison: Comparison, ground: Ground, journal: Journal, watcher: Watcher, pace: Pace | None = None
) -> Found:
    """Try settings of all losses.

    Args:
        pace: says when there is no time for more. Then all losses have their share of settings all the same: rounds
            are done whole, and a loss for which the first leaves no time is left out.
    """
    optuna = _optuna()
    studies = {name: optuna.create_study(direction="maximize") for name in comparison.contestants}
    found = Found()
    for number in range(comparison.effort.trials):
        if pace is not None and number and not pace.another_round(number, len(found.trials)):
            break
        for name in list(found.trials) if number else comparison.contestants:
            if pace is not None and number == 0 and not pace.another_loss(name, len(found.trials) + 1):
                break
            own = found.trials.setdefault(name, [])
            while len(own) < share(name, number + 1):
                own.append(_try(comparison, ground, journal, name, studies[name], len(own), pace))
                watcher.trial(own[-1], found.best(name))
        found.rounds = number + 1
    return found


def fold_key(name: str, number: int, fold: int) -> str:
    """Of a training in the journal."""
    return f"{name} {number} {fold}"


def defaults(ground: Ground, name: str) -> list[dict[str, Any]]:
    """What is tried first of a loss: the defaults of each of its forms."""
    found = []
    for loss in forms(name):
        space = space_of(loss, start_of(ground.config.model))
        level = {"level": _level(loss)} if len(forms(name)) > 1 else {}
        found.append(level | {key: _rounded(each.first, each) for key, each in space.items()})
    return found


def _level(loss: LossConfig) -> str:
    return "class" if loss.class_level else "pair"


def _try(
    comparison: Comparison, ground: Ground, journal: Journal, name: str, study: Any, number: int, pace: Pace | None
) -> Trial:
    """The next setting of a loss."""
    optuna = _optuna()
    seed = _seed(ground.config.seed, name, number)
    study.sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=RANDOM_TRIALS)
    study.pruner = optuna.pruners.MedianPruner(n_startup_trials=PRUNED_FROM)
    if number == 0:
        for first in defaults(ground, name):
            study.enqueue_trial(first)
    asked = study.ask()
    setting = _drawn(asked, name, start_of(ground.config.model))
    outcomes: list[Outcome] = []
    gained = 0.0
    for index, fold in enumerate(ground.folds):
        key = fold_key(name, number, index)
        entry = journal.get(key)
        if entry is None:
            clock = time.monotonic if pace is None else pace.budget.clock
            outcome = run_fold(ground, fold, comparison.loss(name), setting, clock=clock)
            entry = journal.add(key, setting=setting, **asdict(outcome))
        elif entry["setting"] != setting:
            raise ConfigError(
                f"the journal has another setting for trial {number} of {name} than the search draws now: another "
                "version of optuna or nearfar began this comparison. Begin a new one"
            )
        outcomes.append(_outcome(entry))
        if pace is not None:
            pace.took(pace.costs.fold, outcomes[-1].seconds)
        # By how much it is better than the start, since some folds are harder than others.
        gained += outcomes[-1].value - fold.start_value
        asked.report(gained / len(outcomes), index)
        if index + 1 < len(ground.folds) and asked.should_prune():
            study.tell(asked, state=optuna.trial.TrialState.PRUNED)
            return Trial(name, number, setting, tuple(outcomes), pruned=True)
    study.tell(asked, gained / len(outcomes))
    return Trial(name, number, setting, tuple(outcomes), pruned=False)


def _drawn(asked: Any, name: str, start: Start) -> dict[str, Any]:
    """The next setting: the form first, and then what is searched for it."""
    own = {_level(loss): loss for loss in forms(name)}
    setting = {"level": asked.suggest_categorical("level", list(own))} if len(own) > 1 else {}
    loss = own[setting["level"]] if setting else next(iter(own.values()))
    for key, each in space_of(loss, start).items():
        if isinstance(each, Range):
            setting[key] = _rounded(asked.suggest_float(key, each.low, each.high, log=each.log), each)
        else:
            setting[key] = asked.suggest_categorical(key, list(each.values))
    return setting


def _outcome(entry: Mapping[str, Any]) -> Outcome:
    values = {name: entry[name] for name in Outcome.__dataclass_fields__}
    return Outcome(**values | {"looks": tuple((first, second) for first, second in values["looks"])})


def _rounded(value: Any, within: Dimension) -> Any:
    """To three digits, so that a configuration can be read; never out of the range."""
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
