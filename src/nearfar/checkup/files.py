"""What cannot be read, and what is there more than once, byte for byte."""

import numpy as np
from numpy.typing import NDArray

from nearfar.checkup.finding import Finding, first
from nearfar.data import Table
from nearfar.data.survey import Survey, row_name
from nearfar.training.progress import counted

MOST_FILES = 200  # that are listed
MOST_GROUPS = 5
TESTED = ("test", "query", "gallery")


def unreadable(table: Table, found: Survey, most: float) -> list[Finding]:
    """Files that are left out of everything; `most` is the share that training does without."""
    count, total = len(found.broken), len(table)
    if not count:
        return []
    what = f"{count:,} of {counted(total, 'picture')} cannot be read, and are left out of everything"
    advice = "Repair or remove them"
    if count > most * total:
        what = f"{count:,} of {counted(total, 'picture')} cannot be read: more than max_broken={most:g} allows to train"
        advice = "Is the disk whole, and the copy complete? Repair or remove them, or allow more with --max_broken"
    return [Finding(what, advice, first(found.listed(table), MOST_FILES))]


def identical(
    table: Table, fingerprints: NDArray[np.str_], parts: NDArray[np.str_]
) -> tuple[list[Finding], list[Finding]]:
    """Files that are the same: those across the split or under two labels, which are bad, and all others.

    Args:
        fingerprints: of the table's rows; "" for none.
        parts: of each row, "train", "val" or "test"; "" where it is in none.
    """
    rows_of: dict[str, list[int]] = {}
    for row, fingerprint in enumerate(fingerprints.tolist()):
        if fingerprint:
            rows_of.setdefault(fingerprint, []).append(row)
    groups = [rows for rows in rows_of.values() if len(rows) > 1]
    leaks = [rows for rows in groups if _both_sides(parts[rows])]
    others = [rows for rows in groups if not _both_sides(parts[rows])]
    contradictory = [rows for rows in others if len(set(table.labels[rows].tolist()) - {-1}) > 1]
    harmless = [rows for rows in others if len(set(table.labels[rows].tolist()) - {-1}) <= 1]
    bad, rest = [], []
    if leaks:
        what = f"{counted(len(leaks), 'picture')} {_is(leaks)} both trained on and tested, byte for byte"
        advice = "Numbers will come out too good: keep one of each"
        bad.append(Finding(what, advice, _shown(table, leaks, parts)))
    if contradictory:
        what = f"{counted(len(contradictory), 'picture')} {_is(contradictory)} in more than one class, byte for byte"
        advice = "No model can be right about both: keep one of each"
        bad.append(Finding(what, advice, _shown(table, contradictory, parts)))
    if harmless:
        what = f"{counted(len(harmless), 'picture')} {_is(harmless)} there more than once, byte for byte"
        advice = "A copy is found without any skill, and counts twice: keep one of each"
        rest.append(Finding(what, advice, _shown(table, harmless, parts)))
    return bad, rest


def _is(groups: list[list[int]]) -> str:
    return "is" if len(groups) == 1 else "are"


def _both_sides(parts: NDArray[np.str_]) -> bool:
    there = set(parts.tolist())
    return bool(there & {"train", "val"}) and bool(there & set(TESTED))


def _shown(table: Table, groups: list[list[int]], parts: NDArray[np.str_]) -> tuple[str, ...]:
    def name(row: int) -> str:
        return f"{row_name(table, row)}{f' ({parts[row]})' if parts[row] else ''}"

    return first([" = ".join(map(name, rows)) for rows in groups], MOST_GROUPS)
