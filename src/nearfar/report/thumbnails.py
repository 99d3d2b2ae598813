"""Thumbnails for a page, and sheets of them."""

import io
import math
from collections.abc import Iterable

from PIL import Image

from nearfar.imaging import BrokenImageError, Source
from nearfar.imaging.decoding import decode, open_image, upright_size
from nearfar.report.markup import Markup, data_uri

SIDE = 96  # pixels of an image in a grid, two to three kilobytes
QUALITY = 72  # of WebP


def thumbnail(source: Source, side: int = SIDE) -> Markup | None:
    """The data URI of an image reduced to at most `side` pixels; None if it is broken."""
    small = _small(source, side)
    return None if small is None else data_uri("image/webp", _encoded(small))


def sheet(sources: Iterable[Source], side: int, across: int) -> Markup:
    """The data URI of a sheet of images, centred in squares of `side` pixels, `across` per row, empty if broken."""
    smalls = [_small(source, side, enlarged=True) for source in sources]
    whole = Image.new("RGB", (across * side, max(1, math.ceil(len(smalls) / across)) * side), "#808890")
    for number, small in enumerate(smalls):
        if small is not None:
            left, top = number % across * side, number // across * side
            whole.paste(small, (left + (side - small.width) // 2, top + (side - small.height) // 2))
    return data_uri("image/webp", _encoded(whole))


def _small(source: Source, side: int, enlarged: bool = False) -> Image.Image | None:
    """Scale the longer side to `side` pixels. Smaller images are only scaled if `enlarged` is set."""
    try:
        opened = open_image(source)
        width, height = upright_size(opened)
        scale = side / max(width, height)
        scale = scale if enlarged else min(1.0, scale)
        image = decode(opened, min(1.0, 2 * scale), source)  # twice the size, for a smooth reduction
    except BrokenImageError:
        return None
    size = max(1, round(width * scale)), max(1, round(height * scale))
    return image if image.size == size else image.resize(size, Image.Resampling.LANCZOS)


def _encoded(image: Image.Image) -> bytes:
    file = io.BytesIO()
    image.save(file, "WEBP", quality=QUALITY, method=4)
    return file.getvalue()
