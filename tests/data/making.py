"""Small made copies of data sets."""

import io
from pathlib import Path

import numpy as np
from PIL import Image


def encoded(value: int = 0, size: tuple[int, int] = (8, 6), kind: str = "JPEG") -> bytes:
    """An image of one grey."""
    stream = io.BytesIO()
    Image.new("RGB", size, (value, value, value)).save(stream, kind, quality=95)
    return stream.getvalue()


def image(path: Path, value: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(encoded(value, kind="PNG" if path.suffix == ".png" else "JPEG"))
    return path


def text(path: Path, content: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    return path


def shade(source: object) -> int:
    """The grey that `encoded` and `image` drew."""
    from nearfar.data import load_image

    return int(np.asarray(load_image(source)).mean().round())  # type: ignore[arg-type]
