"""The style of all figures, suitable for colour-blind readers and for light and dark pages.

Colours are after Okabe and Ito. In a page they follow its theme. Line styles and markers differ as well, so that
nothing depends only on colour.
"""

import contextlib
import hashlib
import io
import re
from collections.abc import Iterator
from typing import Any

from nearfar.errors import MissingPackageError
from nearfar.report.markup import Markup

try:
    import matplotlib as mpl
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure
except ImportError as missing:
    raise MissingPackageError("figures are drawn with matplotlib: pip install 'nearfar[training]'") from missing

INK, FAINT, LINE = "#1b1f24", "#5b6470", "#d9dde3"
ONE, TWO, THREE, FOUR = "#0072b2", "#c75100", "#00805e", "#a8588a"
SERIES = ((ONE, "-", "o"), (TWO, "--", "s"), (THREE, "-.", "^"), (FOUR, ":", "D"))
"""Colour, line style and marker of each series."""
WIDTH, HEIGHT = 3.8, 2.8
"""Size in inches of a figure that fills the width of a phone."""

_VARIABLES = {  # names in page.css
    INK: "ink",
    FAINT: "faint",
    LINE: "line",
    ONE: "one",
    TWO: "two",
    THREE: "three",
    FOUR: "four",
}
_SETTINGS: dict[Any, Any] = {
    "font.size": 9.5,
    "font.family": "DejaVu Sans",
    "text.color": INK,
    "text.parse_math": False,  # labels are names, not formulas
    "axes.labelcolor": FAINT,
    "axes.edgecolor": FAINT,
    "axes.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 10.5,
    "axes.titlelocation": "left",
    "axes.titlecolor": INK,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.formatter.use_mathtext": False,
    "axes.unicode_minus": True,
    "grid.color": LINE,
    "grid.linewidth": 0.7,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "lines.linewidth": 1.8,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "figure.facecolor": "none",
    "savefig.facecolor": "none",
    "svg.hashsalt": "nearfar",  # reproducible files
    "svg.fonttype": "none",  # text in the page's font, which can be searched and copied
}


@contextlib.contextmanager
def figure(width: float = WIDTH, height: float = HEIGHT) -> Iterator[Figure]:
    """Yield a figure in this style, independent of the user's settings and of pyplot.

    with figure() as drawn:
        axes = drawn.subplots()
    """
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(_SETTINGS)
        drawn = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasSVG(drawn)
        yield drawn


def svg(drawn: Figure) -> Markup:
    """Convert a figure to SVG for a page, whose colours it follows. The result is reproducible."""
    file = io.StringIO()
    canvas, dpi = drawn.canvas, drawn.dpi
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(_SETTINGS)
        # savefig would draw twice.
        FigureCanvasSVG(drawn).print_svg(file, metadata={"Date": None})  # type: ignore[no-untyped-call]
    drawn.set_canvas(canvas)
    drawn.dpi = dpi
    code = file.getvalue()
    code = code[code.index("<svg") :]
    code = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", code, flags=re.DOTALL)
    code = re.sub(
        r'(<svg[^>]*?) width="[^"]*pt"', r"\1", re.sub(r'(<svg[^>]*?) height="[^"]*pt"', r"\1", code, count=1)
    )
    code = re.sub(r"font-family: [^;\"]*;? ?", "", code)  # the page sets the font
    for colour, name in _VARIABLES.items():
        code = code.replace(colour, f"var(--{name})")
    code = re.sub(r">\s+<", "><", code)
    return Markup(_with_unique_ids(code.strip()))


def _with_unique_ids(code: str) -> str:
    """Make ids unique in the page: matplotlib names the first axes of every figure "axes_1"."""
    key = "f" + hashlib.sha256(code.encode()).hexdigest()[:8]
    code = re.sub(r'\bid="([^"]+)"', rf'id="{key}-\1"', code)
    code = re.sub(r'href="#([^"]+)"', rf'href="#{key}-\1"', code)
    return re.sub(r"url\(#([^)]+)\)", rf"url(#{key}-\1)", code)
