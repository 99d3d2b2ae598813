"""Images to be indexed: a table, and an id for each of its rows; and back from an id to its picture."""

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

import nearfar.data
from nearfar.data import Files, Images, Source, Table, TooManyBrokenImagesError, identity
from nearfar.data.opening import path_of, reopen
from nearfar.data.survey import survey
from nearfar.data.tables import UNLABELLED
from nearfar.errors import MissingFileError, NearfarError
from nearfar.imaging import BrokenImageError
from nearfar.imaging.listing import EXTENSIONS
from nearfar.retrieval.index import RetrievalError
from nearfar.retrieval.texts import Texts
from nearfar.training.config import DataConfig
from nearfar.training.progress import Display
from nearfar.training.reading import readable

ROW = "#"  # between a data set and a row, in the id of an image that is not a file


@dataclass(frozen=True)
class Gallery:
    """Images with their ids: the paths of their files, or DATA#ROW; and, by their ids, those that were left out since
    they cannot be read, and why.
    """

    table: Table
    ids: Texts
    left_out: Mapping[str, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.table)

    @property
    def images(self) -> Images:
        """The column of pictures."""
        assert self.table.images is not None
        return self.table.images

    def label(self, row: int) -> str:
        """The name of a row's class; "" if it has none."""
        return self.table.label_name(row)

    def state(self, row: int) -> str:
        """What tells the image from an earlier state of itself; "" if it is not there."""
        try:
            whole = identity(self.images[row])
        except OSError:
            return ""
        return hashlib.blake2b(whole.encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()

    def select(self, rows: Sequence[int]) -> "Gallery":
        """Some rows."""
        return Gallery(self.table.select(np.asarray(rows, np.int64)), Texts.of(self.ids.take(rows)))


def open_gallery(
    data: Sequence[str | os.PathLike[str]], layout: str | None = None, split: str | None = None
) -> Gallery:
    """The images of a data set; or image files, which have no labels.

    Args:
        data: what `nearfar.data.open` opens, or paths of image files.
        layout: of a data set that is not to be recognised.
        split: only its rows.
    """
    if are_files(data):
        for path in data:
            if not Path(path).is_file():
                raise MissingFileError(f"there is no {path}")
        names = list(dict.fromkeys(str(Path(path).absolute()) for path in data))
        return Gallery(_of_files(names), Texts.of(names))
    if len(data) != 1:
        raise RetrievalError("give one data set, or image files: several data sets are indexed one after the other")
    return gallery_of(reopen(str(data[0]), layout), data[0], split)


def are_files(data: Sequence[str | os.PathLike[str]]) -> bool:
    """Whether these are image files, and not a data set."""
    paths = [Path(path) for path in data]
    return bool(paths) and all(path.suffix.lower() in EXTENSIONS and not path.is_dir() for path in paths)


def _of_files(names: Sequence[str]) -> Table:
    none = np.full(len(names), UNLABELLED, np.int64)
    test = np.full(len(names), nearfar.data.SPLITS.index("test"), np.int8)
    return Table("images", none, (), test, Files("/", names))


def readable_gallery(
    data: Sequence[str | os.PathLike[str]],
    layout: str | None = None,
    split: str | None = None,
    *,
    max_broken: float = DataConfig.max_broken,
    display: Display | None = None,
) -> Gallery:
    """The same without what cannot be read, which is in `left_out`.

    Args:
        max_broken: the share of a data set that may be unreadable; more are an error. Of files that are named, as many
            may be as there are, but one.
        display: is told what is left out.
    """
    whole = open_gallery(data, layout)
    # Rows keep their numbers, which are in their ids, while others are left out and classes are halved anew.
    numbered = replace(whole.table, columns={**whole.table.columns, "row": np.arange(len(whole))})
    place = None if are_files(data) else os.fspath(data[0])
    rest, found = readable(numbered, 1.0 if place is None else max_broken, display, place)
    if split is not None:
        rest = rest.split(split)
    rows = rest.columns["row"].tolist()
    table = replace(rest, columns={name: column for name, column in rest.columns.items() if name != "row"})
    broken = {whole.ids[row]: reason for row, reason in sorted(found.broken.items())}
    return Gallery(table, Texts.of(whole.ids.take(rows)), broken)


def gallery_for(
    own: DataConfig,
    data: Sequence[str | os.PathLike[str]],
    split: str | None = None,
    *,
    max_broken: float | None = None,
    display: Display | None = None,
) -> Gallery:
    """What is given, or the data of a run where nothing is, without what cannot be read."""
    allowed = own.max_broken if max_broken is None else max_broken
    layout = None if data else own.layout
    named = [path_of(path) for path in data] or [own.path]
    return readable_gallery(named, layout, split, max_broken=allowed, display=display)


def readable_files(names: Sequence[str | os.PathLike[str]]) -> tuple[list[str], dict[str, str]]:
    """Those pictures that can be read, by their absolute paths, and why the others cannot. Where none can, that is an
    error.
    """
    paths = [str(Path(name).absolute()) for name in names]
    broken = {paths[row]: reason for row, reason in sorted(survey(_of_files(paths)).broken.items())}
    good = [path for path in paths if path not in broken]
    if not good and len(broken) == 1:
        raise BrokenImageError(*next(iter(broken.items())))
    if not good:
        listed = "; ".join(f"{path}: {reason}" for path, reason in broken.items())
        raise TooManyBrokenImagesError(f"none of the {len(paths)} pictures can be read: {listed}")
    return good, broken


def gallery_of(table: Table, data: str | os.PathLike[str], split: str | None = None) -> Gallery:
    """A table's rows; `data` is where the table comes from."""
    if table.images is None:
        raise RetrievalError(f"{table.name} has no images, only features: there is nothing to embed")
    if isinstance(table.images, Files):
        names = (str(table.images[row]) for row in range(len(table)))
    else:
        place = str(Path(data).absolute()) if Path(data).exists() else os.fspath(data)
        names = (f"{place}{ROW}{row}" for row in range(len(table)))
    whole = Gallery(table, Texts.of(names))
    if split is None:
        return whole
    table.split(split)  # an error that says which there are
    rows = np.flatnonzero(table.split_ids == nearfar.data.SPLITS.index(split))
    return whole.select(rows.tolist())


class Pictures:
    """The pictures of ids, wherever they are: files are there at once, other data sets are opened when first asked."""

    def __init__(self) -> None:
        self._tables: dict[str, Table | None] = {}

    def source(self, image: str) -> Source | None:
        """What `nearfar.data.load_image` takes; None if there is no such picture any more."""
        if Path(image).is_file():
            return image
        data, mark, row = image.rpartition(ROW)
        if not mark or not row.isdigit():
            return None
        if data not in self._tables:
            try:
                self._tables[data] = reopen(data)
            except (OSError, NearfarError):
                self._tables[data] = None
        table = self._tables[data]
        if table is None or table.images is None or int(row) >= len(table):
            return None
        return table.images[int(row)]
