"""Parses the text files of data sets: lines, fields, numbers, JSON, and paths inside the data set."""

import json
import posixpath
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path, PureWindowsPath
from typing import Any

import numpy as np
import numpy.typing as npt

from nearfar.errors import NearfarError


class LayoutError(NearfarError, ValueError):
    """A data set does not match its layout."""


def inside(root: Path, name: str, base: str = "") -> str:
    """Convert a path that is relative to the folder `base` of `root` to one relative to `root`. Paths that lead out of
    the data set are refused, since lists are not trusted.
    """
    if name.startswith("/") or ".." in name or "\\" in name or "\0" in name or ":" in name or base:
        full = posixpath.normpath(posixpath.join(root.as_posix(), base, name.replace("\\", "/")))
        prefix = posixpath.normpath(root.as_posix()).rstrip("/") + "/"
        drive = PureWindowsPath(name).drive != "" and not name.startswith(prefix)
        if not full.startswith(prefix) or drive or "\0" in name:
            raise LayoutError(f"a list of {root} names {name!r}, which is outside of it")
        return full.removeprefix(prefix)
    return name


def lines(path: Path) -> Iterator[str]:
    """The stripped lines that are not blank."""
    with open(path, encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            if text := line.strip():
                yield text


def fields(path: Path, count: int, separator: str | None = None) -> Iterator[list[str]]:
    """The fields of each line, at least `count`."""
    for number, line in enumerate(lines(path), 1):
        values = [value.strip() for value in line.split(separator)]
        if len(values) < count:
            raise LayoutError(f"line {number} of {path} has {len(values)} fields instead of {count}: {line[:80]!r}")
        yield values


def whole_number(text: str, path: Path) -> int:
    """The integer in a field."""
    try:
        return int(text)
    except ValueError:
        raise LayoutError(f"{path} has {text[:80]!r} instead of a whole number") from None


def table_of_numbers(path: Path) -> npt.NDArray[np.int64]:
    """The integers of a file, (lines, fields)."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="loadtxt: input contained no data")
            return np.loadtxt(path, np.int64, ndmin=2)
    except ValueError as error:
        raise LayoutError(f"{path} must be a table of whole numbers: {error}") from error


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise LayoutError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(content, dict):
        raise LayoutError(f"{path} must hold a JSON object, not {str(content)[:80]!r}")
    return content


def first_existing(root: Path, names: Iterable[str]) -> str | None:
    """The first of these names that exists in `root`."""
    return next((name for name in names if root.joinpath(name).exists()), None)
