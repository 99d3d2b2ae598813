"""Pictures from strangers, looked at before they are decoded; and small pictures for the page."""

import io
from dataclasses import dataclass

from PIL import Image

from nearfar.imaging import BrokenImageError, Source
from nearfar.imaging.decoding import broken_image_errors, decode, load_image, open_image, upright_size

FORMATS = {"JPEG": "image/jpeg", "PNG": "image/png", "WEBP": "image/webp", "BMP": "image/bmp", "GIF": "image/gif"}
SIDES = (96, 192, 384)
"""Pixels of the longer side of the small pictures there are."""
MOST_SCANS = 100  # of a progressive JPEG. A file of a few megabytes can ask for thousands of passes over all pixels
KEPT_SIDE = 1024  # pixels of the longer side of a picture that is added to the gallery
QUALITY = 80  # of WebP


@dataclass(frozen=True)
class Upload:
    """A picture that was sent: still encoded, its header found to be harmless."""

    content: bytes
    width: int
    height: int


def checked(content: bytes, most_pixels: int) -> Upload:
    """A picture in an allowed format and of a bearable size, or a `BrokenImageError` that says why not.

    What is refused is refused by its header. The formats are tried by what the bytes are, whatever the sender calls
    them.
    """
    if not content:
        raise BrokenImageError("the upload", "it is empty")
    name = f"the upload ({len(content):,} bytes)"
    with broken_image_errors(name):
        Image.init()
        opened = Image.open(io.BytesIO(content), formats=[one for one in FORMATS if one in Image.OPEN])
        width, height = opened.size
        if width < 1 or height < 1:
            raise BrokenImageError(name, "it has no pixels")
        if width * height > most_pixels:
            raise BrokenImageError(name, f"refused: {width} × {height} is over {most_pixels:,} pixels")
        # In compressed data a byte FF is followed by 00, so this is a marker and nothing else.
        if opened.format in ("JPEG", "MPO") and content.count(b"\xff\xda") > MOST_SCANS:
            raise BrokenImageError(name, f"refused: it has more than {MOST_SCANS} scans")
        return Upload(content, *upright_size(opened))  # last: Pillow decodes a PNG to see how it is turned


def thumbnail(source: Source, side: int) -> bytes:
    """A picture of at most `side` pixels each way, as WebP; a smaller one stays as it is."""
    opened = open_image(source)
    width, height = upright_size(opened)
    scale = min(1.0, side / max(width, height))
    image = decode(opened, min(1.0, 2 * scale), source)  # twice too large, for a clean reduction
    size = max(1, round(width * scale)), max(1, round(height * scale))
    if image.size != size:
        image = image.resize(size, Image.Resampling.LANCZOS)
    file = io.BytesIO()
    image.save(file, "WEBP", quality=QUALITY, lossless=max(size) <= 64)  # small ones have no pixel to lose
    return file.getvalue()


def to_keep(upload: Upload) -> bytes:
    """The picture as a PNG file of nothing but its pixels: upright, RGB, no larger than any network looks at. What
    else was in the file, such as where it was taken, is left behind.
    """
    image = load_image(upload.content)
    if max(image.size) > KEPT_SIDE:
        image.thumbnail((KEPT_SIDE, KEPT_SIDE), Image.Resampling.LANCZOS)
    file = io.BytesIO()
    Image.frombytes("RGB", image.size, image.tobytes()).save(file, "PNG")
    return file.getvalue()
