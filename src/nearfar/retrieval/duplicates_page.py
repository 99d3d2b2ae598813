"""An HTML page of near-identical images, by group."""

import os
from pathlib import Path

from nearfar.report import Page, Picture, Section
from nearfar.report.thumbnails import thumbnail
from nearfar.retrieval.duplicates import Duplicates, Group, Member
from nearfar.retrieval.gallery import Gallery

MOST_GROUPS = 100  # of each kind
MOST_MEMBERS = 12  # of a group


def write_page(duplicates: Duplicates, gallery: Gallery, path: str | os.PathLike[str]) -> Path:
    """Write the page as a self-contained file."""
    page = Page("Near-identical images", gallery.table.name)
    summary = page.section("Summary")
    for line in duplicates.summary().splitlines():
        summary.paragraph(line)
    rows = {name: row for row, name in enumerate(gallery.ids)} if duplicates.groups else {}
    kinds = {
        "Leaks": ("Groups with both training and test images.", duplicates.leaks),
        "Contradictory labels": (
            "The same image with several labels; leaks are listed above.",
            [group for group in duplicates.contradictions if not group.leak],
        ),
        "Others": (
            "The same image more than once.",
            [group for group in duplicates.groups if not group.leak and not group.contradictory],
        ),
    }
    for title, (description, groups) in kinds.items():
        if groups:
            section = page.section(title)
            more = f" The first {MOST_GROUPS} of {len(groups):,} groups." if len(groups) > MOST_GROUPS else ""
            section.paragraph(description + more)
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
    caption = " · ".join(part for part in (member.split, member.label, "same file" if member.identical else "") if part)
    return Picture(thumbnail(gallery.images[row]), caption, "", f"{member.image} ({member.similarity:.4f})")
