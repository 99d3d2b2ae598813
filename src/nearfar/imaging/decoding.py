"""One image, from wherever it is, as eight-bit RGB the right way up; or an error that says why not."""

import contextlib
import io
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, UnidentifiedImageError

from nearfar.errors import InputTypeError
from nearfar.imaging.sources import BrokenImageError, ImageLike, describe, encoded

# What a picture is kept as. Not every format Pillow knows: some of them run other programs (EPS) or fetch fonts.
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM", "MPO", "JPEG2000", "AVIF")
TEXT_LOOKED_AT = 200  # bytes of what may be text
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


@contextlib.contextmanager
def broken_if_it_fails(image: ImageLike) -> Iterator[None]:
    """Whatever a decoder raises on bad bytes, and they raise many things, becomes `BrokenImageError`."""
    try:
        yield
    except (BrokenImageError, MemoryError):
        raise
    except FileNotFoundError as error:
        raise BrokenImageError(describe(image), "no such file") from error
    except UnidentifiedImageError as error:
        raise BrokenImageError(
            describe(image), f"not a picture in a format known here ({', '.join(FORMATS)})"
        ) from error
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise BrokenImageError(describe(image), f"refused: it is over {Image.MAX_IMAGE_PIXELS} pixels") from error
    except Exception as error:
        if "truncated" in str(error).lower():
            raise BrokenImageError(describe(image), "truncated: the end of the file is missing") from error
        raise BrokenImageError(describe(image), f"{type(error).__name__}: {error}") from error


def open_image(image: ImageLike) -> Image.Image:
    """The image with its header read and its pixels not yet decoded, so that `decode` can still choose a scale.

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
    with broken_if_it_fails(image):
        Image.init()
        formats = [name for name in FORMATS if name in Image.OPEN]
        data = encoded(image)
        try:
            opened = Image.open(io.BytesIO(data), formats=formats)
        except UnidentifiedImageError as error:
            if reason := _no_picture(data):
                raise BrokenImageError(describe(image), reason) from error
            raise
        limit = Image.MAX_IMAGE_PIXELS
        if limit is not None and opened.width * opened.height > limit:
            raise BrokenImageError(describe(image), f"refused: {opened.width} × {opened.height} is over {limit} pixels")
        return opened


def _no_picture(data: bytes) -> str:
    """What is known of a file that is not a picture; "" if that is nothing. A page that says "not found" is saved under
    the name of a picture more often than one would think.
    """
    if not data:
        return "the file is empty"
    try:
        words = data[:TEXT_LOOKED_AT].decode().split()
    except UnicodeDecodeError as error:  # a character may be cut in two at the end
        words = data[: error.start].decode().split() if error.start > TEXT_LOOKED_AT - 4 else []
    text = " ".join(words)
    if not text.isprintable() or not text:
        return ""
    return f"not a picture but text: {text[:40]}{'...' if len(text) > 40 or len(data) > TEXT_LOOKED_AT else ''}"


def _from_array(pixels: npt.NDArray[Any]) -> Image.Image:
    """Pixels as Pillow has them; what cannot be pixels is a mistake of the caller's and not a broken image."""
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


def decode(image: Image.Image, scale: float = 1.0, source: ImageLike | None = None) -> Image.Image:
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
        if turn is None:
            return image
        turned = image.transpose(turn)
        turned.info = {}  # it still says how to turn it, and whoever is given this one would turn it again
        return turned


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
    """The upper eight of sixteen bits; of real numbers, those in [0, 1] scaled."""
    values = np.nan_to_num(np.asarray(image).astype(np.float64))
    if image.mode == "F":
        values = values * 255 if values.max() <= 1 else values
    elif image.mode.startswith("I;16") or values.max() > 255:
        values = np.floor(values / 256)
    return Image.fromarray(values.clip(0, 255).astype(np.uint8))


def load_image(image: ImageLike) -> Image.Image:
    """The whole image as eight-bit RGB the right way up. Raises `BrokenImageError` if that cannot be."""
    return decode(open_image(image), source=image)
