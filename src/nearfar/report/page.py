"""A report: one HTML file that needs nothing else, neither a network nor a neighbour.

    page = Page("Which loss for these birds?", "nearfar compare CUB_200_2011")
    section = page.section("Leaderboard")
    section.paragraph("Ten losses, the same budget for each.")
    section.table(["loss", "recall@1"], [["CircleLoss", 0.61], ["untrained", 0.556]])
    section.figure(style.svg(drawn), "Recall@1 with 95 % intervals")      # drawn: a matplotlib figure
    page.write("report.html")

All text is escaped. The page allows itself nothing from outside: its policy forbids every address but those of data,
and every script but its own.
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
"""Of a table: text, a number, or nothing."""
Mark = Literal["", "query", "right", "wrong"]
"""What a picture is to a search."""
_NUMBER = re.compile(r"\(?[-+−]?[\d.,]+(e[-+]?\d+)?( ?%)?( ± [\d.,]+( ?%)?)?\)?|n/a|·")
PNG = b"\x89PNG\r\n\x1a\n"


@dataclass(frozen=True)
class Picture:
    """One picture of a grid.

    Attributes:
        source: a data address, as `thumbnails.thumbnail` gives it; None for a picture that cannot be shown.
        caption: below it.
        mark: "right" and "wrong" give it a border, solid or dashed, and a sign; "query" a heavier one.
        title: what a pointer resting on it is told; also for those who cannot see it.
    """

    source: Markup | None
    caption: str = ""
    mark: Mark = ""
    title: str = ""


class Section:
    """A part of a page, under a heading: what is added to it appears in that order."""

    def __init__(self, title: str):
        self.title = title
        self._parts: list[str] = []

    def paragraph(self, words: str) -> None:
        """Running text."""
        self._parts.append(f"<p>{text(words)}</p>")

    def subtitle(self, words: str) -> None:
        """A heading below the section's."""
        self._parts.append(f"<h3>{text(words)}</h3>")

    def table(
        self,
        header: Sequence[str],
        rows: Iterable[Sequence[Cell]],
        *,
        caption: str = "",
        bold: Iterable[int] = (),
        fold: str = "",
    ) -> None:
        """A table. Numbers are shown with four digits; columns of numbers, also as text such as "12.5 %" or "+3 ± 1",
        stand to the right. `bold` are rows to point out; `fold` hides it behind a line that unfolds it.
        """
        kept, marked = [list(row) for row in rows], set(bold)
        for place, row in enumerate(kept):
            if len(row) != len(header):
                raise ValueError(f"row {place} has {len(row)} cells, the header {len(header)}: {row!r}")
        numeric = [_numeric([row[column] for row in kept]) for column in range(len(header))]
        head = "".join(
            f"<th scope=col{_class(right)}>{text(name)}</th>" for name, right in zip(header, numeric, strict=True)
        )
        body = []
        for place, row in enumerate(kept):
            cells = "".join(_cell(row[column], column == 0, numeric[column]) for column in range(len(header)))
            body.append(f"<tr{' class=best' if place in marked else ''}>{cells}</tr>")
        title = f"<caption>{text(caption)}</caption>" if caption else ""
        inside = f"{title}<thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody>"
        shown = f"<div class=scroll tabindex=0><table>{inside}</table></div>"
        self._parts.append(f"<details><summary>{text(fold)}</summary>{shown}</details>" if fold else shown)

    def figure(self, drawing: Markup | bytes, caption: str, *, wide: bool = False) -> None:
        """A drawing: SVG as `style.svg` gives it, or the bytes of a PNG file.

        Figures that follow each other stand side by side where there is room; `wide` ones have the whole width, and
        are scrolled on a telephone. The caption says what is to be seen, also to those who cannot see it.
        """
        if isinstance(drawing, Markup):
            inside = str(drawing)
        elif isinstance(drawing, bytes) and drawing.startswith(PNG):
            inside = f'<img src="{data_uri("image/png", drawing)}" alt="{text(caption)}">'
        else:
            raise TypeError("a figure is SVG as style.svg gives it, or the bytes of a PNG file")
        if wide:
            inside = f"<div class=scroll tabindex=0>{inside}</div>"
        kind = "wide" if wide else "narrow"
        self._parts.append(f"<figure class={kind}>{inside}<figcaption>{text(caption)}</figcaption></figure>")

    def grid(self, pictures: Sequence[Picture], *, heading: str = "") -> None:
        """Pictures in a row, which wraps where there is no room; what a single query found stands beside it."""
        self._parts.append(_grid(pictures, heading))

    def grids(self, grids: Iterable[tuple[str, Sequence[Picture]]]) -> None:
        """Small grids, each with its heading, side by side."""
        self._parts.append(f"<div class=grids>{''.join(_grid(pictures, heading) for heading, pictures in grids)}</div>")

    def preformatted(self, words: str) -> None:
        """Text as it is, such as a configuration."""
        self._parts.append(f"<pre tabindex=0>{text(words)}</pre>")

    def folded(self, summary: str, words: str) -> None:
        """Text as it is, behind a line that unfolds it."""
        self._parts.append(f"<details><summary>{text(summary)}</summary><pre tabindex=0>{text(words)}</pre></details>")

    def markup(self, content: Markup) -> None:
        """What the other modules of this package build, such as the map."""
        if not isinstance(content, Markup):
            raise TypeError("only Markup goes into a page as it is: text belongs into paragraph()")
        self._parts.append(content)

    def html(self, name: str) -> str:
        """The section under its anchor."""
        return f"<section id={name}><h2>{text(self.title)}</h2>{_side_by_side(self._parts)}</section>"


class Page:
    """A page of sections, with a table of contents.

    Args:
        title: in the heading and in the browser's bar.
        subtitle: a line below it.
    """

    def __init__(self, title: str, subtitle: str = ""):
        self.title, self.subtitle = title, subtitle
        self.sections: list[Section] = []

    def section(self, title: str) -> Section:
        """Begin a section."""
        section = Section(title)
        self.sections.append(section)
        return section

    def html(self) -> str:
        """The whole page."""
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
        """Write the page, whole or not at all."""
        target = Path(path)
        write_file(target, self.html())
        return target


def number(value: float) -> str:
    """With four significant digits, and thousands set apart.

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
    """Whether a column holds numbers and nothing else, but for empty cells."""
    filled = [value for value in column if value not in (None, "")]
    return bool(filled) and all(isinstance(value, (int, float)) or _NUMBER.fullmatch(value or "") for value in filled)


def _class(right: bool) -> str:
    return " class=number" if right else ""


def _picture(picture: Picture) -> str:
    words = picture.title or picture.caption
    inside = (
        f'<img src="{picture.source}" alt="{text(words)}" decoding=async>'
        if picture.source is not None
        else "<span class=missing>no picture</span>"
    )
    caption = f"<span class=caption>{text(picture.caption)}</span>" if picture.caption else ""
    kind = f" {picture.mark}" if picture.mark else ""
    return f'<div class="picture{kind}" title="{text(words)}"><span class=frame>{inside}</span>{caption}</div>'


def _grid(pictures: Sequence[Picture], heading: str) -> str:
    title = f"<p class=gridhead>{text(heading)}</p>" if heading else ""
    one_query = len(pictures) > 2 and [picture.mark == "query" for picture in pictures].count(True) == 1
    kind = '"grid search"' if one_query else "grid"
    return f"<div class=gridrow>{title}<div class={kind}>{''.join(map(_picture, pictures))}</div></div>"


def _side_by_side(parts: Sequence[str]) -> str:
    """The parts in order, runs of narrow figures in one row."""
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
