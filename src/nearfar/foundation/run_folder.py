"""The folder of a run, recognised by its configuration."""

import os
from pathlib import Path

CONFIGURATION = "config.yaml"


def is_run(folder: str | os.PathLike[str]) -> bool:
    """Whether a run was begun there."""
    return (Path(folder) / CONFIGURATION).is_file()


def not_a_run(folder: str | os.PathLike[str]) -> str:
    """What to say of a folder that is none."""
    path = Path(folder)
    what = f"{path} is not a run: it has no {CONFIGURATION}" if path.exists() else f"there is no run {path}"
    return f"{what}: give a folder that nearfar train left, such as runs/photos-circle-1"
