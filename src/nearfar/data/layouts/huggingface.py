"""Hugging Face image data sets on disk: Arrow files of `save_to_disk`, or Parquet files of the hub."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nearfar.data.columns import Encoded
from nearfar.data.default_splits import split_name
from nearfar.data.layouts.tabular import COLUMNS, arrow_images, find_column, read_arrow_table, table_of
from nearfar.data.parsing import LayoutError, inside, read_json
from nearfar.data.tables import SPLITS, Table
from nearfar.errors import MissingPackageError

SHARD = re.compile(r"(?P<split>[A-Za-z]+)(-\d{5}-of-\d{5}.*)?\.parquet$")


def recognise(root: Path) -> bool:
    """Whether there are the files of `save_to_disk`, or Parquet files named by split."""
    return root.is_dir() and (
        root.joinpath("dataset_dict.json").exists() or root.joinpath("state.json").exists() or bool(_shards(root))
    )


@dataclass(frozen=True)
class SavedSplit:
    """A split, or a data set without splits: its Arrow table, features, and memory-mapped files."""

    split: str | None
    table: Any
    features: Mapping[str, Any] = field(default_factory=dict)
    files: tuple[str, ...] = ()


def read(root: Path) -> Table:
    """The image column is the one with an Image feature, or is found by its name; class names come from a ClassLabel.
    Without splits, half of the classes are train and half test.
    """
    if root.joinpath("dataset_dict.json").exists():
        names = read_json(root / "dataset_dict.json").get("splits")
        if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
            raise LayoutError(f"{root / 'dataset_dict.json'} does not list the splits")
        return _joined(root, [_saved(root / inside(root, name), name) for name in names])
    if root.joinpath("state.json").exists():
        return _joined(root, [_saved(root, None)])
    return _joined(root, [SavedSplit(name, _read_shards(files)) for name, files in _shards(root).items()])


def _shards(root: Path) -> dict[str, list[Path]]:
    """Files such as data/train-00000-of-00002.parquet, by split."""
    shards: dict[str, list[Path]] = {}
    for folder in (root / "data", root):
        for path in sorted(folder.glob("*.parquet")):
            match = SHARD.match(path.name)
            split = split_name(match["split"]) if match else None
            if split is not None:
                shards.setdefault(split, []).append(path)
    return {split: shards[split] for split in SPLITS if split in shards}


def _read_shards(files: Sequence[Path]) -> Any:
    return _concatenated([read_arrow_table(path) for path in files], files[0].parent)


def _concatenated(tables: Sequence[Any], folder: Path) -> Any:
    import pyarrow as pa

    try:
        return pa.concat_tables(tables)
    except ValueError as error:
        raise LayoutError(f"the files of {folder} have different columns: {error}") from error


def _saved(folder: Path, split: str | None) -> SavedSplit:
    state = read_json(folder / "state.json")
    if state.get("_indices_data_files"):
        raise LayoutError(f"{folder} was saved with an index of selected rows: call flatten_indices() before saving it")
    try:
        files = tuple(str(folder / inside(folder, file["filename"])) for file in state["_data_files"])
    except (KeyError, TypeError, AttributeError) as error:
        raise LayoutError(f"{folder / 'state.json'} does not list the files of the data") from error
    if not files:
        raise LayoutError(f"{folder / 'state.json'} lists no files")
    info = folder / "dataset_info.json"
    features = read_json(info).get("features") if info.exists() else {}
    return SavedSplit(split, _mapped(files), features if isinstance(features, dict) else {}, files)


def _mapped(files: Sequence[str]) -> Any:
    """The table of memory-mapped Arrow files."""
    try:
        import pyarrow as pa
    except ImportError as missing:
        raise MissingPackageError(
            "reading Hugging Face data sets needs pyarrow: pip install 'nearfar[data]'"
        ) from missing
    tables = []
    for file in files:
        try:
            tables.append(pa.ipc.open_stream(pa.memory_map(file)).read_all())
        except (OSError, ValueError) as error:
            raise LayoutError(f"{file} is not a valid Arrow file: {error}") from error
    return _concatenated([table.replace_schema_metadata(None) for table in tables], Path(files[0]).parent)


class MappedImages(Sequence[bytes]):
    """The bytes of an image column in Arrow files. Pickling sends only the file names; the receiver maps them again."""

    def __init__(self, files: Sequence[str], column: str):
        self.files, self.column = tuple(files), column
        self._cells: Any = None

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_cells": None}

    def __len__(self) -> int:
        return len(self._open())

    def __getitem__(self, row: Any) -> Any:
        cell = self._open()[int(row)].as_py()
        return cell["bytes"] if isinstance(cell, dict) else cell

    def _open(self) -> Any:
        if self._cells is None:
            self._cells = _mapped(self.files).column(self.column)
        return self._cells


def _of_type(features: Mapping[str, Any], kind: str) -> list[str]:
    return [name for name, feature in features.items() if isinstance(feature, dict) and feature.get("_type") == kind]


def _joined(root: Path, parts: Sequence[SavedSplit]) -> Table:
    """The table of all splits."""
    features = parts[0].features or _hub_features(parts[0].table)
    table = _concatenated([part.table.replace_schema_metadata(None) for part in parts], root)
    names_only = dict.fromkeys(table.column_names)
    image = next(iter(_of_type(features, "Image")), "") or find_column(names_only, "image", root)
    class_labels = _of_type(features, "ClassLabel")
    labels = [name for name in COLUMNS["label"] if name in names_only]
    label = next((name for name in labels if name in class_labels), next(iter([*labels, *class_labels]), ""))
    label = label or find_column(names_only, "label", root)
    others = {"label": label} | {name: name for what in ("camera", "super_class") for name in COLUMNS[what]}
    columns = {name: table.column(source).to_pylist() for name, source in others.items() if source in names_only}
    class_names = (features.get(label) or {}).get("names") or () if label in class_labels else ()
    images = arrow_images(table.column(image), root)
    if isinstance(images, Encoded) and parts[0].files:
        images = Encoded(MappedImages([file for part in parts for file in part.files], image))
    return table_of(root.name, images, columns, root, _splits(root, parts), class_names)


def _hub_features(table: Any) -> Mapping[str, Any]:
    """The features in the metadata of the hub's Parquet files."""
    metadata = table.schema.metadata or {}
    try:
        features = json.loads(metadata.get(b"huggingface", b"{}"))["info"]["features"]
    except (ValueError, KeyError, TypeError):
        return {}
    return features if isinstance(features, dict) else {}


def _splits(root: Path, parts: Sequence[SavedSplit]) -> list[str] | None:
    if parts[0].split is None:
        return None
    splits: list[str] = []
    for part in parts:
        known = split_name(str(part.split))
        if known is None:
            raise LayoutError(f"{root} has a split {part.split!r}: it must be train, val, test, query or gallery")
        splits += [known] * part.table.num_rows
    return splits
