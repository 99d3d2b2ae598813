"""Validation of uploaded pictures before they are decoded, and thumbnails."""

import io
from dataclasses import dataclass

from PIL import Image

from nearfar.imaging import BrokenImageError, Source
from nearfar.imaging.decoding import broken_image_errors, decode, load_image, open_image, upright_size

FORMATS = {"JPEG": "image/jpeg", "PNG": "image/png", "WEBP": "image/webp", "BMP": "image/bmp", "GIF": "image/gif"}
MAX_SCANS = 100  # a progressive JPEG of a few megabytes can have thousands of scans, each a pass over all pixels
STORED_SIDE = 1024  # pixels of the longer side of a picture that is added to the gallery
WEBP_QUALITY = 80


@dataclass(frozen=True)
class Upload:
    """An encoded picture whose header was checked."""

    content: bytes
    width: int
    height: int


def checked_upload(content: bytes, max_pixels: int) -> Upload:
    """Check format and size by the header only, and raise `BrokenImageError` if the picture is refused.

    The format is detected from the bytes, not from the type that the client states.
    """
    if not content:
        raise BrokenImageError("the upload", "it is empty")
    upload = f"the upload ({len(content):,} bytes)"
    with broken_image_errors(upload):
        Image.init()
        opened = Image.open(io.BytesIO(content), formats=[name for name in FORMATS if name in Image.OPEN])
        width, height = opened.size
        if width < 1 or height < 1:
            raise BrokenImageError(upload, "it has no pixels")
        if width * height > max_pixels:
            raise BrokenImageError(upload, f"too large: {width} × {height} is more than {max_pixels:,} pixels")
        # Within compressed data, FF is always followed by 00, so FF DA can only be a scan marker.
        if opened.format in ("JPEG", "MPO") and content.count(b"\xff\xda") > MAX_SCANS:
            raise BrokenImageError(upload, f"refused: it has more than {MAX_SCANS} scans")
        return Upload(content, *upright_size(opened))  # last, because Pillow decodes a PNG to read its orientation


def thumbnail(source: Source, side: int) -> bytes:
    """A WebP picture whose longer side has at most `side` pixels; smaller pictures are not enlarged."""
    opened = open_image(source)
    width, height = upright_size(opened)
    scale = min(1.0, side / max(width, height))
    image = decode(opened, min(1.0, 2 * scale), source)  # twice the final size, for a clean reduction
    size = max(1, round(width * scale)), max(1, round(height * scale))
    if image.size != size:
        image = image.resize(size, Image.Resampling.LANCZOS)
    file = io.BytesIO()
    image.save(file, "WEBP", quality=WEBP_QUALITY, lossless=max(size) <= 64)
    return file.getvalue()


def stored_png(upload: Upload) -> bytes:
    """The upright RGB pixels as a PNG file, reduced to `STORED_SIDE`, without metadata such as the location."""
    image = load_image(upload.content)
    if max(image.size) > STORED_SIDE:
        image.thumbnail((STORED_SIDE, STORED_SIDE), Image.Resampling.LANCZOS)
    file = io.BytesIO()
    Image.frombytes("RGB", image.size, image.tobytes()).save(file, "PNG")
    return file.getvalue()
