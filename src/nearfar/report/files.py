"""What the folder of a run says: read as files, so that any run can be shown, finished or not."""

import contextlib
import csv
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from nearfar.errors import InputError
from nearfar.losses import list_losses
from nearfar.report.boundaries import Boundary, boundary

LEVEL = {
    "class": "a sample and the vector of a class",
    "proxy": "a sample and the proxy of a class",
}


class RunFiles:
    """What the folder of a run says."""

    def __init__(self, folder: Path):
        self.metrics: dict[str, Any] = _json(folder / "metrics.json")
        self.environment: dict[str, Any] = _json(folder / "environment.json")
        path = folder / "config.yaml"
        self.config_text = path.read_text(encoding="utf-8") if path.is_file() else ""
        self.losses = _losses(self.config_text)
        self.curves = _columns(folder / "curves.csv")

    @property
    def loss_names(self) -> str:
        return " + ".join(str(loss.get("name")) for loss in self.losses) or "a run"

    @property
    def threshold(self) -> float | None:
        """The calibrated one."""
        found = self.metrics.get("threshold")
        value = found.get("threshold") if isinstance(found, Mapping) else None
        return float(value) if isinstance(value, (int, float)) and np.isfinite(value) else None

    @property
    def threshold_note(self) -> str:
        """What it was measured to be worth, or why there is none; a whole sentence."""
        said = str(self.metrics.get("threshold_note") or "")
        return f"{said[:1].upper()}{said[1:]}{'' if said.endswith('.') or not said else '.'}"

    @property
    def boundary(self) -> tuple[Boundary | None, str]:
        """Of the run's loss, where it is a single one and the model was trained by it; and what the boundary is
        between, in words.
        """
        if len(self.losses) != 1 or self.metrics.get("kept", "trained") != "trained":
            return None, ""
        given = self.losses[0]
        for info in list_losses():
            if info.name == given.get("name"):
                level = "class" if given.get("class_level") else info.level
                return boundary(info.name, {**info.arguments, **given}), LEVEL.get(level, "")
        return None, ""


@contextlib.contextmanager
def _told(path: Path) -> Iterator[None]:
    """Say which file it is that cannot be read."""
    try:
        yield
    except (ValueError, TypeError, csv.Error) as error:
        raise InputError(f"{path} is damaged ({error}): remove it, and the report is written without it") from error


def _json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    with _told(path):
        found = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(found, dict):
            raise ValueError("it does not say what of what")
        return found


def _losses(config: str) -> list[dict[str, Any]]:
    import yaml

    found = (yaml.safe_load(config) or {}).get("loss") or [] if config else []
    return [loss for loss in found if isinstance(loss, dict)]


def _columns(path: Path) -> dict[str, npt.NDArray[np.float64]]:
    """The columns of a CSV file of numbers; NaN where there is none."""
    if not path.is_file():
        return {}
    with _told(path):
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        names = list(rows[0]) if rows else []
        return {name: np.array([float(row[name] or "nan") for row in rows], np.float64) for name in names}
