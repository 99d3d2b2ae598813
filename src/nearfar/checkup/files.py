"""Unreadable files and exact duplicates."""

import numpy as np
from numpy.typing import NDArray

from nearfar.checkup.finding import Finding, first
from nearfar.data import Table
from nearfar.data.survey import Survey, row_name
from nearfar.training.progress import counted

MOST_FILES = 200  # listed files
MOST_GROUPS = 5
TESTED = ("test", "query", "gallery")


def unreadable(table: Table, survey_result: Survey, most: float) -> list[Finding]:
    """Find unreadable files; `most` is the share that training tolerates."""
    count, total = len(survey_result.broken), len(table)
    if not count:
        return []
    what = f"{count:,} of {counted(total, 'picture')} cannot be read, and are left out"
    advice = "Repair or remove them"
    if count > most * total:
        what = f"{count:,} of {counted(total, 'picture')} cannot be read: more than max_broken={most:g} allows"
        advice = "Check the disk and the copy. Repair or remove the files, or allow more with --max_broken"
    return [Finding(what, advice, first(survey_result.listed(table), MOST_FILES))]


def identical(
    table: Table, fingerprints: NDArray[np.str_], parts: NDArray[np.str_]
) -> tuple[list[Finding], list[Finding]]:
    """Find identical files: those across the split or with two labels, which do harm, and the others.

    Args:
        fingerprints: the fingerprint of each row; "" for none.
        parts: the split of each row: "train", "val", "test", or "" for none.
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
        advice = "Metrics will be too high: keep one of each"
        bad.append(Finding(what, advice, _shown(table, leaks, parts)))
    if contradictory:
        what = f"{counted(len(contradictory), 'picture')} {_is(contradictory)} in more than one class, byte for byte"
        advice = "No model can be right about both: keep one of each"
        bad.append(Finding(what, advice, _shown(table, contradictory, parts)))
    if harmless:
        what = f"{counted(len(harmless), 'picture')} {_is(harmless)} contained more than once, byte for byte"
        advice = "A copy is trivial to find, and counts twice: keep one of each"
        rest.append(Finding(what, advice, _shown(table, harmless, parts)))
    return bad, rest


def _is(groups: list[list[int]]) -> str:
    return "is" if len(groups) == 1 else "are"


def _both_sides(parts: NDArray[np.str_]) -> bool:
    names = set(parts.tolist())
    return bool(names & {"train", "val"}) and bool(names & set(TESTED))


def _shown(table: Table, groups: list[list[int]], parts: NDArray[np.str_]) -> tuple[str, ...]:
    def name(row: int) -> str:
        return f"{row_name(table, row)}{f' ({parts[row]})' if parts[row] else ''}"

    return first([" = ".join(map(name, rows)) for rows in groups], MOST_GROUPS)
