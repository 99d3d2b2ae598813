"""A folder of pictures as they are found: most of them good, some of them odd, some of them no pictures at all.

    made = messy(folder)
    made.folder, made.broken            # names below the folder, and what their reasons have to say

Whatever can be shown counts: CMYK, 16 bits, greyscale, palettes with transparency, animations (their first frame), turned
by EXIF. What cannot is left out: truncated, empty, too large, text in disguise, a link to nothing.
"""

import io
import os
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

CLASSES, EACH, SIDE = 12, 6, 24
ORIENTATION = 0x0112


@dataclass(frozen=True)
class Messy:
    """Attributes:
    folder: of the data.
    broken: what cannot be read, by its name below the folder, and a word of the reason.
    odd: what can, though it is not what one expects.
    """

    folder: Path
    broken: dict[str, str]
    odd: tuple[str, ...]
    total: int


def messy(folder: Path) -> Messy:
    """Make it."""
    rng = np.random.default_rng(0)
    names = []
    for number in range(CLASSES):
        # Nested, with spaces, and in several scripts.
        name = {0: "mug, red", 1: "kitchen/kettle", 2: "kitchen/kanne blau", 3: "чашка", 4: "猫 の 皿"}.get(number)
        name = name or f"thing {number:02}"
        pattern = rng.uniform(60, 200, (6, 6, 3)).repeat(SIDE // 6, 0).repeat(SIDE // 6, 1)
        for each in range(EACH):
            noisy = pattern + rng.normal(0, 15, pattern.shape) + rng.uniform(-30, 30)
            _save(Image.fromarray(noisy.clip(0, 255).astype(np.uint8)), folder / name / f"{each}.png")
        names.append(name)
    odd = _odd(folder, names)
    broken = _broken(folder, names)
    _beside(folder)
    return Messy(folder, broken, odd, CLASSES * EACH + len(odd) + len(broken))


def _odd(folder: Path, names: list[str]) -> tuple[str, ...]:
    """Of the first classes, one each."""
    pictures = [Image.open(folder / name / "0.png").convert("RGB") for name in names]
    deep = (np.asarray(pictures[2].convert("L")).astype(np.uint16) * 257).astype(np.uint16)
    palette = pictures[4].quantize(16)
    turned = Image.Exif()
    turned[ORIENTATION] = 6
    gif, webp = ([picture.rotate(angle) for angle in (0, 90, 180)] for picture in pictures[6:8])
    made = {
        f"{names[0]}/turned.jpg": (pictures[0], {"exif": turned.tobytes()}),
        f"{names[1]}/cmyk.jpg": (pictures[1].convert("CMYK"), {}),
        f"{names[2]}/sixteen bits.png": (Image.fromarray(deep), {}),
        f"{names[3]}/grey.jpg": (pictures[3].convert("L"), {}),
        f"{names[4]}/palette.png": (palette, {"transparency": bytes(range(0, 160, 10))}),
        f"{names[5]}/transparent.webp": (_transparent(pictures[5]), {"lossless": True}),
        f"{names[6]}/animated.gif": (gif[0], {"save_all": True, "append_images": gif[1:]}),
        f"{names[7]}/animated.webp": (webp[0], {"save_all": True, "append_images": webp[1:], "lossless": True}),
        "a class of one/alone.png": (pictures[8].rotate(90), {}),
    }
    for name, (picture, options) in made.items():
        _save(picture, folder / name, **options)
    # The same file twice: in its class, and under another label on the other side of the split.
    same = {f"{names[8]}/copy of 0.png": f"{names[8]}/0.png", f"{names[11]}/stray.png": f"{names[0]}/1.png"}
    for name, original in same.items():
        (folder / name).write_bytes((folder / original).read_bytes())
    return (*made, *same)


def _broken(folder: Path, names: list[str]) -> dict[str, str]:
    stream = io.BytesIO()
    Image.effect_noise((200, 200), 50).convert("RGB").save(stream, "JPEG", quality=95)
    contents = {
        f"{names[0]}/truncated.jpg": (stream.getvalue()[:-4000], "truncated"),
        f"{names[0]}/truncated.png": ((folder / names[0] / "0.png").read_bytes()[:200], "truncated"),
        f"{names[1]}/empty.jpg": (b"", "empty"),
        f"{names[2]}/huge.png": (bomb(60_000), "too large"),
        f"{names[3]}/large.png": (bomb(10_000), "too large"),
        f"{names[4]}/page.jpg": (b"<!DOCTYPE html>\n<html><body>404 Not Found</body></html>", "404|html"),
        f"{names[5]}/notes.jpeg": ("Fotos vom März\n".encode(), "text"),
        f"{names[6]}/noise.gif": (bytes(np.random.default_rng(1).integers(128, 256, 500, np.uint8)), "not an image"),
    }
    for name, (content, _) in contents.items():
        (folder / name).write_bytes(content)
    (folder / names[7] / "gone.jpg").symlink_to(folder / "nowhere.jpg")
    (folder / names[7] / "circle.jpg").symlink_to(folder / names[7] / "circle.jpg")
    reasons = {name: reason for name, (_, reason) in contents.items()}
    reasons |= {f"{names[7]}/gone.jpg": "no such file", f"{names[7]}/circle.jpg": "symbolic links"}
    if os.getuid() != 0:  # who may read everything
        forbidden = folder / names[8] / "forbidden.png"
        forbidden.write_bytes((folder / names[8] / "1.png").read_bytes())
        forbidden.chmod(0)
        reasons[f"{names[8]}/forbidden.png"] = "[Pp]ermission denied"
    return reasons


def _beside(folder: Path) -> None:
    """What is no picture, and does not claim to be one."""
    (folder / "empty").mkdir()
    (folder / ".hidden").mkdir()
    _save(Image.new("RGB", (8, 8)), folder / ".hidden" / "0.png")
    for name in ("Thumbs.db", ".DS_Store", "mug, red/Thumbs.db", "mug, red/._0.png", "mug, red/notes.txt"):
        (folder / name).write_bytes(b"\0\1\2")


def _save(picture: Image.Image, path: Path, **options: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    picture.save(path, **options)  # type: ignore[arg-type]


def _transparent(picture: Image.Image) -> Image.Image:
    picture = picture.convert("RGBA")
    picture.putalpha(Image.linear_gradient("L").resize(picture.size))
    return picture


def bomb(side: int) -> bytes:
    """A PNG file that says it is so large, and is not."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(100))) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body
