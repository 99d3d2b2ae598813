"""The cache folder, and numbered folders for results."""

import itertools
import os
from pathlib import Path


def cache_folder() -> Path:
    """The cache folder: $NEARFAR_CACHE, or the system's folder for caches."""
    if configured := os.environ.get("NEARFAR_CACHE"):
        return Path(configured)
    from platformdirs import user_cache_path

    return user_cache_path("nearfar", appauthor=False)


def numbered_folder(parent: str, name: str) -> Path:
    """The first of parent/name-1, parent/name-2, ... that does not exist yet."""
    folders = (Path(parent) / f"{name}-{number}" for number in itertools.count(1))
    return next(folder for folder in folders if not folder.exists())
