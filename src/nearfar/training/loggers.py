"""Loggers besides `curves.csv`."""

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from nearfar.training.config import TrainConfig
from nearfar.training.options import ConfigError, to_dict

PACKAGES = {"tensorboard": "tensorboard", "wandb": "wandb", "mlflow": "mlflow"}


def check_installed(names: tuple[str, ...]) -> None:
    """Reject a logger whose package is missing."""
    for name in names:
        if find_spec(PACKAGES[name]) is None:
            raise ConfigError(f"the logger {name} needs its package: pip install {PACKAGES[name]}")


class Loggers:
    """All loggers of a run."""

    def __init__(self, config: TrainConfig, folder: Path):
        self._loggers = [_make(name, folder) for name in config.loggers]
        for logger in self._loggers:
            logger.log_hyperparams(to_dict(config))

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Log the values to every logger."""
        for logger in self._loggers:
            logger.log_metrics(dict(values), step=step)

    def close(self) -> None:
        """Flush all loggers."""
        for logger in self._loggers:
            logger.finalize("success")


def _make(name: str, folder: Path) -> Any:
    from lightning.pytorch import loggers

    if name == "tensorboard":
        return loggers.TensorBoardLogger(folder, name="tensorboard", version="")
    if name == "wandb":
        return loggers.WandbLogger(name=folder.name, save_dir=folder, project="nearfar")
    return loggers.MLFlowLogger("nearfar", run_name=folder.name, tracking_uri=f"file:{folder / 'mlruns'}")
