"""The image files in a folder."""

import os
from collections.abc import Callable
from pathlib import Path

EXTENSIONS = frozenset(
    {".jpg", ".jpeg", ".jpe", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm", ".jp2", ".avif"}
)


def images_below(folder: str | os.PathLike[str]) -> list[str]:
    """The image files in a folder and its subfolders, as sorted relative paths separated by "/".

    Links are followed unless they lead back to a folder that contains them. Hidden names (.name), pipes and devices
    are skipped. Broken links are listed, so that a loader reports them.
    """
    images: list[str] = []
    pending = [("", frozenset[tuple[int, int]]())]
    while pending:
        relative, ancestors = pending.pop()
        state = Path(folder, relative).stat()
        if (state.st_dev, state.st_ino) in ancestors:
            continue
        ancestors |= {(state.st_dev, state.st_ino)}
        with os.scandir(Path(folder, relative)) as entries:
            for entry in entries:
                name = f"{relative}/{entry.name}" if relative else entry.name
                if entry.name.startswith("."):
                    continue
                if _true(entry.is_dir):
                    pending.append((name, ancestors))
                elif os.path.splitext(entry.name)[1].lower() in EXTENSIONS and (
                    _true(entry.is_file) or (entry.is_symlink() and not os.path.exists(entry.path))
                ):
                    images.append(name)
    return sorted(images)


def _true(is_kind: Callable[[], bool]) -> bool:
    """`is_kind()`, or False for a link that leads in circles."""
    try:
        return is_kind()
    except OSError:
        return False
