"""Reading the text files of data sets: lines, and paths that stay where they belong."""

import json
import posixpath
from collections.abc import Iterable, Iterator
from pathlib import Path, PureWindowsPath
from typing import Any

import numpy as np
import numpy.typing as npt

from nearfar.errors import NearfarError


class LayoutError(NearfarError, ValueError):
    """A data set that is not what its layout says."""


def inside(root: Path, name: str, base: str = "") -> str:
    """A path that a list gives, relative to the folder `base` below `root`, as a path relative to `root`. Lists come
    from others: what leads out of the data set is refused.
    """
    if name.startswith("/") or ".." in name or "\\" in name or "\0" in name or ":" in name or base:
        whole = posixpath.normpath(posixpath.join(root.as_posix(), base, name.replace("\\", "/")))
        start = posixpath.normpath(root.as_posix()).rstrip("/") + "/"
        drive = PureWindowsPath(name).drive != "" and not name.startswith(start)
        if not whole.startswith(start) or drive or "\0" in name:
            raise LayoutError(f"a list of {root} names {name!r}, which is outside of it")
        return whole.removeprefix(start)
    return name


def lines(path: Path) -> Iterator[str]:
    """The lines that are not blank, without their ends."""
    with open(path, encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            if text := line.strip():
                yield text


def fields(path: Path, count: int, separator: str | None = None) -> Iterator[list[str]]:
    """Lines of at least `count` fields."""
    for number, line in enumerate(lines(path), 1):
        parts = [part.strip() for part in line.split(separator)]
        if len(parts) < count:
            raise LayoutError(f"line {number} of {path} has {len(parts)} fields, not {count}: {line[:80]!r}")
        yield parts


def whole_number(word: str, path: Path) -> int:
    """A number that a list gives."""
    try:
        return int(word)
    except ValueError:
        raise LayoutError(f"{path} has {word[:80]!r} where a whole number should be") from None


def table_of_numbers(path: Path) -> npt.NDArray[np.int64]:
    """(lines, fields) of whole numbers."""
    try:
        return np.loadtxt(path, np.int64, ndmin=2)
    except ValueError as error:
        raise LayoutError(f"{path} is no table of whole numbers: {error}") from error


def read_json(path: Path) -> dict[str, Any]:
    """What a file of names and values holds."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise LayoutError(f"{path} is damaged or no JSON: {error}") from error
    if not isinstance(found, dict):
        raise LayoutError(f"{path} must hold names and values, not {str(found)[:80]!r}")
    return found


def first_existing(root: Path, names: Iterable[str]) -> str | None:
    """The first of these that is there."""
    return next((name for name in names if root.joinpath(name).exists()), None)
