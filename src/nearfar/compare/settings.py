"""What is compared, and with what effort; how it is kept, so that a comparison goes on as it began."""

import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nearfar.compare.spaces import LOSSES, read_contestant
from nearfar.foundation.files import write_file
from nearfar.foundation.folders import numbered_folder
from nearfar.training.config import LossConfig, TrainConfig
from nearfar.training.options import ConfigError, from_dict, to_dict

FILE = "compare.yaml"
TRIALS, SEEDS, FOLDS = 10, 5, 4
SEARCHED = ("lr", "classes", "proxies")  # rates of the optimiser that are searched for every loss


@dataclass(frozen=True)
class Effort:
    """How much is tried.

    Args:
        trials: settings of every loss, its default one first.
        seeds: runs of the best setting of every loss.
        folds: into which the training classes are cut; a setting is judged on each, trained on the others.
        budget: seconds for everything; there is less of everything, for all losses equally, where it would not fit.
    """

    trials: int = TRIALS
    seeds: int = SEEDS
    folds: int = FOLDS
    budget: float | None = None

    def __post_init__(self) -> None:
        for name, least in (("trials", 1), ("seeds", 1), ("folds", 2)):
            if getattr(self, name) < least:
                raise ConfigError(f"{name} must be at least {least}, not {getattr(self, name)}")
        if self.budget is not None and not 0 < self.budget < math.inf:
            raise ConfigError(f"the budget must be a time, such as 10min, not {self.budget} seconds")


@dataclass(frozen=True)
class Comparison:
    """Contestants by name, the effort, and the configuration that they share.

    `named`: they were asked for by name, so that no budget leaves one out.
    """

    contestants: tuple[str, ...]
    effort: Effort
    shared: TrainConfig
    named: bool = True

    def loss(self, name: str) -> LossConfig:
        """The contestant of that name, with its defaults."""
        return read_contestant(name)


def make_comparison(shared: TrainConfig, losses: Sequence[str] | None, effort: Effort, finetune: bool) -> Comparison:
    """A comparison, checked; on cached features unless the whole network is to be trained."""
    names = tuple(losses or LOSSES)
    if doubled := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigError(f"{doubled[0]} is there twice")
    for name in names:
        read_contestant(name)
    if shared.loss:
        raise ConfigError("the losses to compare are given by losses, not by loss")
    for rate in SEARCHED:
        if getattr(shared.optimiser, rate) is not None:
            raise ConfigError(f"optimiser.{rate} is searched for every loss: leave it out")
    if shared.devices > 1:
        raise ConfigError("a comparison trains on one device: leave devices out")
    if shared.evaluation.watch_test:
        raise ConfigError("a comparison looks at the test classes once, at the end: leave evaluation.watch_test out")
    if finetune and shared.model.freeze:
        raise ConfigError("finetune trains the whole network, freeze the head alone: give one of them")
    shared = replace(shared, model=replace(shared.model, freeze=not finetune))
    return Comparison(names, effort, shared, named=bool(losses))


def write_comparison(comparison: Comparison, folder: Path) -> None:
    """Say in the folder what is compared there."""
    import yaml

    path = folder / FILE
    if path.exists():
        raise ConfigError(
            f"{folder} holds a comparison already: nearfar compare --resume {folder} goes on with it; "
            "choose another --out for a new one"
        )
    effort = comparison.effort
    values = {
        "losses": list(comparison.contestants),
        "named": comparison.named,
        "trials": effort.trials,
        "seeds": effort.seeds,
        "folds": effort.folds,
        "budget": effort.budget,
        "shared": to_dict(comparison.shared),
    }
    write_file(path, yaml.safe_dump(values, sort_keys=False, allow_unicode=True, default_flow_style=None))


def read_comparison(folder: str | os.PathLike[str]) -> Comparison:
    """What `write_comparison` wrote."""
    import yaml

    path = Path(folder) / FILE
    if not path.is_file():
        raise ConfigError(f"{os.fspath(folder)} holds no comparison: there is no {FILE} in it")
    try:
        values: Mapping[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
        effort = Effort(values["trials"], values["seeds"], values["folds"], values["budget"])
        named = values.get("named", True)
        return Comparison(tuple(values["losses"]), effort, from_dict(values["shared"]), named)
    except (yaml.YAMLError, UnicodeDecodeError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} is damaged: {error!r}") from error


def new_folder(shared: TrainConfig) -> Path:
    """comparisons/DATA-NUMBER, the first number that is free."""
    data = re.sub(r"[^\w.-]+", "-", Path(shared.data.path).stem) or "data"
    return numbered_folder("comparisons", data)
