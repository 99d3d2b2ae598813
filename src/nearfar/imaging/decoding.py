"""Decodes images to upright 8-bit RGB, with one error type for everything that can go wrong."""

import contextlib
import io
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, UnidentifiedImageError

from nearfar.errors import InputTypeError
from nearfar.imaging.sources import BrokenImageError, ImageLike, describe, read_encoded

# A subset of Pillow's formats: some of the others run external programs (EPS) or load fonts.
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM", "MPO", "JPEG2000", "AVIF")
TEXT_EXCERPT = 200  # bytes read to recognise a text file
_ORIENTATION = 0x0112  # EXIF tag
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


@contextlib.contextmanager
def broken_image_errors(image: ImageLike) -> Iterator[None]:
    """Turn whatever a decoder raises on bad bytes into `BrokenImageError`."""
    try:
        yield
    except (BrokenImageError, MemoryError):
        raise
    except FileNotFoundError as error:
        raise BrokenImageError(describe(image), "no such file") from error
    except UnidentifiedImageError as error:
        raise BrokenImageError(describe(image), f"not an image in a supported format ({', '.join(FORMATS)})") from error
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise BrokenImageError(describe(image), f"too large: more than {Image.MAX_IMAGE_PIXELS} pixels") from error
    except Exception as error:
        if "truncated" in str(error).lower():
            raise BrokenImageError(describe(image), "truncated: the end of the file is missing") from error
        raise BrokenImageError(describe(image), f"{type(error).__name__}: {error}") from error


def open_image(image: ImageLike) -> Image.Image:
    """Read the header only, so that `decode` can still choose a scale.

    Images of more than `PIL.Image.MAX_IMAGE_PIXELS` pixels are refused.
    """
    opened = _opened(image)
    if 0 in opened.size:
        raise BrokenImageError(describe(image), "it has no pixels")
    return opened


def _opened(image: ImageLike) -> Image.Image:
    if isinstance(image, Image.Image):
        return image
    if isinstance(image, np.ndarray):
        return _from_array(image)
    if not (isinstance(image, (str, bytes)) or hasattr(image, "__fspath__") or hasattr(image, "read")):
        raise InputTypeError(
            f"an image is a path, bytes, an open file, an array or a Pillow image, not {type(image).__name__}"
        )
    with broken_image_errors(image):
        Image.init()
        formats = [name for name in FORMATS if name in Image.OPEN]
        data = read_encoded(image)
        try:
            opened = Image.open(io.BytesIO(data), formats=formats)
        except UnidentifiedImageError as error:
            if reason := _text_reason(data):
                raise BrokenImageError(describe(image), reason) from error
            raise
        limit = Image.MAX_IMAGE_PIXELS
        if limit is not None and opened.width * opened.height > limit:
            raise BrokenImageError(
                describe(image), f"too large: {opened.width} × {opened.height} is more than {limit} pixels"
            )
        return opened


def _text_reason(data: bytes) -> str:
    """Why an empty file or a text file is not an image; "" for other files. Downloads often save an error page
    under the name of an image.
    """
    if not data:
        return "the file is empty"
    try:
        words = data[:TEXT_EXCERPT].decode().split()
    except UnicodeDecodeError as error:  # the excerpt may end inside a character
        words = data[: error.start].decode().split() if error.start > TEXT_EXCERPT - 4 else []
    text = " ".join(words)
    if not text.isprintable() or not text:
        return ""
    return f"not an image but text: {text[:40]}{'...' if len(text) > 40 or len(data) > TEXT_EXCERPT else ''}"


def _from_array(pixels: npt.NDArray[Any]) -> Image.Image:
    """Pixels as a Pillow image; other shapes and types are the caller's mistake, not a broken image."""
    try:
        if pixels.ndim not in (2, 3):
            raise TypeError(f"{pixels.ndim} dimensions")
        if pixels.size == 0:
            raise BrokenImageError(describe(pixels), "it has no pixels")
        return Image.fromarray(pixels[..., 0] if pixels.shape[2:] == (1,) else pixels)
    except TypeError as error:
        raise InputTypeError(
            f"an array of pixels must be uint8 (H, W), (H, W, 1) or (H, W, 3), not {pixels.dtype} {pixels.shape}"
        ) from error


def upright_size(image: Image.Image) -> tuple[int, int]:
    """Width and height after decoding and EXIF rotation."""
    width, height = image.size
    return (height, width) if orientation(image) >= 5 else (width, height)


def orientation(image: Image.Image) -> int:
    """The EXIF orientation, 1 to 8; 1 if it is missing or unreadable."""
    try:
        value = image.getexif().get(_ORIENTATION, 1)
    except Exception:  # a damaged tag does not make the image unusable
        return 1
    return value if isinstance(value, int) and 1 <= value <= 8 else 1


def decode(image: Image.Image, scale: float = 1.0, source: ImageLike | None = None) -> Image.Image:
    """Decode to upright 8-bit RGB.

    A JPEG may be reduced by 2, 4 or 8, which its decoder does at almost no cost, but never below `scale` times its
    size. Greyscale, palette and CMYK images are converted; 16-bit images keep their upper eight bits; transparent
    images are composited on white; animations give their first frame. Colour profiles are ignored.
    """
    with broken_image_errors(image if source is None else source):
        turn = _UPRIGHT.get(orientation(image))
        if scale < 1 and image.format in ("JPEG", "MPO"):
            image.draft(None, (max(1, int(image.width * scale)), max(1, int(image.height * scale))))
        image = to_rgb(image)
        if turn is None:
            return image
        turned = image.transpose(turn)
        turned.info = {}  # it still holds the EXIF orientation: without this, callers would rotate again
        return turned


def to_rgb(image: Image.Image) -> Image.Image:
    """Convert any mode to 8-bit RGB, as `decode` documents."""
    if image.mode == "RGB" and "transparency" not in image.info:
        image.load()
        return image
    if image.mode.startswith("I") or image.mode == "F":
        image = _eight_bits(image)
    if image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info:
        foreground = image.convert("RGBA")
        background = Image.new("RGBA", foreground.size, "white")
        return Image.alpha_composite(background, foreground).convert("RGB")
    return image.convert("RGB")


def _eight_bits(image: Image.Image) -> Image.Image:
    """The upper eight of sixteen bits; floats in [0, 1] are scaled to [0, 255]."""
    values = np.nan_to_num(np.asarray(image).astype(np.float64))
    if image.mode == "F":
        values = values * 255 if values.max() <= 1 else values
    elif image.mode.startswith("I;16") or values.max() > 255:
        values = np.floor(values / 256)
    return Image.fromarray(values.clip(0, 255).astype(np.uint8))


def load_image(image: ImageLike) -> Image.Image:
    """Decode a whole image to upright 8-bit RGB. Raises `BrokenImageError` if it cannot be decoded."""
    return decode(open_image(image), source=image)
