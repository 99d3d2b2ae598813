"""The contestants and the effort of a comparison, and the file from which it resumes."""

import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nearfar.compare.spaces import LOSSES, read_contestant
from nearfar.data import Table
from nearfar.data.opening import path_of
from nearfar.foundation.files import write_file
from nearfar.foundation.folders import numbered_folder
from nearfar.training.config import TrainConfig
from nearfar.training.options import ConfigError, from_dict, to_dict

FILE = "compare.yaml"
TRIALS, SEEDS, FOLDS = 10, 5, 4
SEARCHED = ("lr", "classes", "proxies")  # rates of the optimiser that are searched for every loss


@dataclass(frozen=True)
class Effort:
    """The effort of a comparison.

    Args:
        trials: settings of a loss with three hyper-parameters, its default first; others get them in proportion.
        seeds: runs of each loss's best setting.
        folds: folds of the training classes; a setting is trained on all but one and evaluated on that one, in turn.
        budget: seconds for everything; the plan is reduced to fit, in the same way for all losses.
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

    `named`: the user named the contestants, so that no budget leaves one out.
    """

    contestants: tuple[str, ...]
    effort: Effort
    shared: TrainConfig
    named: bool = True


def with_data(shared: TrainConfig, data: str | os.PathLike[str] | Table | None) -> TrainConfig:
    """The configuration with the name of these data, if there are any."""
    if data is None:
        return shared
    path = data.name if isinstance(data, Table) else path_of(data)
    return replace(shared, data=replace(shared.data, path=path))


def make_comparison(shared: TrainConfig, losses: Sequence[str] | None, effort: Effort, finetune: bool) -> Comparison:
    """Check the settings of a comparison; heads are trained on cached features unless `finetune`."""
    names = tuple(losses or LOSSES)
    if doubled := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigError(f"{doubled[0]} is named twice")
    for name in names:
        read_contestant(name)
    if shared.loss:
        raise ConfigError("a comparison takes the option losses, not loss")
    for rate in SEARCHED:
        if getattr(shared.optimiser, rate) is not None:
            raise ConfigError(f"optimiser.{rate} is searched for every loss: leave it out")
    if shared.devices > 1:
        raise ConfigError("a comparison trains on one device: leave devices out")
    if shared.evaluation.watch_test:
        raise ConfigError("a comparison evaluates the test classes once, at the end: leave evaluation.watch_test out")
    if finetune and shared.model.freeze:
        raise ConfigError("finetune trains the whole network, freeze only the head: leave one of them out")
    shared = replace(shared, model=replace(shared.model, freeze=not finetune))
    return Comparison(names, effort, shared, named=bool(losses))


def write_comparison(comparison: Comparison, folder: Path) -> None:
    """Write the comparison to its folder, which must not have one."""
    import yaml

    path = folder / FILE
    if path.exists():
        raise ConfigError(
            f"{folder} already contains a comparison: nearfar compare --resume {folder} resumes it; choose another "
            "--out for a new one"
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
    """Read what `write_comparison` wrote."""
    import yaml

    path = Path(folder) / FILE
    if not path.is_file():
        raise ConfigError(f"{os.fspath(folder)} is not a comparison: {FILE} is missing")
    try:
        values: Mapping[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
        effort = Effort(values["trials"], values["seeds"], values["folds"], values["budget"])
        named = values.get("named", True)
        return Comparison(tuple(values["losses"]), effort, from_dict(values["shared"]), named)
    except (yaml.YAMLError, UnicodeDecodeError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} is damaged: {error!r}") from error


def new_folder(shared: TrainConfig) -> Path:
    """The first of comparisons/DATA-1, comparisons/DATA-2, ... that does not exist."""
    data = re.sub(r"[^\w.-]+", "-", Path(shared.data.path).stem) or "data"
    return numbered_folder("comparisons", data)
