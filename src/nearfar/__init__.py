"""nearfar: deep metric learning on PyTorch, every loss of the field run by one exact engine.

    nearfar.losses        the losses, for a training loop of your own; they need only torch and numpy
    nearfar.data          data sets as tables, samplers, loaders
    nearfar.models        networks that embed images
    nearfar.evaluation    retrieval, verification, identification
    nearfar.train         a training run, as `nearfar train` runs it

Each is imported when it is first used.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nearfar import data as data
    from nearfar import evaluation as evaluation
    from nearfar import losses as losses
    from nearfar import models as models
    from nearfar.training.train import train as train

__version__ = "0.1.0"

_PACKAGES = ("data", "evaluation", "losses", "models")


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return importlib.import_module(f"nearfar.{name}")
    if name == "train":
        from nearfar.training.train import train

        return train
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*_PACKAGES, "__version__", "train"]
