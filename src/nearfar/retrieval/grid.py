"""An HTML page of search results: each query with its nearest images."""

import os
from collections.abc import Sequence
from pathlib import Path

from nearfar.report import Page, Picture
from nearfar.report.page import Mark
from nearfar.report.thumbnails import thumbnail
from nearfar.retrieval.gallery import Pictures
from nearfar.retrieval.index import Hit
from nearfar.retrieval.search import Result


def write_grid(results: Sequence[Result], path: str | os.PathLike[str], *, where: str = "") -> Path:
    """Write the page as a self-contained file. Hits of known labels are marked as right or wrong.

    Args:
        results: the result of `nearfar.retrieval.search.search`.
        path: the path of the HTML file.
        where: the location of the index, for the heading.
    """
    pictures = Pictures()
    page = Page("Nearest images", where)
    section = page.section(f"{len(results)} {'query' if len(results) == 1 else 'queries'}")
    for result in results:
        name = Path(result.query).name
        query = Picture(thumbnail(result.query), result.label or "query", "query", result.query)
        shown = [query, *(_shown(hit, result.label, pictures) for hit in result.hits)]
        count = f"{len(result.hits)} found" if result.hits else "no image is similar enough"
        section.grid(shown, heading=f"{name}: {count}")
    return page.write(path)


def _shown(hit: Hit, label: str, pictures: Pictures) -> Picture:
    mark: Mark = ""
    if label and hit.label:
        mark = "right" if label == hit.label else "wrong"
    source = pictures.source(hit.id)
    small = None if source is None else thumbnail(source)
    caption = f"{hit.similarity:.3f} {hit.label}".rstrip()
    return Picture(small, caption, mark, f"{hit.id} ({hit.similarity:.4f})")
