"""The registry: every loss with its paper, found by tests, the command line, the docs and the benchmarks alike."""

import inspect
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

Level = Literal["pair", "class", "proxy", "pair or class", "towers", "penalty"]


@dataclass(frozen=True)
class LossInfo:
    """What the registry knows of a loss, with the capabilities that its class declares.

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
        return self._declares("row_local")

    @property
    def needs_class_ids(self) -> bool:
        """Whether every sample must have one class, whatever the arguments are."""
        return self._declares("needs_class_ids")

    @property
    def takes_references(self) -> bool:
        """Whether samples may be compared with another set, `ref_emb`."""
        return self.level in ("pair", "pair or class") and self._declares("takes_references")

    @property
    def whole_batch(self) -> bool:
        """Whether it is one number for the batch."""
        return self._declares("whole_batch")

    @property
    def free_norm(self) -> bool:
        """Whether it is defined on features of any norm."""
        return self._declares("free_norm")

    @property
    def proxies_are_rows(self) -> bool:
        """Whether the rows are the class vectors."""
        return self._declares("proxies_are_rows")

    def _declares(self, capability: str) -> bool:
        return getattr(self.loss, capability, False) is True

    @property
    def arguments(self) -> dict[str, Any]:
        """The constructor's own arguments and their defaults; `inspect.Parameter.empty` where one must be given."""
        parameters = inspect.signature(self.loss).parameters.values()
        return {p.name: p.default for p in parameters if p.kind is not inspect.Parameter.VAR_KEYWORD}


_LOSSES: dict[str, LossInfo] = {}
_Loss = TypeVar("_Loss", bound=type)


def register(level: Level, formula: str) -> Callable[[_Loss], _Loss]:
    """Class decorator: list the loss. Its documentation ends with "References:" and the paper."""

    def decorate(loss: _Loss) -> _Loss:
        name = loss.__name__
        _describe_ranges(loss)
        if name in _LOSSES:
            raise ValueError(f"a loss called {name} is registered already")
        _LOSSES[name] = LossInfo(name, loss, level, _paper(loss), formula)
        return loss

    return decorate


def _describe_ranges(loss: type) -> None:
    """Add what the settings declare to the documentation, for `help`."""
    names: dict[str, list[str]] = {}
    for setting in getattr(loss, "settings", {}).values():
        if setting.range and not setting.common:
            names.setdefault(setting.range, []).append(setting.name)
    if names:
        ranges = "; ".join(f"{', '.join(group)}: {text}" for text, group in names.items())
        lines = textwrap.fill(f"Ranges: {ranges}.", 116, initial_indent=" " * 4, subsequent_indent=" " * 4)
        text, references, paper = (loss.__doc__ or "").partition("    References:")
        loss.__doc__ = f"{text}{lines}\n\n{references}{paper}"


def _paper(loss: type) -> str:
    return " ".join((loss.__doc__ or "").partition("References:")[2].split()).rstrip(".")


def list_losses() -> list[LossInfo]:
    """Every registered loss, by name."""
    return [_LOSSES[name] for name in sorted(_LOSSES) if _LOSSES[name].level != "penalty"]


def list_penalties() -> list[LossInfo]:
    """What can be added to a loss and is none by itself, by name."""
    return [_LOSSES[name] for name in sorted(_LOSSES) if _LOSSES[name].level == "penalty"]


COMMON_OPTIONS = ["reduction", "memory_budget", "keep_statistics", "ignore_index", "check_finite", "dense", "sharded"]
