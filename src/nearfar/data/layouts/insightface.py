"""The face data sets of insightface: training images in RecordIO (train.rec, train.idx), verification sets in .bin."""

import struct
from pathlib import Path

import numpy as np

from nearfar.data.columns import Spans
from nearfar.data.lists import LayoutError, table_of_numbers
from nearfar.data.plainpickle import Place, read_plain_pickle
from nearfar.data.tables import SPLITS, UNLABELLED, Pairs, Table, number_classes

MAGIC = 0xCED7230A
LENGTH_MASK = (1 << 29) - 1  # the three bits above say whether a record is whole
HEADER = 24  # bytes: flag, label, two ids
PAIR_FOLDS = 10


def _record_files(path: Path) -> tuple[Path, Path] | None:
    record = path / "train.rec" if path.is_dir() else path
    index = record.with_suffix(".idx")
    return (record, index) if record.suffix == ".rec" and record.exists() and index.exists() else None


def recognise_records(path: Path) -> bool:
    """train.rec and train.idx in a folder, or a .rec with its .idx."""
    return _record_files(path) is not None


def read_records(path: Path) -> Table:
    """A record is a magic number, a length, and the data, padded to four bytes; the data is a header (flag, label,
    ids), `flag` more labels, and the encoded image. Record 0 of insightface's files says where the images end. All rows
    are for training.
    """
    files = _record_files(path)
    assert files is not None
    record, index = files
    table = table_of_numbers(index)
    if table.ndim != 2 or table.shape[1] != 2 or not len(table):
        raise LayoutError(f"{index} must have lines of a key and an offset")
    keys, offsets = table[np.argsort(table[:, 0], kind="stable")].T
    if record.stat().st_size < HEADER:
        raise LayoutError(f"{record} is empty")
    words = np.memmap(record, np.dtype("<u4"), mode="r", shape=(record.stat().st_size // 4,))
    if (offsets % 4 != 0).any() or offsets.min() < 0 or offsets.max() // 4 + 2 + HEADER // 4 > len(words):
        raise LayoutError(f"{index} gives offsets that are not in {record}")
    at = offsets // 4
    if (words[at] != MAGIC).any():
        raise LayoutError(f"{record} has no record at {int((words[at] != MAGIC).sum())} of the offsets of {index}")
    flag = words[at + 2].astype(np.int64)
    if keys[0] == 0 and flag[0] > 0:
        last = int(words[at[0] + 8 : at[0] + 9].view("<f4")[0])
        images = (keys >= 1) & (keys < last)
        at, flag = at[images], flag[images]
        if not len(at):
            raise LayoutError(f"record 0 of {record} says that there are no images")
    if (flag > 64).any():
        raise LayoutError(f"{record} has records of {int(flag.max())} labels: it is no set of labelled images")
    where = np.where(flag > 0, at + 8, at + 3)
    values = words[np.minimum(where, len(words) - 1)].view("<f4").astype(np.int64)
    packed = words[at + 1]
    offset = at * 4 + 8 + HEADER + 4 * flag
    length = (packed & LENGTH_MASK).astype(np.int64) - HEADER - 4 * flag
    held = []
    for row in np.flatnonzero(packed >> 29 != 0):
        held.append(_joined(words, int(at[row]))[HEADER + 4 * int(flag[row]) :])
        length[row] = -len(held)
    whole = length >= 0
    if ((offset + length)[whole] > record.stat().st_size).any():
        raise LayoutError(f"{record} ends within a record: it is incomplete")
    split_ids = np.full(len(at), SPLITS.index("train"), np.int8)
    labels, names = number_classes(values, split_ids)
    beside = sorted(file.name for file in record.parent.glob("*.bin"))
    notes = (f"verification sets beside it, to be opened each by its path: {', '.join(beside)}",) if beside else ()
    images_column = Spans([str(record)], np.zeros(len(at), np.int64), offset, length, held)
    return Table(record.parent.name, labels, names, split_ids, images_column, notes=notes)


def _joined(words: np.ndarray[tuple[int, ...], np.dtype[np.uint32]], at: int) -> bytes:
    """A record whose data has the magic number in it is cut there into parts: first (1), middle (2), last (3)."""
    parts = []
    while at + 1 < len(words) and words[at] == MAGIC:
        packed = int(words[at + 1])
        length = packed & LENGTH_MASK
        parts.append(words[at + 2 : at + 2 + (length + 3) // 4].tobytes()[:length])
        at += 2 + (length + 3) // 4
        if packed >> 29 == 3:
            return struct.pack("<I", MAGIC).join(parts)
    raise LayoutError("a record of several parts has no end")


def recognise_bin(path: Path) -> bool:
    """A .bin file."""
    return path.suffix == ".bin" and path.is_file()


def read_bin(path: Path) -> Table:
    """A verification set: a pickle of (encoded images, is the pair the same). Images 2i and 2i + 1 are pair i, in ten
    consecutive folds. The pickle is not executed: a parser that can only build lists of bytes, booleans and numbers
    reads it. Persons are not known.
    """
    content = read_plain_pickle(path)
    if not isinstance(content, (tuple, list)) or len(content) != 2:
        raise LayoutError(f"{path} must hold two lists: images, and whether each pair is the same")
    images, same = content
    if not isinstance(images, list) or not all(isinstance(image, Place) for image in images):
        raise LayoutError(f"the first list of {path} must hold encoded images")
    if not isinstance(same, list) or not all(isinstance(answer, (bool, int)) for answer in same):
        raise LayoutError(f"the second list of {path} must hold booleans")
    if len(images) != 2 * len(same):
        raise LayoutError(f"{path} has {len(images)} images for {len(same)} pairs")
    n = len(same)
    places = np.array(images, np.int64).reshape(-1, 2)
    pair = np.arange(n)
    return Table(
        path.stem,
        np.full(2 * n, UNLABELLED, np.int64),
        (),
        np.full(2 * n, SPLITS.index("test"), np.int8),
        Spans([str(path)], np.zeros(2 * n, np.int64), places[:, 0], places[:, 1]),
        pairs={path.stem: Pairs(2 * pair, 2 * pair + 1, np.array(same, bool), pair * PAIR_FOLDS // max(n, 1))},
    )
