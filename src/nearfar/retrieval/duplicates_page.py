"""A page of near-identical images, group by group."""

import os
from pathlib import Path

from nearfar.report import Page, Picture, Section
from nearfar.report.thumbnails import thumbnail
from nearfar.retrieval.duplicates import Duplicates, Group, Member
from nearfar.retrieval.gallery import Gallery

MOST_GROUPS = 100  # of each kind
MOST_MEMBERS = 12  # of a group


def write_page(found: Duplicates, gallery: Gallery, path: str | os.PathLike[str]) -> Path:
    """Write the page, which needs nothing beside it."""
    page = Page("Near-identical images", gallery.table.name)
    summary = page.section("Summary")
    for line in found.summary().splitlines():
        summary.paragraph(line)
    rows = {name: row for row, name in enumerate(gallery.ids)} if found.groups else {}
    kinds = {
        "Leaks": ("Images that are trained on and tested.", [group for group in found.groups if group.leak]),
        "Contradictory labels": (
            "The same picture under several labels; leaks are above.",
            [group for group in found.groups if group.contradictory and not group.leak],
        ),
        "Others": (
            "The same picture more than once.",
            [group for group in found.groups if not group.leak and not group.contradictory],
        ),
    }
    for title, (words, groups) in kinds.items():
        if groups:
            section = page.section(title)
            more = f" The first {MOST_GROUPS} of {len(groups):,} groups." if len(groups) > MOST_GROUPS else ""
            section.paragraph(words + more)
            _show(section, groups[:MOST_GROUPS], gallery, rows)
    return page.write(path)


def _show(section: Section, groups: list[Group], gallery: Gallery, rows: dict[str, int]) -> None:
    grids = []
    for group in groups:
        pictures = [_picture(member, gallery, rows[member.image]) for member in group.members[:MOST_MEMBERS]]
        left = len(group.members) - MOST_MEMBERS
        heading = f"similarity {group.similarity:.3f}" + (f", {left} more" if left > 0 else "")
        grids.append((heading, pictures))
    section.grids(grids)


def _picture(member: Member, gallery: Gallery, row: int) -> Picture:
    words = " · ".join(part for part in (member.split, member.label, "same file" if member.identical else "") if part)
    return Picture(thumbnail(gallery.images[row]), words, "", f"{member.image} ({member.similarity:.4f})")
