"""Draws characters in the faces of DejaVu and STIX, and excludes characters that look alike."""

import functools
import unicodedata
from collections import Counter
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

from nearfar.errors import MissingPackageError

Shape = npt.NDArray[np.uint8]
FACES = (
    *("DejaVuSans", "DejaVuSans-Bold", "DejaVuSans-Oblique", "DejaVuSans-BoldOblique"),
    *("DejaVuSansMono", "DejaVuSansMono-Bold", "DejaVuSansMono-Oblique", "DejaVuSansMono-BoldOblique"),
    *("DejaVuSerif", "DejaVuSerif-Bold", "DejaVuSerif-Italic", "DejaVuSerif-BoldItalic"),
    *("STIXGeneral", "STIXGeneralBol", "STIXGeneralItalic", "STIXGeneralBolIta"),
)
FEWEST_FACES = 8
SIDE = 48  # of a drawn shape, in pixels
FRAME = 40  # its longer side, in pixels
FONT_SIZE = 64
MIN_INK = 0.06  # the smallest fraction of ink, which excludes characters of a few dots
KINDS = frozenset("LNSP")  # letters, numbers, symbols, punctuation
ALIKE = 0.88  # cosine of two blurred shapes from which they look alike
COMPARED = ("DejaVuSans", "DejaVuSerif")  # faces in which shapes are compared


class Faces:
    """The faces, and the distinct characters that at least `FEWEST_FACES` of them have."""

    def __init__(self) -> None:
        files = _font_files()
        self._fonts = [ImageFont.truetype(files[name], FONT_SIZE) for name in FACES]
        self._covered = [_codes(files[name]) for name in FACES]
        counts = Counter(code for codes in self._covered for code in codes)
        candidates = sorted(code for code, count in counts.items() if count >= FEWEST_FACES and _is_plain(code))
        compared = [[self.draw(code, FACES.index(name)) for name in COMPARED] for code in candidates]
        self.characters = [candidates[i] for i in _distinct(compared)]

    def draw(self, code: int, face: int) -> Shape | None:
        """(SIDE, SIDE) uint8 with 255 for ink; None if the face does not have the character."""
        return _shape(code, self._fonts[face]) if code in self._covered[face] else None


@functools.cache
def faces() -> Faces:
    """The faces, loaded once per process."""
    return Faces()


def _font_files() -> dict[str, str]:
    try:
        from matplotlib import get_data_path
    except ImportError as missing:
        raise MissingPackageError("glyphs are drawn with matplotlib's fonts: pip install 'nearfar[data]'") from missing
    folder = Path(get_data_path(), "fonts", "ttf")
    return {name: str(folder / f"{name}.ttf") for name in FACES}


def _codes(file: str) -> frozenset[int]:
    from matplotlib.ft2font import FT2Font

    return frozenset(FT2Font(file).get_charmap())


def _is_plain(code: int) -> bool:
    kind = unicodedata.category(chr(code))
    return kind[0] in KINDS and kind not in ("Lm", "Sk")  # modifiers are small marks


def _shape(code: int, font: ImageFont.FreeTypeFont) -> Shape | None:
    """The character centred in a square and scaled to `FRAME`; None if it has too little ink."""
    left, top, right, bottom = (int(edge) for edge in font.getbbox(chr(code)))
    if right <= left or bottom <= top:
        return None
    page = Image.new("L", (right - left, bottom - top))
    ImageDraw.Draw(page).text((-left, -top), chr(code), fill=255, font=font)
    ink = page.getbbox()
    if ink is None:
        return None
    page = page.crop(ink)
    scale = FRAME / max(page.size)
    page = page.resize((max(1, round(page.width * scale)), max(1, round(page.height * scale))), Image.Resampling.BOX)
    square = Image.new("L", (SIDE, SIDE))
    square.paste(page, ((SIDE - page.width) // 2, (SIDE - page.height) // 2))
    shape = np.asarray(square)
    return shape if shape.mean() >= MIN_INK * 255 else None


def _distinct(shapes: list[list[Shape | None]]) -> list[int]:
    """The rows that look like no earlier distinct row in any column."""
    blank = np.zeros((SIDE, SIDE), np.uint8)
    columns = []
    for column in zip(*shapes, strict=True):
        small = np.stack([blank if shape is None else shape for shape in column]).astype(np.float32)
        small = small.reshape(len(small), SIDE // 3, 3, SIDE // 3, 3).mean((2, 4)).reshape(len(small), -1)
        columns.append(small / np.maximum(np.linalg.norm(small, axis=1, keepdims=True), 1e-6))
    alike = np.maximum.reduce([column @ column.T for column in columns]) > ALIKE
    distinct: list[int] = []
    for row in range(len(shapes)):
        if shapes[row][0] is not None and not alike[row, distinct].any():
            distinct.append(row)
    return distinct
