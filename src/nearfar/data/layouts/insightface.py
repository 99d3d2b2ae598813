"""The face data sets of insightface: training images in RecordIO (train.rec, train.idx), verification sets in .bin."""

import struct
from pathlib import Path

import numpy as np

from nearfar.data.columns import Spans
from nearfar.data.parsing import LayoutError, table_of_numbers
from nearfar.data.plain_pickle import ByteRange, read_plain_pickle
from nearfar.data.tables import SPLITS, UNLABELLED, Pairs, Table, number_classes

MAGIC = 0xCED7230A
LENGTH_MASK = (1 << 29) - 1  # the upper three bits are the part of a divided record
HEADER = 24  # bytes: flag, label, two ids
PAIR_FOLDS = 10


def _record_files(path: Path) -> tuple[Path, Path] | None:
    record = path / "train.rec" if path.is_dir() else path
    index = record.with_suffix(".idx")
    return (record, index) if record.suffix == ".rec" and record.exists() and index.exists() else None


def recognise_records(path: Path) -> bool:
    """Whether there are train.rec and train.idx in a folder, or a .rec with its .idx."""
    return _record_files(path) is not None


def read_records(path: Path) -> Table:
    """A record has a magic number, a length, and the data, padded to four bytes. The data are a header (flag, label,
    ids), `flag` more labels, and the encoded image. Record 0 of insightface's files has the number of the last image.
    All rows are train.
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
        raise LayoutError(f"{index} has offsets outside of {record}")
    start = offsets // 4
    if (words[start] != MAGIC).any():
        raise LayoutError(f"{record} has no record at {int((words[start] != MAGIC).sum())} of the offsets of {index}")
    flag = words[start + 2].astype(np.int64)
    if keys[0] == 0 and flag[0] > 0:
        last = int(words[start[0] + 8 : start[0] + 9].view("<f4")[0])
        images = (keys >= 1) & (keys < last)
        start, flag = start[images], flag[images]
        if not len(start):
            raise LayoutError(f"record 0 of {record} says that there are no images")
    if (flag > 64).any():
        raise LayoutError(f"{record} has records of {int(flag.max())} labels: it is not a set of labelled images")
    label_word = np.where(flag > 0, start + 8, start + 3)
    values = words[np.minimum(label_word, len(words) - 1)].view("<f4").astype(np.int64)
    packed = words[start + 1]
    offset = start * 4 + 8 + HEADER + 4 * flag
    length = (packed & LENGTH_MASK).astype(np.int64) - HEADER - 4 * flag
    held = []
    for row in np.flatnonzero(packed >> 29 != 0):
        held.append(_joined(words, int(start[row]))[HEADER + 4 * int(flag[row]) :])
        length[row] = -len(held)
    undivided = length >= 0
    if ((offset + length)[undivided] > record.stat().st_size).any():
        raise LayoutError(f"{record} ends within a record: it is incomplete")
    split_ids = np.full(len(start), SPLITS.index("train"), np.int8)
    labels, names = number_classes(values, split_ids)
    bins = sorted(file.name for file in record.parent.glob("*.bin"))
    notes = (f"the folder has verification sets; open each by its path: {', '.join(bins)}",) if bins else ()
    images_column = Spans([str(record)], np.zeros(len(start), np.int64), offset, length, held)
    return Table(record.parent.name, labels, names, split_ids, images_column, notes=notes)


def _joined(words: np.ndarray[tuple[int, ...], np.dtype[np.uint32]], start: int) -> bytes:
    """The data of a divided record. Data that contain the magic number are divided there into a first (1), middle (2)
    and last (3) part.
    """
    parts = []
    while start + 1 < len(words) and words[start] == MAGIC:
        packed = int(words[start + 1])
        length = packed & LENGTH_MASK
        parts.append(words[start + 2 : start + 2 + (length + 3) // 4].tobytes()[:length])
        start += 2 + (length + 3) // 4
        if packed >> 29 == 3:
            return struct.pack("<I", MAGIC).join(parts)
    raise LayoutError("the last part of a divided record is missing")


def recognise_bin(path: Path) -> bool:
    """Whether it is a .bin file."""
    return path.suffix == ".bin" and path.is_file()


def read_bin(path: Path) -> Table:
    """A verification set is a pickle of two lists: encoded images, and whether each pair is the same person. Images 2i
    and 2i + 1 are pair i, in ten consecutive folds. `read_plain_pickle` reads the pickle without executing it. Persons
    are not known.
    """
    content = read_plain_pickle(path)
    if not isinstance(content, (tuple, list)) or len(content) != 2:
        raise LayoutError(f"{path} must hold two lists: images, and whether each pair is the same")
    images, same = content
    if not isinstance(images, list) or not all(isinstance(image, ByteRange) for image in images):
        raise LayoutError(f"the first list of {path} must hold encoded images")
    if not isinstance(same, list) or not all(isinstance(answer, (bool, int)) for answer in same):
        raise LayoutError(f"the second list of {path} must hold booleans")
    if len(images) != 2 * len(same):
        raise LayoutError(f"{path} has {len(images)} images for {len(same)} pairs")
    n = len(same)
    ranges = np.array(images, np.int64).reshape(-1, 2)
    pair = np.arange(n)
    return Table(
        path.stem,
        np.full(2 * n, UNLABELLED, np.int64),
        (),
        np.full(2 * n, SPLITS.index("test"), np.int8),
        Spans([str(path)], np.zeros(2 * n, np.int64), ranges[:, 0], ranges[:, 1]),
        pairs={path.stem: Pairs(2 * pair, 2 * pair + 1, np.array(same, bool), pair * PAIR_FOLDS // max(n, 1))},
    )
