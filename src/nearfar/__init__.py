"""nearfar: deep metric learning on PyTorch, every loss of the field run by one exact engine."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nearfar.training.train import train as train

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """`nearfar.train`, loaded when it is asked for: it needs packages that the losses do not."""
    if name == "train":
        from nearfar.training.train import train

        return train
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
