"""`open`: recognises the layout of a data set and reads it."""

import dataclasses
import warnings
from os import PathLike
from pathlib import Path

from nearfar.data.embedded import glyphs
from nearfar.data.layouts import LAYOUTS, Layout
from nearfar.data.official_counts import differences
from nearfar.data.parsing import LayoutError
from nearfar.data.tables import Table
from nearfar.errors import InputError, MissingFileError
from nearfar.foundation.suggestions import suggestion

EMBEDDED = "glyphs"


class DifferentCountsWarning(UserWarning):
    """A copy of a well-known data set does not have the official number of images or classes."""


def open(path: str | PathLike[str] | None = None, layout: str | None = None) -> Table:  # noqa: A001
    """Open the data set at a path. Without a path it is the embedded one, as with the name "glyphs" unless a file or
    folder has that name.

    The known layouts are CUB-200-2011, Cars196, Stanford Online Products, In-Shop, Market-1501, MSMT17, LFW, YTF, CFP,
    AgeDB, lists of pairs, IJB-B and IJB-C, MegaFace, insightface's .rec and .bin, Hugging Face data sets, Parquet, CSV,
    numpy arrays, and folders of images. A folder whose only subfolder is a data set works too. Splits are the standard
    ones of metric learning, with disjoint training and test classes. No image is decoded.

    Args:
        path: a folder or a file.
        layout: the name of a layout; by default it is recognised.

    If the counts differ from the official ones, a warning is issued and noted in the table.
    """
    if path is None or path_of(path) == EMBEDDED:
        return glyphs()
    root = Path(path).expanduser()
    if not root.exists():
        raise MissingFileError(f"there is no {root}: give the path of a data set, or {EMBEDDED!r} for the embedded one")
    root = root.absolute()
    recognised, location = _recognised(root) if layout is None else _named(layout, root)
    table = recognised.read(location)
    if not len(table):
        raise LayoutError(f"{root} was read as {recognised.name}, but has no images")
    notes = differences(table)
    for difference in notes:
        warnings.warn(f"{root}: {difference}", DifferentCountsWarning, stacklevel=2)
    return dataclasses.replace(table, notes=(*table.notes, *notes))


def path_of(path: str | PathLike[str]) -> str:
    """The path for a configuration, in which "glyphs" always means the embedded data set: a file or folder of that name
    becomes an absolute path.
    """
    return str(Path(EMBEDDED).absolute()) if str(path) == EMBEDDED and Path(EMBEDDED).exists() else str(path)


def reopen(path: str, layout: str | None = None) -> Table:
    """Open the data set that a configuration or the id of an image names (see `path_of`)."""
    return open(None if path == EMBEDDED else path, layout)


def _recognised(root: Path) -> tuple[Layout, Path]:
    specific = LAYOUTS[:-1]  # the last layout, folders of images, accepts any folder
    candidates = [root]
    if root.is_dir():
        inner = [entry for entry in sorted(root.iterdir()) if entry.is_dir() and not entry.name.startswith(".")]
        candidates += inner if len(inner) == 1 else []
    for candidate in candidates:
        for layout in specific:
            if layout.recognise(candidate):
                return layout, candidate
    if root.is_dir():
        return LAYOUTS[-1], root
    raise LayoutError(
        f"{root} is not a known data set file (.csv, .parquet, .npz, .npy, .bin): give a folder of images with a "
        "subfolder for each class"
    )


def _named(name: str, root: Path) -> tuple[Layout, Path]:
    for layout in LAYOUTS:
        if layout.name == name:
            if not layout.recognise(root):
                raise LayoutError(f"{root} does not have the files of the layout {name}")
            return layout, root
    known = [layout.name for layout in LAYOUTS]
    raise InputError(f"there is no layout {name!r}: {suggestion(name, known)}")
