"""One image, from wherever it is, as eight-bit RGB the right way up; or an error that says why not."""

import contextlib
import hashlib
import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from nearfar.data.columns import Source, Span

try:
    from PIL import Image
except ImportError as missing:
    raise ImportError("nearfar.data reads images with Pillow: pip install 'nearfar[data]'") from missing

# What a picture is kept as. Not every format Pillow knows: some of them run other programs (EPS) or fetch fonts.
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM", "MPO", "JPEG2000", "AVIF")
EXTENSIONS = frozenset(
    {".jpg", ".jpeg", ".jpe", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm", ".jp2", ".avif"}
)
_ORIENTATION = 0x0112  # of EXIF
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


class BrokenImageError(ValueError):
    """An image that is missing, damaged, or larger than is safe to decode."""

    def __init__(self, source: str, reason: str):
        super().__init__(f"{source}: {reason}")
        self.source, self.reason = source, reason

    def __reduce__(self) -> tuple[Any, ...]:
        return BrokenImageError, (self.source, self.reason)


def describe(source: Source | Image.Image) -> str:
    """Where an image is, for messages."""
    if isinstance(source, Span):
        return f"{source.path} at byte {source.offset}"
    if isinstance(source, (str, os.PathLike)):
        return os.fspath(source)
    if isinstance(source, bytes):
        return f"{len(source)} bytes"
    return f"pixels of shape {source.shape}" if isinstance(source, np.ndarray) else repr(source)


def identity(source: Source) -> str:
    """What tells this image from another, or from an earlier state of itself: the place, size and time of change of its
    file, or a digest of what is in memory.
    """
    if isinstance(source, np.ndarray):
        return f"{source.shape} {source.dtype} {hashlib.sha256(np.ascontiguousarray(source).data).hexdigest()}"
    if isinstance(source, bytes):
        return hashlib.sha256(source).hexdigest()
    path = source.path if isinstance(source, Span) else os.fspath(source)
    state = os.stat(path)
    place = f"{Path(path).resolve()} {state.st_size} {state.st_mtime_ns}"
    return f"{place} {source.offset} {source.length}" if isinstance(source, Span) else place


@contextlib.contextmanager
def broken_if_it_fails(source: Source | Image.Image) -> Iterator[None]:
    """Whatever a decoder raises on bad bytes, and they raise many things, becomes `BrokenImageError`."""
    try:
        yield
    except (BrokenImageError, MemoryError):
        raise
    except FileNotFoundError as error:
        raise BrokenImageError(describe(source), "no such file") from error
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise BrokenImageError(describe(source), f"refused: {error}") from error
    except Exception as error:
        raise BrokenImageError(describe(source), f"{type(error).__name__}: {error}") from error


def _read(path: str | os.PathLike[str]) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _formats() -> list[str]:
    Image.init()
    return [name for name in FORMATS if name in Image.OPEN]


def open_image(source: Source | Image.Image) -> Image.Image:
    """The image with its header read and its pixels not yet decoded, so that `decode` can still choose a scale.

    Images of more than `PIL.Image.MAX_IMAGE_PIXELS` pixels are refused.
    """
    if isinstance(source, Image.Image):
        return source
    with broken_if_it_fails(source):
        if isinstance(source, np.ndarray):
            return Image.fromarray(source[..., 0] if source.ndim == 3 and source.shape[2] == 1 else source)
        # All of it is read at once: a file that turns out to be broken is not left open.
        data = source if isinstance(source, bytes) else source.read() if isinstance(source, Span) else _read(source)
        image = Image.open(io.BytesIO(data), formats=_formats())
        limit = Image.MAX_IMAGE_PIXELS
        if limit is not None and image.width * image.height > limit:
            raise BrokenImageError(describe(source), f"refused: {image.width} × {image.height} is over {limit} pixels")
        return image


def upright_size(image: Image.Image) -> tuple[int, int]:
    """Width and height as they will be once the image is decoded and turned."""
    width, height = image.size
    return (height, width) if orientation(image) >= 5 else (width, height)


def orientation(image: Image.Image) -> int:
    """The EXIF orientation, 1 to 8; 1 if there is none or it cannot be read."""
    try:
        value = image.getexif().get(_ORIENTATION, 1)
    except Exception:  # a damaged tag is no reason to lose the picture
        return 1
    return value if isinstance(value, int) and 1 <= value <= 8 else 1


def decode(image: Image.Image, scale: float = 1.0, source: Source | Image.Image | None = None) -> Image.Image:
    """Eight-bit RGB, turned as its EXIF orientation says.

    A JPEG may come out smaller, by a factor of 2, 4 or 8 that its decoder gets almost for nothing, but never below
    `scale` times its size. Greyscale, palette and CMYK images are converted; 16-bit ones keep their upper eight bits;
    transparent ones are laid on white; of animations the first frame counts. Colour profiles are ignored.
    """
    with broken_if_it_fails(image if source is None else source):
        turn = _UPRIGHT.get(orientation(image))
        if scale < 1 and image.format in ("JPEG", "MPO"):
            image.draft(None, (max(1, int(image.width * scale)), max(1, int(image.height * scale))))
        image = to_rgb(image)
        return image if turn is None else image.transpose(turn)


def to_rgb(image: Image.Image) -> Image.Image:
    """Any mode as eight-bit RGB, by the rules of `decode`."""
    if image.mode == "RGB" and "transparency" not in image.info:
        image.load()
        return image
    if image.mode.startswith("I") or image.mode == "F":
        image = _eight_bits(image)
    if image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info:
        layer = image.convert("RGBA")
        paper = Image.new("RGBA", layer.size, "white")
        return Image.alpha_composite(paper, layer).convert("RGB")
    return image.convert("RGB")


def _eight_bits(image: Image.Image) -> Image.Image:
    values = np.asarray(image).astype(np.float64)
    if image.mode == "F":
        values = values * 255 if values.size and np.nanmax(values) <= 1 else values
    elif image.mode.startswith("I;16") or (values.size and values.max() > 255):
        values = np.floor(values / 256)
    return Image.fromarray(np.nan_to_num(values).clip(0, 255).astype(np.uint8))


def load_image(source: Source | Image.Image) -> Image.Image:
    """The whole image as eight-bit RGB the right way up. Raises `BrokenImageError` if that cannot be."""
    return decode(open_image(source), source=source)
