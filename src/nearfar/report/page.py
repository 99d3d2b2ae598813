"""`Page`: a report as a self-contained HTML file.

    page = Page("Which loss for these birds?", "nearfar compare CUB_200_2011")
    section = page.section("Leaderboard")
    section.paragraph("Ten losses, the same budget for each.")
    section.table(["loss", "recall@1"], [["CircleLoss", 0.61], ["untrained", 0.556]])
    section.figure(style.svg(figure), "Recall@1 with 95 % intervals")     # a matplotlib figure
    page.write("report.html")

All text is escaped. The content security policy of the page forbids all addresses except data URIs, and all scripts
except the page's.
"""

import base64
import functools
import hashlib
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Literal

from nearfar.foundation.files import write_file
from nearfar.report.markup import Markup, data_uri, text

Cell = str | float | int | None
"""A cell of a table: text, a number, or nothing."""
Mark = Literal["", "query", "right", "wrong"]
"""The role of an image in a search result."""
_NUMBER = re.compile(r"\(?[-+−]?[\d.,]+(e[-+]?\d+)?( ?%)?( ± [\d.,]+( ?%)?)?\)?|n/a|·")
PNG = b"\x89PNG\r\n\x1a\n"


@dataclass(frozen=True)
class Picture:
    """An image of a grid.

    Attributes:
        source: a data URI of `thumbnails.thumbnail`; None for an image that cannot be shown.
        caption: the text below the image.
        mark: "right" and "wrong" add a sign and a solid or dashed border; "query" adds a heavy border.
        title: the tooltip and the alternative text.
    """

    source: Markup | None
    caption: str = ""
    mark: Mark = ""
    title: str = ""


class Section:
    """A section of a page, with a heading and parts in the order in which they were added."""

    def __init__(self, title: str):
        self.title = title
        self._parts: list[str] = []

    def paragraph(self, content: str) -> None:
        """Add a paragraph."""
        self._parts.append(f"<p>{text(content)}</p>")

    def subtitle(self, content: str) -> None:
        """Add a heading below that of the section."""
        self._parts.append(f"<h3>{text(content)}</h3>")

    def table(
        self,
        header: Sequence[str],
        rows: Iterable[Sequence[Cell]],
        *,
        caption: str = "",
        bold: Iterable[int] = (),
        fold: str = "",
    ) -> None:
        """Add a table. Numbers are shown with four digits. Columns of numbers, including text such as "12.5 %" or
        "+3 ± 1", are aligned to the right. `bold` are highlighted rows; `fold` is the summary of a collapsed table.
        """
        lines, marked = [list(row) for row in rows], set(bold)
        for number, row in enumerate(lines):
            if len(row) != len(header):
                raise ValueError(f"row {number} has {len(row)} cells, but the header has {len(header)}: {row!r}")
        numeric = [_numeric([row[column] for row in lines]) for column in range(len(header))]
        head = "".join(
            f"<th scope=col{_class(right)}>{text(name)}</th>" for name, right in zip(header, numeric, strict=True)
        )
        body = []
        for number, row in enumerate(lines):
            cells = "".join(_cell(row[column], column == 0, numeric[column]) for column in range(len(header)))
            body.append(f"<tr{' class=best' if number in marked else ''}>{cells}</tr>")
        title = f"<caption>{text(caption)}</caption>" if caption else ""
        inside = f"{title}<thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody>"
        shown = f"<div class=scroll tabindex=0><table>{inside}</table></div>"
        self._parts.append(f"<details><summary>{text(fold)}</summary>{shown}</details>" if fold else shown)

    def figure(self, drawing: Markup | bytes, caption: str, *, wide: bool = False) -> None:
        """Add a figure: SVG of `style.svg`, or the bytes of a PNG file.

        Consecutive figures are shown side by side if there is room. `wide` ones use the whole width and scroll on small
        screens. The caption is also the alternative text.
        """
        if isinstance(drawing, Markup):
            inside = str(drawing)
        elif isinstance(drawing, bytes) and drawing.startswith(PNG):
            inside = f'<img src="{data_uri("image/png", drawing)}" alt="{text(caption)}">'
        else:
            raise TypeError("a figure must be SVG of style.svg, or the bytes of a PNG file")
        if wide:
            inside = f"<div class=scroll tabindex=0>{inside}</div>"
        kind = "wide" if wide else "narrow"
        self._parts.append(f"<figure class={kind}>{inside}<figcaption>{text(caption)}</figcaption></figure>")

    def grid(self, pictures: Sequence[Picture], *, heading: str = "") -> None:
        """Add images in rows. The hits of a single query are shown beside it."""
        self._parts.append(_grid(pictures, heading))

    def grids(self, grids: Iterable[tuple[str, Sequence[Picture]]]) -> None:
        """Add small grids with headings, side by side."""
        self._parts.append(f"<div class=grids>{''.join(_grid(pictures, heading) for heading, pictures in grids)}</div>")

    def preformatted(self, content: str) -> None:
        """Add preformatted text, such as a configuration."""
        self._parts.append(f"<pre tabindex=0>{text(content)}</pre>")

    def folded(self, summary: str, content: str) -> None:
        """Add collapsed preformatted text."""
        self._parts.append(
            f"<details><summary>{text(summary)}</summary><pre tabindex=0>{text(content)}</pre></details>"
        )

    def markup(self, content: Markup) -> None:
        """Add markup built by other modules of this package, such as the map."""
        if not isinstance(content, Markup):
            raise TypeError("only Markup is added unescaped: use paragraph() for text")
        self._parts.append(content)

    def html(self, name: str) -> str:
        """The HTML of the section, with an anchor."""
        return f"<section id={name}><h2>{text(self.title)}</h2>{_side_by_side(self._parts)}</section>"


class Page:
    """A page of sections, with a table of contents.

    Args:
        title: the heading and the title of the browser window.
        subtitle: a line below the heading.
    """

    def __init__(self, title: str, subtitle: str = ""):
        self.title, self.subtitle = title, subtitle
        self.sections: list[Section] = []

    def section(self, title: str) -> Section:
        """Add a section."""
        section = Section(title)
        self.sections.append(section)
        return section

    def html(self) -> str:
        """The HTML of the page."""
        names = [f"part{number}" for number in range(1, len(self.sections) + 1)]
        contents = "".join(
            f'<a href="#{name}">{text(part.title)}</a>' for name, part in zip(names, self.sections, strict=True)
        )
        parts = "".join(part.html(name) for name, part in zip(names, self.sections, strict=True))
        css, script = _asset("page.css"), _asset("page.js")
        return (
            '<!doctype html>\n<html lang=en>\n<head>\n<meta charset="utf-8">\n'
            f'<meta http-equiv="Content-Security-Policy" content="{_policy(script)}">\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            '<meta name="color-scheme" content="light dark">\n<link rel="icon" href="data:,">\n'
            f"<title>{text(self.title)}</title>\n<style>{css}</style>\n</head>\n<body>\n"
            f"<header><h1>{text(self.title)}</h1><p>{text(self.subtitle)}</p></header>\n"
            f'<nav aria-label="Contents">{contents}</nav>\n<main>{parts}</main>\n'
            f"<script>{script}</script>\n</body>\n</html>\n"
        )

    def write(self, path: str | os.PathLike[str]) -> Path:
        """Write the page atomically."""
        target = Path(path)
        write_file(target, self.html())
        return target


def number(value: float) -> str:
    """Format a number with four significant digits and separators of thousands.

    >>> [number(x) for x in (0.123456, 1234567, 0.5, 12.0, 3.2e-7, float("nan"))]
    ['0.1235', '1,234,567', '0.5', '12', '3.2e-07', 'n/a']
    """
    if value != value:  # NaN
        return "n/a"
    if isinstance(value, int) or (float(value).is_integer() and abs(value) < 1e15):
        return f"{int(value):,}"
    return f"{value:.4g}"


def _cell(value: Cell, first: bool, right: bool) -> str:
    tag = "th scope=row" if first else "td"
    shown = "" if value is None else number(value) if isinstance(value, (int, float)) else value
    return f"<{tag}{_class(right)}>{text(shown)}</{tag[:2]}>"


def _numeric(column: Sequence[Cell]) -> bool:
    """Whether a column has only numbers and empty cells."""
    filled = [value for value in column if value not in (None, "")]
    return bool(filled) and all(isinstance(value, (int, float)) or _NUMBER.fullmatch(value or "") for value in filled)


def _class(right: bool) -> str:
    return " class=number" if right else ""


def _picture(picture: Picture) -> str:
    title = picture.title or picture.caption
    inside = (
        f'<img src="{picture.source}" alt="{text(title)}" decoding=async>'
        if picture.source is not None
        else "<span class=missing>no image</span>"
    )
    caption = f"<span class=caption>{text(picture.caption)}</span>" if picture.caption else ""
    kind = f" {picture.mark}" if picture.mark else ""
    return f'<div class="picture{kind}" title="{text(title)}"><span class=frame>{inside}</span>{caption}</div>'


def _grid(pictures: Sequence[Picture], heading: str) -> str:
    title = f"<p class=gridhead>{text(heading)}</p>" if heading else ""
    one_query = len(pictures) > 2 and [picture.mark == "query" for picture in pictures].count(True) == 1
    kind = '"grid search"' if one_query else "grid"
    return f"<div class=gridrow>{title}<div class={kind}>{''.join(map(_picture, pictures))}</div></div>"


def _side_by_side(parts: Sequence[str]) -> str:
    """Join the parts, with consecutive narrow figures in a row."""
    result, row = [], False
    for part in parts:
        narrow = part.startswith("<figure class=narrow>")
        if narrow != row:
            result.append("<div class=figures>" if narrow else "</div>")
            row = narrow
        result.append(part)
    return "".join(result) + ("</div>" if row else "")


@functools.cache
def _asset(name: str) -> str:
    return resources.files("nearfar.report").joinpath(name).read_text(encoding="utf-8").strip()


def _policy(script: str) -> str:
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii")
    return f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
