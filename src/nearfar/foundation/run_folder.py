"""Reads the folder of a run without importing training.

`nearfar.training.runs.Run` writes the folder and documents its files.
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
    """A run cannot continue, or its folder cannot be read. The message says what was saved and what to do."""


def is_run(folder: str | os.PathLike[str]) -> bool:
    """Whether a run was started in a folder."""
    return (Path(folder) / CONFIGURATION).is_file()


def not_a_run(folder: str | os.PathLike[str]) -> str:
    """The error message for a folder that is not a run."""
    path = Path(folder)
    problem = f"{path} is not a run: it has no {CONFIGURATION}" if path.exists() else f"there is no run {path}"
    return f"{problem}: give a folder that nearfar train left, such as runs/photos-circle-1"


class RunFolder:
    """The files of a run, finished or not. Missing files read as empty; damaged files raise `RunError`."""

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

        losses = (yaml.safe_load(self.configuration) or {}).get("loss") or []
        return [loss for loss in losses if isinstance(loss, dict)]

    @property
    def metrics(self) -> dict[str, Any]:
        """The content of `metrics.json`; empty before the first measurement."""
        return self._read_json(METRICS, "measures again")

    @property
    def environment(self) -> dict[str, Any]:
        """The content of `environment.json`: versions and machine."""
        return self._read_json(ENVIRONMENT, "continues without it")

    @property
    def curves(self) -> list[dict[str, float | None]]:
        """The rows of `curves.csv`, with None for empty cells."""
        path = self.folder / CURVES
        if not path.is_file():
            return []
        try:
            with path.open(newline="", encoding="utf-8") as file:
                return [{name: float(x) if x else None for name, x in row.items()} for row in csv.DictReader(file)]
        except (ValueError, TypeError, csv.Error) as error:
            raise self.damaged(path, error, path, "continues without it") from error

    @property
    def finished(self) -> bool:
        """Whether the run has ended."""
        return "after" in self.metrics

    @property
    def threshold(self) -> float | None:
        """The similarity from which two samples count as the same; None if it could not be calibrated."""
        calibrated = self.metrics.get("threshold")
        value = calibrated.get("threshold") if isinstance(calibrated, Mapping) else None
        return float(value) if isinstance(value, int | float) and math.isfinite(value) else None

    @property
    def threshold_note(self) -> str:
        """A sentence about the measured precision of the threshold, or the reason why there is none."""
        note = str(self.metrics.get("threshold_note") or "")
        return f"{note[:1].upper()}{note[1:]}{'' if note.endswith('.') or not note else '.'}"

    def damaged(self, path: Path, error: Exception, remove: Path, then: str) -> RunError:
        """The error for a damaged file: `remove` is what to delete, `then` what the resumed run does about it."""
        why = (str(error).strip().splitlines() or [type(error).__name__])[0]
        return RunError(f"{path} is damaged ({why}): remove {remove}; then nearfar train --resume {self.folder} {then}")

    def _read_json(self, name: str, then: str) -> dict[str, Any]:
        path = self.folder / name
        try:
            content = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
            if not isinstance(content, dict):
                raise ValueError("expected a JSON object")
        except ValueError as error:
            raise self.damaged(path, error, path, then) from error
        return content
