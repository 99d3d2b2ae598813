"""Images of every kind become eight-bit RGB the right way up, or say why not."""

import io
import pickle
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from nearfar.imaging import BrokenImageError, EvalTransform, Span, identity, load_image
from nearfar.imaging.decoding import decode, open_image, upright_size
from nearfar.imaging.sources import content
from tests.data.making import encoded, image


def saved(picture: Image.Image, kind: str, **options: object) -> bytes:
    stream = io.BytesIO()
    picture.save(stream, kind, **options)
    return stream.getvalue()


def corner() -> Image.Image:
    """Red in the upper left quarter, blue elsewhere; wider than high."""
    picture = Image.new("RGB", (32, 16), "blue")
    picture.paste("red", (0, 0, 16, 8))
    return picture


def test_every_source_gives_the_same_image(tmp_path: Path) -> None:
    data = encoded(77)
    file = tmp_path / "x.jpg"
    file.write_bytes(data)
    within = tmp_path / "many.bin"
    within.write_bytes(b"abc" + data + b"def")
    pixels = np.asarray(load_image(file))
    with file.open("rb") as opened:
        for source in (str(file), data, opened, Span(str(within), 3, len(data)), pixels, Image.open(file)):
            assert np.array_equal(np.asarray(load_image(source)), pixels)
    assert load_image(pixels[..., 0]).mode == load_image(pixels[..., :1]).mode == "RGB"


@pytest.mark.parametrize("mode", ["L", "P", "1", "CMYK", "YCbCr", "LA", "RGBA", "RGB"])
def test_every_mode_becomes_rgb(mode: str) -> None:
    picture = Image.new("RGB", (4, 4), "white").convert(mode)
    loaded = load_image(saved(picture, "JPEG" if mode in ("CMYK", "YCbCr") else "PNG"))
    assert loaded.mode == "RGB" and loaded.size == (4, 4)
    assert np.asarray(loaded).min() >= 253


def test_sixteen_bits_keep_the_upper_eight() -> None:
    values = np.array([[0, 256 * 7 + 255, 65535]], np.uint16)
    for kind in ("PNG", "TIFF"):
        assert np.asarray(load_image(saved(Image.fromarray(values), kind)))[0, :, 0].tolist() == [0, 7, 255]
    floats = Image.fromarray(np.array([[0.0, 0.5, 1.0]], np.float32))
    assert np.asarray(load_image(saved(floats, "TIFF")))[0, :, 1].tolist() == [0, 127, 255]
    small = Image.fromarray(np.array([[0, 7, 255]], np.int32))
    assert np.asarray(load_image(saved(small, "TIFF")))[0, :, 2].tolist() == [0, 7, 255]


def test_transparency_lies_on_white() -> None:
    clear = Image.new("RGBA", (2, 1), (255, 0, 0, 0))
    clear.putpixel((1, 0), (255, 0, 0, 255))
    assert np.asarray(load_image(saved(clear, "PNG"))).tolist() == [[[255, 255, 255], [255, 0, 0]]]


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_exif_rotation_is_undone(orientation: int, kind: str) -> None:
    # Where the corner of the upright picture is after the camera stored it so (the inverse of what EXIF says to do).
    stored = {
        1: lambda a: a,
        2: lambda a: a[:, ::-1],
        3: lambda a: a[::-1, ::-1],
        4: lambda a: a[::-1],
        5: lambda a: a.transpose(1, 0, 2),
        6: lambda a: np.rot90(a, 1),
        7: lambda a: np.rot90(a[:, ::-1], -1),
        8: lambda a: np.rot90(a, -1),
    }[orientation](np.asarray(corner()))
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = saved(Image.fromarray(np.ascontiguousarray(stored)), kind, exif=exif, quality=95)
    assert upright_size(open_image(data)) == (32, 16)
    loaded = np.asarray(load_image(data)).astype(int)
    assert loaded.shape == (16, 32, 3)
    assert loaded[4, 8, 0] > 150 > loaded[12, 8, 0] and loaded[4, 24, 0] < 100


def test_what_was_turned_is_not_turned_again() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    once = load_image(saved(corner(), "JPEG", exif=exif))
    assert once.size == (16, 32) and load_image(once).size == (16, 32)


def test_jpegs_are_decoded_small_but_never_too_small() -> None:
    data = encoded(90, (400, 200))
    assert decode(open_image(data), 0.5).size == (200, 100)
    assert decode(open_image(data), 0.51).size == (400, 200)
    assert decode(open_image(data), 0.13).size == (100, 50)
    assert decode(open_image(data), 0.01).size == (50, 25)
    assert decode(open_image(encoded(90, (400, 200), "PNG")), 0.1).size == (400, 200)


def bomb(side: int) -> bytes:
    """A PNG whose header promises side × side pixels."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(100))) + chunk(b"IEND", b"")
    )


@pytest.mark.parametrize("side", [10_000, 50_000])
def test_decompression_bombs_are_refused(side: int) -> None:
    with pytest.raises(BrokenImageError, match="too large"):
        load_image(bomb(side))


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_bombs_are_refused_also_where_pillow_only_warns() -> None:
    with pytest.raises(BrokenImageError, match=r"too large: 10000 × 10000 is more than \d+ pixels"):
        load_image(bomb(10_000))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (encoded(5, (64, 64))[:-40], "truncated"),
        (encoded(5, (64, 64), "PNG")[:60], "OSError|SyntaxError|truncated"),
        (b"", "the file is empty"),
        (b"<html>\nnot found</html>", "not an image but text: <html> not found</html>$"),
        ("Überall Wörter ".encode() * 20, r"not an image but text: (Überall Wörter )+.*\.\.\.$"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n", r"not an image but text: %!PS"),
        (b"\0\1\2", "not an image in a supported format"),
        (bytes(range(128, 256)), "not an image in a supported format"),
    ],
)
def test_damaged_images_are_broken(data: bytes, reason: str) -> None:
    with pytest.raises(BrokenImageError, match=reason):
        load_image(data)


def test_a_missing_file_is_broken_and_named(tmp_path: Path) -> None:
    with pytest.raises(BrokenImageError, match=r"gone\.jpg: no such file") as caught:
        load_image(tmp_path / "gone.jpg")
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    with pytest.raises(BrokenImageError, match="IsADirectoryError"):
        load_image(tmp_path)


def test_what_has_no_pixels_is_broken_and_what_is_no_image_a_mistake() -> None:
    for empty in (np.zeros((0, 5, 3), np.uint8), np.zeros((4, 0), np.uint8), Image.new("RGB", (0, 3))):
        with pytest.raises(BrokenImageError, match="it has no pixels"):
            load_image(empty)
    for wrong in (np.zeros((8, 8, 3), np.float32), np.zeros((3, 8, 8), np.uint8), np.zeros(8, np.uint8)):
        with pytest.raises(TypeError, match=r"must be uint8 \(H, W\), \(H, W, 1\) or \(H, W, 3\), not "):
            load_image(wrong)
    with pytest.raises(TypeError, match=r"an image is a path, bytes, .* not int"):
        load_image(7)


def test_a_callers_image_stays_as_it_is() -> None:
    picture = Image.open(io.BytesIO(encoded(90, (400, 200))))
    EvalTransform(16, 20)(picture)
    assert picture.size == (400, 200) and picture.getpixel((399, 199)) == (90, 90, 90)


def test_content_is_the_same_for_copies(tmp_path: Path) -> None:
    one, copy, other = image(tmp_path / "a.jpg", 1), image(tmp_path / "b.jpg", 1), image(tmp_path / "c.jpg", 200)
    assert content(one) == content(str(copy)) == content(one.read_bytes()) != content(other)
    assert content(Span(str(one), 0, one.stat().st_size)) == content(one) != content(Span(str(one), 0, 5))
    assert identity(one) != identity(copy)


def test_identity_changes_with_the_file(tmp_path: Path) -> None:
    path = image(tmp_path / "a.jpg", 1)
    before = identity(path)
    assert before == identity(str(path))
    assert identity(Span(str(path), 0, 5)) not in (before, identity(Span(str(path), 1, 5)))
    image(path, 200)
    path.write_bytes(path.read_bytes() + b"x")
    assert identity(path) != before
    assert identity(b"a") != identity(b"b")
    assert identity(np.zeros((2, 3), np.uint8)) != identity(np.zeros((3, 2), np.uint8))
