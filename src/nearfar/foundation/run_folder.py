"""The folder of a run, as its files say: what can be read without any part of training.

`nearfar.training.runs.Run` writes it, and says which file is what.
"""

import csv
import json
import math
import os
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from nearfar.errors import NearfarError

CONFIGURATION, METRICS, CURVES, ENVIRONMENT = "config.yaml", "metrics.json", "curves.csv", "environment.json"


class RunError(NearfarError, RuntimeError):
    """A run cannot go on, or its folder cannot be read; the message says what was kept and what to do."""


def is_run(folder: str | os.PathLike[str]) -> bool:
    """Whether a run was begun there."""
    return (Path(folder) / CONFIGURATION).is_file()


def not_a_run(folder: str | os.PathLike[str]) -> str:
    """What to say of a folder that is none."""
    path = Path(folder)
    what = f"{path} is not a run: it has no {CONFIGURATION}" if path.exists() else f"there is no run {path}"
    return f"{what}: give a folder that nearfar train left, such as runs/photos-circle-1"


class RunFolder:
    """What a run has left, finished or not. A file that is missing says nothing; one that is damaged is an error."""

    def __init__(self, folder: str | os.PathLike[str]):
        self.folder = Path(folder)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({os.fspath(self.folder)!r})"

    @property
    def configuration(self) -> str:
        """The text of `config.yaml`."""
        path = self.folder / CONFIGURATION
        return path.read_text(encoding="utf-8") if path.is_file() else ""

    @cached_property
    def losses(self) -> list[dict[str, Any]]:
        """The losses of the configuration, each a name with its arguments."""
        import yaml

        found = (yaml.safe_load(self.configuration) or {}).get("loss") or []
        return [loss for loss in found if isinstance(loss, dict)]

    @property
    def metrics(self) -> dict[str, Any]:
        """What `metrics.json` holds; nothing before the run has measured anything."""
        return self._mapping(METRICS, "measures again")

    @property
    def environment(self) -> dict[str, Any]:
        """Versions and machine."""
        return self._mapping(ENVIRONMENT, "goes on without it")

    @property
    def curves(self) -> list[dict[str, float | None]]:
        """The rows of `curves.csv`; None where a row lacks a value."""
        path = self.folder / CURVES
        if not path.is_file():
            return []
        try:
            with path.open(newline="", encoding="utf-8") as file:
                return [{name: float(x) if x else None for name, x in row.items()} for row in csv.DictReader(file)]
        except (ValueError, TypeError, csv.Error) as error:
            raise self.damaged(path, error, path, "goes on without it") from error

    @property
    def finished(self) -> bool:
        """Whether it has come to its end."""
        return "after" in self.metrics

    @property
    def threshold(self) -> float | None:
        """The similarity from which two samples count as the same, where it could be calibrated."""
        found = self.metrics.get("threshold")
        value = found.get("threshold") if isinstance(found, Mapping) else None
        return float(value) if isinstance(value, int | float) and math.isfinite(value) else None

    @property
    def threshold_note(self) -> str:
        """What the threshold was measured to be worth, or why there is none; a whole sentence."""
        note = str(self.metrics.get("threshold_note") or "")
        return f"{note[:1].upper()}{note[1:]}{'' if note.endswith('.') or not note else '.'}"

    def damaged(self, path: Path, error: Exception, remove: Path, then: str) -> RunError:
        """What to say of a file that cannot be read, and what to remove so that the run does something about it."""
        why = (str(error).strip().splitlines() or [type(error).__name__])[0]
        return RunError(f"{path} is damaged ({why}): remove {remove}; then nearfar train --resume {self.folder} {then}")

    def _mapping(self, name: str, then: str) -> dict[str, Any]:
        path = self.folder / name
        try:
            found = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
            if not isinstance(found, dict):
                raise ValueError("expected a JSON object")
        except ValueError as error:
            raise self.damaged(path, error, path, then) from error
        return found
