"""The image files in a folder."""

import os
from collections.abc import Callable
from pathlib import Path

EXTENSIONS = frozenset(
    {".jpg", ".jpeg", ".jpe", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm", ".jp2", ".avif"}
)


def images_below(folder: str | os.PathLike[str]) -> list[str]:
    """The image files in a folder and its subfolders, as paths relative to it with "/" between, in sorted order.

    Links are followed, but for those that lead back to a folder they are in. What is hidden (.name) does not count, nor
    do pipes and devices, whatever they are called. Links to nothing or to themselves are listed: a
    loader reports them.
    """
    found: list[str] = []
    waiting = [("", frozenset[tuple[int, int]]())]
    while waiting:
        here, above = waiting.pop()
        place = Path(folder, here)
        state = place.stat()
        if (state.st_dev, state.st_ino) in above:
            continue
        above |= {(state.st_dev, state.st_ino)}
        with os.scandir(place) as entries:
            for entry in entries:
                name = f"{here}/{entry.name}" if here else entry.name
                if entry.name.startswith("."):
                    continue
                if _leads_to(entry.is_dir):
                    waiting.append((name, above))
                elif os.path.splitext(entry.name)[1].lower() in EXTENSIONS and (
                    _leads_to(entry.is_file) or (entry.is_symlink() and not os.path.exists(entry.path))
                ):
                    found.append(name)
    return sorted(found)


def _leads_to(kind: Callable[[], bool]) -> bool:
    """Whether an entry is of a kind; a link that leads in circles is of none."""
    try:
        return kind()
    except OSError:
        return False
