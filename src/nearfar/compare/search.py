"""The search: for every loss equally many settings, each judged on folds of classes that it was not trained on.

Losses take turns, one setting each a round, so that at every moment all have had the same chances. Settings come from
Optuna's TPE, the loss's defaults first; one that is worse than the median of those before it is given up after a fold.
What is drawn depends on the seed, the loss, and the results so far alone, so that a search which goes on after a kill
draws the same again, and finds its results in the journal.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from nearfar.compare.ground import Ground
from nearfar.compare.journal import Journal
from nearfar.compare.settings import Comparison
from nearfar.compare.spaces import FROZEN_RATE, PRETRAINED_RATE, RANDOM_RATE, Range, space_of
from nearfar.compare.trial import Outcome, Setting, run_fold
from nearfar.errors import MissingPackageError
from nearfar.training.config import TrainConfig
from nearfar.training.defaults import is_pretrained
from nearfar.training.options import ConfigError

RANDOM_TRIALS = 4  # of a loss, before TPE has something to go by
PRUNED_FROM = 3  # trials of a loss that are complete, before others are given up
SAVING = 1.3  # a run with its files and its measurements takes so many times as long as a training without


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
    """All trials, by loss; equally many of each."""

    trials: dict[str, list[Trial]] = field(default_factory=dict)

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
    comparison: Comparison,
    ground: Ground,
    journal: Journal,
    watcher: Watcher,
    *,
    spent: float = 0.0,
    reserved: float = 0.0,
) -> Found:
    """Try settings of all losses.

    Args:
        spent: seconds of the budget that are gone already.
        reserved: seconds of the budget that the look at the end will take.
    """
    optuna = _optuna()
    effort = comparison.effort
    studies = {name: optuna.create_study(direction="maximize") for name in comparison.contestants}
    found = Found({name: [] for name in comparison.contestants})
    for number in range(effort.trials):
        if effort.budget is not None and number:
            ahead = _next_round(found) + _in_the_end(found, effort.seeds) + reserved
            if spent + found.seconds + ahead > effort.budget:
                break
        for name in comparison.contestants:
            trial = _try(comparison, ground, journal, name, studies[name], number)
            found.trials[name].append(trial)
            watcher.trial(trial, found.best(name))
    return found


def _next_round(found: Found) -> float:
    """Seconds that another setting of every loss will take: as many as the last."""
    return sum(trials[-1].seconds for trials in found.trials.values())


def _in_the_end(found: Found, seeds: int) -> float:
    """Seconds that the runs of the best settings will take."""
    each = (found.best(name).outcomes for name in found.trials)
    return SAVING * seeds * sum(sum(outcome.seconds for outcome in outcomes) / len(outcomes) for outcomes in each)


def _try(comparison: Comparison, ground: Ground, journal: Journal, name: str, study: Any, number: int) -> Trial:
    """The next setting of a loss."""
    optuna = _optuna()
    space = space_of(comparison.loss(name), rate_range(ground.config))
    seed = _seed(ground.config.seed, name, number)
    study.sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=RANDOM_TRIALS)
    study.pruner = optuna.pruners.MedianPruner(n_startup_trials=PRUNED_FROM)
    if number == 0:
        study.enqueue_trial({key: each.middle for key, each in space.items()})
    asked = study.ask(
        {key: optuna.distributions.FloatDistribution(r.low, r.high, log=r.log) for key, r in space.items()}
    )
    setting = {key: _rounded(value, space[key]) for key, value in asked.params.items()}
    outcomes: list[Outcome] = []
    gained = 0.0
    for index, fold in enumerate(ground.folds):
        key = f"{name} {number} {index}"
        entry = journal.get(key)
        if entry is None:
            entry = journal.add(key, setting=setting, **asdict(run_fold(ground, fold, comparison.loss(name), setting)))
        elif entry["setting"] != setting:
            raise ConfigError(
                f"the journal has another setting for trial {number} of {name} than the search draws now: another "
                "version of optuna or nearfar began this comparison. Begin a new one"
            )
        outcomes.append(_outcome(entry))
        # By how much it is better than the start, since some folds are harder than others.
        gained += outcomes[-1].value - fold.start_value
        asked.report(gained / len(outcomes), index)
        if index + 1 < len(ground.folds) and asked.should_prune():
            study.tell(asked, state=optuna.trial.TrialState.PRUNED)
            return Trial(name, number, setting, tuple(outcomes), pruned=True)
    study.tell(asked, gained / len(outcomes))
    return Trial(name, number, setting, tuple(outcomes), pruned=False)


def rate_range(config: TrainConfig) -> Range:
    """Where learning rates are searched."""
    if config.model.freeze:
        return FROZEN_RATE
    assert config.model.backbone is not None
    return PRETRAINED_RATE if is_pretrained(config.model.backbone, config.model.weights) else RANDOM_RATE


def _outcome(entry: Mapping[str, Any]) -> Outcome:
    values = {name: entry[name] for name in Outcome.__dataclass_fields__}
    return Outcome(**values | {"looks": tuple(values["looks"])})


def _rounded(value: float, within: Range) -> float:
    """To three digits, so that a configuration can be read; never out of the range."""
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
