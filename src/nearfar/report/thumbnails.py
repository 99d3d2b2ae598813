"""Small pictures for a page, and sheets of them."""

import io
import math
from collections.abc import Iterable

from PIL import Image

from nearfar.imaging import BrokenImageError, Source
from nearfar.imaging.decoding import decode, open_image, upright_size
from nearfar.report.markup import Markup, data_uri

SIDE = 96  # pixels of a picture in a grid: two to three thousand bytes
QUALITY = 72  # of WebP


def thumbnail(source: Source, side: int = SIDE) -> Markup | None:
    """A picture of at most `side` pixels each way, as a data address; None if it cannot be read."""
    small = _small(source, side)
    return None if small is None else data_uri("image/webp", _encoded(small))


def sheet(sources: Iterable[Source], side: int, across: int) -> Markup:
    """Many pictures in one, each centred in its square of `side` pixels, `across` to a row; unreadable ones empty."""
    smalls = [_small(source, side, enlarged=True) for source in sources]
    whole = Image.new("RGB", (across * side, max(1, math.ceil(len(smalls) / across)) * side), "#808890")
    for number, small in enumerate(smalls):
        if small is not None:
            left, top = number % across * side, number // across * side
            whole.paste(small, (left + (side - small.width) // 2, top + (side - small.height) // 2))
    return data_uri("image/webp", _encoded(whole))


def _small(source: Source, side: int, enlarged: bool = False) -> Image.Image | None:
    """The longer side at `side` pixels; a smaller picture stays as it is unless it is to be `enlarged`."""
    try:
        opened = open_image(source)
        width, height = upright_size(opened)
        scale = side / max(width, height)
        scale = scale if enlarged else min(1.0, scale)
        image = decode(opened, min(1.0, 2 * scale), source)  # twice too large, for a clean reduction
    except BrokenImageError:
        return None
    size = max(1, round(width * scale)), max(1, round(height * scale))
    return image if image.size == size else image.resize(size, Image.Resampling.LANCZOS)


def _encoded(image: Image.Image) -> bytes:
    file = io.BytesIO()
    image.save(file, "WEBP", quality=QUALITY, method=4)
    return file.getvalue()
