"""`open`: from a path to a table."""

import dataclasses
import warnings
from os import PathLike
from pathlib import Path

from nearfar.data.embedded import glyphs
from nearfar.data.layouts import LAYOUTS, Layout
from nearfar.data.lists import LayoutError
from nearfar.data.official import differences
from nearfar.data.tables import Table
from nearfar.errors import InputError, MissingFileError
from nearfar.foundation.suggestions import suggestion

EMBEDDED = "glyphs"


class DifferentCountsWarning(UserWarning):
    """A copy of a well-known data set does not have the official number of images or classes."""


def open(path: str | PathLike[str] | None = None, layout: str | None = None) -> Table:  # noqa: A001
    """The data set at a path, whatever its layout. Without a path it is the embedded one, and so it is by the name
    "glyphs", unless there is a file or folder of that name.

    Recognised are CUB-200-2011, Cars196, Stanford Online Products, In-Shop, Market-1501, MSMT17, LFW, YTF, CFP, AgeDB,
    lists of pairs, IJB-B and IJB-C, MegaFace, insightface's .rec and .bin, Hugging Face data sets, Parquet, CSV, numpy
    arrays, and folders of images; a folder that holds nothing but such a folder will do. Splits are the standard ones
    of metric learning, where test classes are not trained on. No image is decoded here.

    Args:
        path: of a folder or a file.
        layout: the name of a layout, instead of recognising it.

    Counts that differ from the official ones are a warning, and a note of the table.
    """
    if path is None or path_of(path) == EMBEDDED:
        return glyphs()
    root = Path(path).expanduser()
    if not root.exists():
        raise MissingFileError(f"there is no {root}: give the path of a data set, or {EMBEDDED!r}, the embedded one")
    root = root.absolute()
    chosen = _recognised(root) if layout is None else _named(layout, root)
    table = chosen[0].read(chosen[1])
    if not len(table):
        raise LayoutError(f"{root} was read as {chosen[0].name}, but has no images")
    found = differences(table)
    for difference in found:
        warnings.warn(f"{root}: {difference}", DifferentCountsWarning, stacklevel=2)
    return dataclasses.replace(table, notes=(*table.notes, *found))


def path_of(path: str | PathLike[str]) -> str:
    """How a configuration names the data that someone asks for: there, "glyphs" is the embedded data set and nothing
    else, so that a folder of that name is told by its whole path.
    """
    return str(Path(EMBEDDED).absolute()) if str(path) == EMBEDDED and Path(EMBEDDED).exists() else str(path)


def reopen(path: str, layout: str | None = None) -> Table:
    """The data that a configuration or the id of an image names (`path_of`), in any folder."""
    return open(None if path == EMBEDDED else path, layout)


def _recognised(root: Path) -> tuple[Layout, Path]:
    specific = LAYOUTS[:-1]  # the last, folders of images, would take any folder
    places = [root]
    if root.is_dir():
        inner = [entry for entry in sorted(root.iterdir()) if entry.is_dir() and not entry.name.startswith(".")]
        places += inner if len(inner) == 1 else []
    for place in places:
        for layout in specific:
            if layout.recognise(place):
                return layout, place
    if root.is_dir():
        return LAYOUTS[-1], root
    raise LayoutError(
        f"{root} is a file, and no data set that is known here (.csv, .parquet, .npz, .npy, .bin): give a folder of "
        "images, with a folder for each class"
    )


def _named(name: str, root: Path) -> tuple[Layout, Path]:
    for layout in LAYOUTS:
        if layout.name == name:
            if not layout.recognise(root):
                raise LayoutError(f"{root} does not have the files of the layout {name}")
            return layout, root
    known = [layout.name for layout in LAYOUTS]
    raise InputError(f"there is no layout {name!r}: {suggestion(name, known)}")
