"""The registry: every loss with its paper, found by tests, the command line, the docs and the benchmarks alike."""

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from nearfar.errors import InputTypeError
from nearfar.foundation.suggestions import suggestion

Level = Literal["pair", "class", "proxy", "pair or class", "towers", "penalty"]


@dataclass(frozen=True)
class LossInfo:
    """What the registry knows of a loss.

    `formula` is written with s for a similarity, p and n for positive and negative pairs, y for the target class.
    """

    name: str
    loss: type
    level: Level
    paper: str
    formula: str

    @property
    def summary(self) -> str:
        """The first line of the loss's documentation."""
        return inspect.getdoc(self.loss).split("\n", 1)[0]  # type: ignore[union-attr]

    @property
    def row_local(self) -> bool:
        """Whether a row's loss depends on that row's similarities only."""
        return bool(getattr(self.loss, "row_local", False))

    @property
    def needs_class_ids(self) -> bool:
        """Whether every sample must have one class, whatever the arguments are."""
        return bool(getattr(self.loss, "needs_class_ids", False))

    @property
    def takes_references(self) -> bool:
        """Whether samples may be compared with another set, `ref_emb`."""
        pairs = self.level in ("pair", "pair or class")
        return pairs and bool(getattr(self.loss, "takes_references", False))

    @property
    def whole_batch(self) -> bool:
        """Whether it is one number for the batch."""
        return bool(getattr(self.loss, "whole_batch", False))

    @property
    def arguments(self) -> dict[str, Any]:
        """The constructor's own arguments and their defaults; `inspect.Parameter.empty` where one must be given."""
        parameters = inspect.signature(self.loss).parameters.values()
        return {p.name: p.default for p in parameters if p.kind is not inspect.Parameter.VAR_KEYWORD}


_LOSSES: dict[str, LossInfo] = {}
_Loss = TypeVar("_Loss", bound=type)


def register(level: Level, paper: str, formula: str) -> Callable[[_Loss], _Loss]:
    """Class decorator: list the loss, and make a misspelt argument an error that names the right one."""

    def decorate(loss: _Loss) -> _Loss:
        name = loss.__name__
        if name in _LOSSES:
            raise ValueError(f"a loss called {name} is registered already")
        _refuse_unknown_arguments(loss)
        _LOSSES[name] = LossInfo(name, loss, level, paper, formula)
        return loss

    return decorate


def list_losses() -> list[LossInfo]:
    """Every registered loss, by name."""
    return [_LOSSES[name] for name in sorted(_LOSSES) if _LOSSES[name].level != "penalty"]


def list_penalties() -> list[LossInfo]:
    """What can be added to a loss and is none by itself, by name."""
    return [_LOSSES[name] for name in sorted(_LOSSES) if _LOSSES[name].level == "penalty"]


def _refuse_unknown_arguments(loss: type) -> None:
    initialise = loss.__init__  # type: ignore[misc]
    own = list(inspect.signature(initialise).parameters)[1:]
    known = [name for name in own if name != "options"] + COMMON_OPTIONS

    @functools.wraps(initialise)
    def checked(self: object, *args: Any, **kwargs: Any) -> None:
        for name in kwargs:
            if name not in known:
                hint = suggestion(name, known, f"it takes {', '.join(known)}")
                raise InputTypeError(f"{loss.__name__} has no argument {name!r}: {hint}")
        initialise(self, *args, **kwargs)

    loss.__init__ = checked  # type: ignore[misc]


COMMON_OPTIONS = ["reduction", "memory_budget", "check_finite", "dense", "sharded"]
