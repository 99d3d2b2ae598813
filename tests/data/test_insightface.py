"""RecordIO and .bin: written here by hand, from the formats' descriptions."""

import io
import os
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest

import nearfar.data
from nearfar.data import LayoutError, Span
from nearfar.data.plain_pickle import read_plain_pickle
from tests.data.making import encoded, shade

MAGIC = struct.pack("<I", 0xCED7230A)


def record(data: bytes) -> bytes:
    """Cut at every magic number that begins at a multiple of four, as RecordIO is written."""
    parts, start = [], 0
    for at in range(0, len(data) - 3, 4):
        if data[at : at + 4] == MAGIC:
            parts.append(data[start:at])
            start = at + 4
    parts.append(data[start:])
    out = b""
    for i, part in enumerate(parts):
        flag = 0 if len(parts) == 1 else 1 if i == 0 else 3 if i == len(parts) - 1 else 2
        out += MAGIC + struct.pack("<I", flag << 29 | len(part)) + part + bytes(-len(part) % 4)
    return out


def packed(label: float | list[float], number: int, data: bytes) -> bytes:
    labels = label if isinstance(label, list) else []
    first = 0.0 if labels else float(label)  # type: ignore[arg-type]
    return struct.pack("<IfQQ", len(labels), first, number, 0) + struct.pack(f"<{len(labels)}f", *labels) + data


def write(folder: Path, records: list[bytes]) -> None:
    folder.mkdir(exist_ok=True)
    stream, index = io.BytesIO(), ""
    for key, data in enumerate(records):
        index += f"{key}\t{stream.tell()}\n"
        stream.write(record(data))
    folder.joinpath("train.rec").write_bytes(stream.getvalue())
    folder.joinpath("train.idx").write_text(index)


def images() -> list[bytes]:
    return [encoded(value) for value in (10, 60, 110, 160)]


@pytest.mark.parametrize("several", [False, True])
def test_records(tmp_path: Path, several: bool) -> None:
    labels = [7, 7, 3, 12]
    data = [
        packed([label, 1.0] if several else label, i, x)
        for i, (label, x) in enumerate(zip(labels, images(), strict=True), 1)
    ]
    identities = [packed([1.0, 3.0], 9, b""), packed([3.0, 4.0], 10, b"")]
    write(tmp_path, [packed([5.0, 7.0], 0, b""), *data, *identities])
    (tmp_path / "lfw.bin").write_bytes(b"")
    table = nearfar.data.open(tmp_path)
    assert [table.label_name(i) for i in range(4)] == ["7", "7", "3", "12"] and table.labels.tolist() == [1, 1, 0, 2]
    assert table.split_names == ("train",) and "lfw.bin" in table.notes[0]
    assert [shade(table.images[i]) for i in range(4)] == [10, 60, 110, 160]
    assert [shade(table.select([3, 1]).images[i]) for i in range(2)] == [160, 60]
    assert isinstance(table.images[0], Span)


def test_records_without_a_first_one_that_counts(tmp_path: Path) -> None:
    write(tmp_path, [packed(i, i, x) for i, x in enumerate(images())])
    table = nearfar.data.open(tmp_path / "train.rec")
    assert table.labels.tolist() == [0, 1, 2, 3] and shade(table.images[0]) == 10


def test_records_with_the_magic_number_in_them(tmp_path: Path) -> None:
    def with_magic(data: bytes) -> bytes:
        """A JPEG with a comment that holds it twice, once right at a multiple of four of the record."""
        for pad in range(4):
            comment = bytes(pad) + MAGIC + b"...." + MAGIC
            whole = data[:2] + b"\xff\xfe" + struct.pack(">H", len(comment) + 2) + comment + data[2:]
            if (24 + whole.index(MAGIC)) % 4 == 0:
                return whole
        raise AssertionError

    odd = with_magic(encoded(60))
    write(tmp_path, [packed(0, 0, encoded(10)), packed(1, 1, odd), packed(2, 2, encoded(110))])
    assert (tmp_path / "train.rec").read_bytes().count(MAGIC) == 5  # three records, one of them in three parts
    table = nearfar.data.open(tmp_path)
    assert table.images[1] == odd
    assert [shade(table.select([1, 2]).images[i]) for i in range(2)] == [60, 110]


def test_damaged_records_are_refused(tmp_path: Path) -> None:
    write(tmp_path, [packed(i, i, x) for i, x in enumerate(images())])
    rec, idx = tmp_path / "train.rec", tmp_path / "train.idx"
    whole = rec.read_bytes()
    rec.write_bytes(whole[:-200])
    with pytest.raises(LayoutError, match=r"ends within a record|not in"):
        nearfar.data.open(tmp_path)
    rec.write_bytes(whole)
    idx.write_text("0\t4\n")
    with pytest.raises(LayoutError, match="has no record at 1 of the offsets"):
        nearfar.data.open(tmp_path)
    idx.write_text("0\t99999999\n")
    with pytest.raises(LayoutError, match="has offsets outside of"):
        nearfar.data.open(tmp_path)
    idx.write_text("0\n")
    with pytest.raises(LayoutError, match="lines of a key and an offset"):
        nearfar.data.open(tmp_path)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_bins_of_every_protocol(tmp_path: Path, protocol: int) -> None:
    path = tmp_path / "lfw.bin"
    same = [True, False]
    data = pickle.dumps((images(), same), protocol)
    path.write_bytes(data)
    if protocol < 3:  # Python 3 writes bytes for Python 2 as a call, which is refused
        with pytest.raises(LayoutError, match="refused: it holds the pickle instruction"):
            nearfar.data.open(path)
        return
    table = nearfar.data.open(path)
    assert table.name == "lfw" and table.labels.tolist() == [-1] * 4
    assert [table.images[i].read() for i in range(4)] == images()
    pairs = table.pairs["lfw"]
    assert (pairs.first.tolist(), pairs.second.tolist(), pairs.same.tolist()) == ([0, 2], [1, 3], same)


def test_bins_of_python_2(tmp_path: Path) -> None:
    """Its byte strings are BINSTRING (T) and SHORT_BINSTRING (U); its booleans, in protocol 2, NEWTRUE and NEWFALSE."""
    first, second = encoded(10), b"\x00\xff" * 20
    strings = b"T" + struct.pack("<i", len(first)) + first + b"q\x01" + b"U" + bytes([len(second)]) + second + b"q\x02"
    path = tmp_path / "x.bin"
    path.write_bytes(b"\x80\x02" + b"]q\x00(" + strings + b"e" + b"]q\x03\x88a" + b"\x86q\x04.")
    table = nearfar.data.open(path)
    assert [table.images[i].read() for i in range(2)] == [first, second]
    assert table.pairs["x"].same.tolist() == [True]


def test_ten_folds_in_order(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(pickle.dumps(([b"x"] * 60, [True] * 30)))
    assert nearfar.data.open(tmp_path / "a.bin").pairs["a"].fold.tolist() == [i // 3 for i in range(30)]


class Attack:
    """What it would do if it were unpickled."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_nothing_is_executed(tmp_path: Path, protocol: int) -> None:
    made = tmp_path / "made"
    path = tmp_path / "x.bin"
    path.write_bytes(pickle.dumps(([Attack(made)], [True]), protocol))
    with pytest.raises(
        LayoutError, match=r"refused: it holds the pickle instruction .* because other pickles can run code"
    ):
        nearfar.data.open(path)
    assert not made.exists()


REFUSED = {"dict": {}, "text": "abc", "float": 1.5, "none": None, "set": {1}, "array": np.zeros(2)}


@pytest.mark.parametrize("value", REFUSED.values(), ids=REFUSED)
def test_only_lists_of_bytes_booleans_and_numbers(tmp_path: Path, value: object) -> None:
    path = tmp_path / "x.bin"
    path.write_bytes(pickle.dumps(([b"a", value], [True])))
    with pytest.raises(LayoutError, match="refused: it holds the pickle instruction"):
        nearfar.data.open(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (pickle.dumps(([b"a"], [True])), "has 1 images for 1 pairs"),
        (pickle.dumps(([b"a", 3], [True])), "the first list of .* must hold encoded images"),
        (pickle.dumps(([b"a", b"b"], [b"c"])), "the second list of .* must hold booleans"),
        (pickle.dumps([1, 2, 3]), "must hold two lists"),
        (pickle.dumps(([b"abc"], [True]))[:-4], "not a complete pickle|it has no end"),
        (b"", "not a complete pickle|it has no end"),
        (b"]]e.", "not a complete pickle"),
        (b"\x80\x02]q\x00h\x07.", "not a complete pickle"),
        (b"]].", "it ends with an unfinished value"),
        (b"K\x01K\x02a.", "appends to a value that is not a list"),
        (b"\x86.", "not a complete pickle"),
        (b"\x8e" + struct.pack("<Q", 2**62) + b"abc.", "not a complete pickle"),
    ],
)
def test_bad_bins_are_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "x.bin"
    path.write_bytes(content)
    with pytest.raises(LayoutError, match=message):
        nearfar.data.open(path)


def test_plain_values_are_read_as_pickle_reads_them(tmp_path: Path) -> None:
    value = [1, -5, 300, 70000, 2**40, True, False, (), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4), [[]], []]
    same = [[0]]
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        path = tmp_path / f"{protocol}.bin"
        path.write_bytes(pickle.dumps([*value, same, same], protocol))
        if protocol < 2:  # their long integers are text, which no .bin needs
            with pytest.raises(LayoutError, match=r"refused: it holds the pickle instruction (PUT|LONG)"):
                read_plain_pickle(path)
        else:
            assert read_plain_pickle(path) == [*value, same, same]
