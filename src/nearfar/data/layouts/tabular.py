"""Tables of images: CSV with paths, Parquet with paths or encoded images."""

import csv
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from nearfar.data.columns import Encoded, Files, Images
from nearfar.data.lists import LayoutError, inside
from nearfar.data.splits import halves_note, shared_classes, split_name, zero_shot
from nearfar.data.tables import Table, number_classes, split_column
from nearfar.errors import MissingPackageError

# What each column may be called; the first name found counts.
COLUMNS: Mapping[str, tuple[str, ...]] = {
    "image": ("image", "path", "image_path", "file_name", "filename", "file", "img", "image_name", "bytes"),
    "label": ("label", "class", "class_name", "class_id", "identity", "person_id", "pid", "product_id", "item_id",
              "label_group", "target", "fine_label", "labels", "category"),
    "split": ("split", "subset", "partition", "evaluation_status"),
    "camera": ("camera", "camera_id", "camid", "cam"),
    "super_class": ("super_class", "superclass", "super_class_id", "coarse_label"),
}  # fmt: skip
NO_LABEL = ("", "-1", "None", "nan")


def recognise_csv(path: Path) -> bool:
    """By its ending."""
    return path.suffix.lower() in (".csv", ".tsv")


def recognise_parquet(path: Path) -> bool:
    """By its ending."""
    return path.suffix.lower() in (".parquet", ".pq")


def read_csv(path: Path) -> Table:
    """A header, then a line per image: a path (relative to the file's folder), a label, and where known a split, a
    camera and a super-class (`COLUMNS` has the names that are understood, in small or capital letters). Between the
    fields are commas, semicolons or tabs, whichever the header has most of. Columns is_query and is_gallery, of 0 and 1
    or false and true, divide what is not training.
    """
    header, rows = _read_fields(path)
    columns = {name: [row[i] for row in rows] for i, name in enumerate(header)}
    if len(columns) < len(header):
        raise LayoutError(f"{path} has two columns of the same name: {', '.join(header)}")
    image = find_column(columns, "image", path)
    names = [inside(path.parent, name) for name in columns[image]]
    return table_of(path.stem, Files(path.parent, names), columns, path)


def _read_fields(path: Path) -> tuple[list[str], list[list[str]]]:
    """The names of the columns, and the lines that are not blank, all of them as long."""
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            first = file.readline()
            file.seek(0)
            reader = csv.reader(file, delimiter=max(",;\t", key=first.count))
            header = [name.strip().lower() for name in next(reader, [])]
            rows = []
            for row in filter(None, reader):
                if len(row) != len(header):
                    line = reader.line_num
                    raise LayoutError(f"line {line} of {path} has {len(row)} fields, the header {len(header)}")
                rows.append(row)
    except UnicodeDecodeError as error:
        raise LayoutError(f"{path} is not UTF-8 text (byte {error.start}): save it as UTF-8") from error
    except csv.Error as error:
        raise LayoutError(f"{path} cannot be read as a table: {error}") from error
    return header, rows


def read_parquet(path: Path) -> Table:
    """As `read_csv`; images may also be encoded bytes, or records of bytes and path as Hugging Face writes them.
    Encoded images are held in memory.
    """
    return _from_arrow(read_arrow_table(path), path.stem, path)


def read_arrow_table(path: Path) -> Any:
    """The whole file, by pyarrow."""
    try:
        from pyarrow import parquet
    except ImportError as missing:
        raise MissingPackageError("Parquet files are read by pyarrow: pip install 'nearfar[data]'") from missing
    try:
        return parquet.read_table(path)
    except (OSError, ValueError) as error:
        raise LayoutError(f"{path} is damaged or no Parquet file: {error}") from error


def _from_arrow(table: Any, name: str, path: Path) -> Table:
    image = find_column(dict.fromkeys(table.column_names), "image", path)
    images = arrow_images(table.column(image), path.parent)
    columns = {column: table.column(column).to_pylist() for column in table.column_names if column != image}
    return table_of(name, images, columns, path)


def arrow_images(column: Any, root: Path) -> Images:
    """A column of paths, of bytes, or of both."""
    import pyarrow as pa

    if pa.types.is_struct(column.type) and {"bytes", "path"} <= {field.name for field in column.type}:
        data = pa.chunked_array([chunk.field("bytes") for chunk in column.chunks], column.type.field("bytes").type)
        if data.null_count == 0:
            return Encoded(ArrowBytes(data))
        if data.null_count < len(data):
            raise LayoutError("some images of the column are bytes and some are paths: they must be of one kind")
        paths = [path for chunk in column.chunks for path in chunk.field("path").to_pylist()]
        return Files(root, [inside(root, path or "") for path in paths])
    if pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type):
        return Encoded(ArrowBytes(column))
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        return Files(root, [inside(root, name or "") for name in column.to_pylist()])
    raise LayoutError(f"a column of {column.type} holds no images: it must be paths or encoded images")


class ArrowBytes(Sequence[bytes]):
    """The cells of an Arrow column, each copied when it is asked for."""

    def __init__(self, column: Any):
        self._column = column

    def __len__(self) -> int:
        return len(self._column)

    def __getitem__(self, row: Any) -> Any:
        value = self._column[int(row)].as_py()
        return b"" if value is None else value


def find_column(columns: Mapping[str, Any], what: str, path: Path) -> str:
    """The name of a column that must be there."""
    found = next((name for name in COLUMNS[what] if name in columns), None)
    if found is None:
        raise LayoutError(
            f"{path} has the columns {', '.join(columns)}: none holds the {what} "
            f"(it should be called {', '.join(COLUMNS[what][:4])}, ...)"
        )
    return found


def table_of(
    name: str,
    images: Images,
    columns: Mapping[str, Sequence[Any]],
    path: Path,
    split: Sequence[str] | None = None,
    class_names: Sequence[str] = (),
) -> Table:
    """A table of images with the columns that a file gives. `split`, if given, is the split of each row; `class_names`
    are the names of labels that are numbers.
    """
    label = find_column(columns, "label", path)
    values = [str(value) for value in columns[label]]
    given = split if split is not None else _given_split(columns, path)
    split_ids = zero_shot(values, known=NO_LABEL) if given is None else split_column(given)
    labels, label_names = number_classes(values, split_ids, unlabelled=NO_LABEL)
    if class_names:
        try:
            label_names = tuple(class_names[int(number)] for number in label_names)
        except (ValueError, IndexError) as error:
            raise LayoutError(f"{path} has a label that is none of its {len(class_names)} classes: {error}") from error
    more: dict[str, npt.NDArray[np.int64]] = {}
    names: dict[str, tuple[str, ...]] = {}
    for what in ("camera", "super_class"):
        found = next((known for known in COLUMNS[what] if known in columns and known != label), None)
        if found is not None:
            texts, numbers = np.unique([str(value) for value in columns[found]], return_inverse=True)
            more[what], names[what] = numbers, tuple(texts.tolist())
    table = Table(name, labels, label_names, split_ids, images, more, names)
    notes = [halves_note(table.num_classes)] if given is None else shared_classes(table)
    return dataclasses.replace(table, notes=tuple(notes))


def _given_split(columns: Mapping[str, Sequence[Any]], path: Path) -> list[str] | None:
    found = next((name for name in COLUMNS["split"] if name in columns), None)
    if found is None:
        return None
    splits = []
    flags = ("is_query" in columns, "is_gallery" in columns)
    for row, value in enumerate(columns[found]):
        split = split_name(str(value))
        if split is None:
            raise LayoutError(f"{path} has the split {value!r}: it should be train, val, test, query or gallery")
        if all(flags) and split != "train":
            query, gallery = (_is_true(columns[name][row]) for name in ("is_query", "is_gallery"))
            split = "query" if query and not gallery else "gallery" if gallery and not query else split
        splits.append(split)
    return splits


def _is_true(value: Any) -> bool:
    return str(value).strip().lower() in ("1", "true", "1.0", "yes")
