"""`Gallery`: the images of a table with an id for each row; `Pictures`: from ids to images."""

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

ROW = "#"  # separates the data set from the row in the id of an image that is not a file


@dataclass(frozen=True)
class Gallery:
    """Images with their ids, which are the paths of their files, or DATA#ROW. `left_out` has the broken images, by id,
    with the reason.
    """

    table: Table
    ids: Texts
    left_out: Mapping[str, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.table)

    @property
    def images(self) -> Images:
        """The column of images."""
        assert self.table.images is not None
        return self.table.images

    def label(self, row: int) -> str:
        """The name of a row's class; "" if it has none."""
        return self.table.label_name(row)

    def state(self, row: int) -> str:
        """A string that changes when the file of the image does; "" if it does not exist."""
        try:
            state = identity(self.images[row])
        except OSError:
            return ""
        return hashlib.blake2b(state.encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()

    def select(self, rows: Sequence[int]) -> "Gallery":
        """A gallery of some rows."""
        return Gallery(self.table.select(np.asarray(rows, np.int64)), Texts.of(self.ids.take(rows)))


def open_gallery(
    data: Sequence[str | os.PathLike[str]], layout: str | None = None, split: str | None = None
) -> Gallery:
    """Open the images of a data set, or image files, which have no labels.

    Args:
        data: a data set for `nearfar.data.open`, or paths of image files.
        layout: the layout of the data set; by default it is recognised.
        split: only the rows of this split.
    """
    if are_files(data):
        for path in data:
            if not Path(path).is_file():
                raise MissingFileError(f"there is no {path}")
        names = list(dict.fromkeys(str(Path(path).absolute()) for path in data))
        return Gallery(_of_files(names), Texts.of(names))
    if len(data) != 1:
        raise RetrievalError("give one data set, or image files: index several data sets one after the other")
    return gallery_of(reopen(str(data[0]), layout), data[0], split)


def are_files(data: Sequence[str | os.PathLike[str]]) -> bool:
    """Whether the paths are image files, not a data set."""
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
    """As `open_gallery`, without broken images, which are in `left_out`.

    Args:
        data, layout, split: as for `open_gallery`.
        max_broken: the largest tolerated fraction of broken images of a data set. Of image files, one must be readable.
        display: shows the broken images.
    """
    whole = open_gallery(data, layout)
    # Ids have the row numbers of the whole table, while broken rows are left out and classes are split again.
    numbered = replace(whole.table, columns={**whole.table.columns, "row": np.arange(len(whole))})
    path = None if are_files(data) else os.fspath(data[0])
    rest, result = readable(numbered, 1.0 if path is None else max_broken, display, path)
    if split is not None:
        rest = rest.split(split)
    rows = rest.columns["row"].tolist()
    table = replace(rest, columns={name: column for name, column in rest.columns.items() if name != "row"})
    broken = {whole.ids[row]: reason for row, reason in sorted(result.broken.items())}
    return Gallery(table, Texts.of(whole.ids.take(rows)), broken)


def gallery_for(
    run_data: DataConfig,
    data: Sequence[str | os.PathLike[str]],
    split: str | None = None,
    *,
    max_broken: float | None = None,
    display: Display | None = None,
) -> Gallery:
    """A readable gallery of `data`, or of the data of a run if `data` is empty."""
    allowed = run_data.max_broken if max_broken is None else max_broken
    layout = None if data else run_data.layout
    paths = [path_of(path) for path in data] or [run_data.path]
    return readable_gallery(paths, layout, split, max_broken=allowed, display=display)


def readable_files(names: Sequence[str | os.PathLike[str]]) -> tuple[list[str], dict[str, str]]:
    """The absolute paths of the readable images, and the reasons why the others are broken. Raises an error if none is
    readable.
    """
    paths = [str(Path(name).absolute()) for name in names]
    broken = {paths[row]: reason for row, reason in sorted(survey(_of_files(paths)).broken.items())}
    good = [path for path in paths if path not in broken]
    if not good and len(broken) == 1:
        raise BrokenImageError(*next(iter(broken.items())))
    if not good:
        listed = "; ".join(f"{path}: {reason}" for path, reason in broken.items())
        raise TooManyBrokenImagesError(f"none of the {len(paths)} images can be read: {listed}")
    return good, broken


def gallery_of(table: Table, data: str | os.PathLike[str], split: str | None = None) -> Gallery:
    """The gallery of a table, which was opened from `data`."""
    if table.images is None:
        raise RetrievalError(f"{table.name} has no images to embed, only features")
    if isinstance(table.images, Files):
        names = (str(table.images[row]) for row in range(len(table)))
    else:
        path = str(Path(data).absolute()) if Path(data).exists() else os.fspath(data)
        names = (f"{path}{ROW}{row}" for row in range(len(table)))
    whole = Gallery(table, Texts.of(names))
    if split is None:
        return whole
    table.split(split)  # raises an error for an unknown split
    rows = np.flatnonzero(table.split_ids == nearfar.data.SPLITS.index(split))
    return whole.select(rows.tolist())


class Pictures:
    """The images of ids: files, or rows of data sets, which are opened on first use."""

    def __init__(self) -> None:
        self._tables: dict[str, Table | None] = {}

    def source(self, image: str) -> Source | None:
        """The source for `nearfar.data.load_image`; None if the image no longer exists."""
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
