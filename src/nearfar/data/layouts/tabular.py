"""CSV files with paths, and Parquet files with paths or encoded images."""

import csv
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from nearfar.data.columns import Encoded, Files, Images
from nearfar.data.default_splits import halves_note, shared_classes, split_name, zero_shot
from nearfar.data.parsing import LayoutError, inside
from nearfar.data.tables import Table, number_classes, split_column
from nearfar.errors import MissingPackageError

# Accepted names of each column; the first that exists is used.
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
    """Whether the file name has the extension."""
    return path.suffix.lower() in (".csv", ".tsv")


def recognise_parquet(path: Path) -> bool:
    """Whether the file name has the extension."""
    return path.suffix.lower() in (".parquet", ".pq")


def read_csv(path: Path) -> Table:
    """A header, then a line per image with a path (relative to the file's folder), a label, and optionally a split, a
    camera and a super-class. `COLUMNS` has the accepted names, in any case. Fields are separated by commas, semicolons
    or tabs, whichever the header has most of. Columns is_query and is_gallery (0 and 1, or false and true) divide the
    rows that are not train.
    """
    header, rows = _read_fields(path)
    columns = {name: [row[i] for row in rows] for i, name in enumerate(header)}
    if len(columns) < len(header):
        raise LayoutError(f"{path} has two columns of the same name: {', '.join(header)}")
    image = find_column(columns, "image", path)
    names = [inside(path.parent, name) for name in columns[image]]
    return table_of(path.stem, Files(path.parent, names), columns, path)


def _read_fields(path: Path) -> tuple[list[str], list[list[str]]]:
    """The names of the columns, and the lines that are not blank."""
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
                    raise LayoutError(f"line {line} of {path} has {len(row)} fields, but the header has {len(header)}")
                rows.append(row)
    except UnicodeDecodeError as error:
        raise LayoutError(f"{path} is not UTF-8 text (byte {error.start}): save it as UTF-8") from error
    except csv.Error as error:
        raise LayoutError(f"{path} cannot be read as a table: {error}") from error
    return header, rows


def read_parquet(path: Path) -> Table:
    """The columns of `read_csv`; images may also be encoded bytes, or Hugging Face's records of bytes and path. Encoded
    images are held in memory.
    """
    return _from_arrow(read_arrow_table(path), path.stem, path)


def read_arrow_table(path: Path) -> Any:
    """The table of a Parquet file."""
    try:
        from pyarrow import parquet
    except ImportError as missing:
        raise MissingPackageError("reading Parquet files needs pyarrow: pip install 'nearfar[data]'") from missing
    try:
        return parquet.read_table(path)
    except (OSError, ValueError) as error:
        raise LayoutError(f"{path} is not a valid Parquet file: {error}") from error


def _from_arrow(table: Any, name: str, path: Path) -> Table:
    image = find_column(dict.fromkeys(table.column_names), "image", path)
    images = arrow_images(table.column(image), path.parent)
    columns = {column: table.column(column).to_pylist() for column in table.column_names if column != image}
    return table_of(name, images, columns, path)


def arrow_images(column: Any, root: Path) -> Images:
    """The images of a column of paths, bytes, or records of both."""
    import pyarrow as pa

    if pa.types.is_struct(column.type) and {"bytes", "path"} <= {field.name for field in column.type}:
        data = pa.chunked_array([chunk.field("bytes") for chunk in column.chunks], column.type.field("bytes").type)
        if data.null_count == 0:
            return Encoded(ArrowBytes(data))
        if data.null_count < len(data):
            raise LayoutError("some images of the column are bytes and some are paths: use one kind for all")
        paths = [path for chunk in column.chunks for path in chunk.field("path").to_pylist()]
        return Files(root, [inside(root, path or "") for path in paths])
    if pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type):
        return Encoded(ArrowBytes(column))
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        return Files(root, [inside(root, name or "") for name in column.to_pylist()])
    raise LayoutError(f"images cannot be read from a column of {column.type}: it must have paths or encoded images")


class ArrowBytes(Sequence[bytes]):
    """The cells of an Arrow column, copied on access."""

    def __init__(self, column: Any):
        self._column = column

    def __len__(self) -> int:
        return len(self._column)

    def __getitem__(self, row: Any) -> Any:
        value = self._column[int(row)].as_py()
        return b"" if value is None else value


def find_column(columns: Mapping[str, Any], what: str, path: Path) -> str:
    """The name of a required column."""
    name = next((name for name in COLUMNS[what] if name in columns), None)
    if name is None:
        raise LayoutError(
            f"{path} has the columns {', '.join(columns)}, but none for the {what} "
            f"(name it {', '.join(COLUMNS[what][:4])}, ...)"
        )
    return name


def table_of(
    name: str,
    images: Images,
    columns: Mapping[str, Sequence[Any]],
    path: Path,
    split: Sequence[str] | None = None,
    class_names: Sequence[str] = (),
) -> Table:
    """A table of images and the columns of a file. `split` has the split of each row; `class_names` has the names of
    numeric labels.
    """
    label = find_column(columns, "label", path)
    values = [str(value) for value in columns[label]]
    splits = split if split is not None else _read_splits(columns, path)
    split_ids = zero_shot(values, known=NO_LABEL) if splits is None else split_column(splits)
    labels, label_names = number_classes(values, split_ids, unlabelled=NO_LABEL)
    if class_names:
        try:
            label_names = tuple(class_names[int(number)] for number in label_names)
        except (ValueError, IndexError) as error:
            raise LayoutError(f"{path} has a label outside of its {len(class_names)} classes: {error}") from error
    more: dict[str, npt.NDArray[np.int64]] = {}
    names: dict[str, tuple[str, ...]] = {}
    for what in ("camera", "super_class"):
        column = next((known for known in COLUMNS[what] if known in columns and known != label), None)
        if column is not None:
            texts, numbers = np.unique([str(value) for value in columns[column]], return_inverse=True)
            more[what], names[what] = numbers, tuple(texts.tolist())
    table = Table(name, labels, label_names, split_ids, images, more, names)
    notes = [halves_note(table.num_classes)] if splits is None else shared_classes(table)
    return dataclasses.replace(table, notes=tuple(notes))


def _read_splits(columns: Mapping[str, Sequence[Any]], path: Path) -> list[str] | None:
    column = next((name for name in COLUMNS["split"] if name in columns), None)
    if column is None:
        return None
    splits = []
    flags = ("is_query" in columns, "is_gallery" in columns)
    for row, value in enumerate(columns[column]):
        split = split_name(str(value))
        if split is None:
            raise LayoutError(f"{path} has the split {value!r}: it must be train, val, test, query or gallery")
        if all(flags) and split != "train":
            query, gallery = (_is_true(columns[name][row]) for name in ("is_query", "is_gallery"))
            split = "query" if query and not gallery else "gallery" if gallery and not query else split
        splits.append(split)
    return splits


def _is_true(value: Any) -> bool:
    return str(value).strip().lower() in ("1", "true", "1.0", "yes")
