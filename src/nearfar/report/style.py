"""One style for all figures: quiet, told apart by every kind of colour vision, at home on light and dark paper.

Colours are after Okabe and Ito. In a page they follow its light or dark; line styles and markers differ as well, so
that nothing depends on colour alone.
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
"""Colour, line and marker of the first, second, ... of several."""
WIDTH, HEIGHT = 3.8, 2.8
"""Inches of a figure that fills a telephone's width."""

_VARIABLES = {  # as page.css calls them
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
    "text.parse_math": False,  # a label is a name, whatever signs are in it
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
    "svg.hashsalt": "nearfar",  # the same data gives the same file
    "svg.fonttype": "none",  # the page's own letters, which can be searched and copied
}


@contextlib.contextmanager
def figure(width: float = WIDTH, height: float = HEIGHT) -> Iterator[Figure]:
    """A figure to draw on, in this style, whatever the user's own is; no window, no state of pyplot.

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
    """A figure for a page: SVG whose colours follow the page's, with no word of when or where it was drawn."""
    file = io.StringIO()
    canvas, dpi = drawn.canvas, drawn.dpi
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(_SETTINGS)
        # Not by savefig, which draws twice.
        FigureCanvasSVG(drawn).print_svg(file, metadata={"Date": None})  # type: ignore[no-untyped-call]
    drawn.set_canvas(canvas)
    drawn.dpi = dpi
    found = file.getvalue()
    found = found[found.index("<svg") :]
    found = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", found, flags=re.DOTALL)
    found = re.sub(
        r'(<svg[^>]*?) width="[^"]*pt"', r"\1", re.sub(r'(<svg[^>]*?) height="[^"]*pt"', r"\1", found, count=1)
    )
    found = re.sub(r"font-family: [^;\"]*;? ?", "", found)  # the page's
    for colour, name in _VARIABLES.items():
        found = found.replace(colour, f"var(--{name})")
    found = re.sub(r">\s+<", "><", found)
    return Markup(_own_names(found.strip()))


def _own_names(found: str) -> str:
    """Its ids made its own: a page has several figures, and matplotlib calls the first axes of each "axes_1"."""
    key = "f" + hashlib.sha256(found.encode()).hexdigest()[:8]
    found = re.sub(r'\bid="([^"]+)"', rf'id="{key}-\1"', found)
    found = re.sub(r'href="#([^"]+)"', rf'href="#{key}-\1"', found)
    return re.sub(r"url\(#([^)]+)\)", rf"url(#{key}-\1)", found)
