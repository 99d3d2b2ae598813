"""A data set without what cannot be read: what every command that takes data begins with.

table, found = open_readable(config.data, display)
"""

from nearfar.data import Table
from nearfar.data.opening import reopen
from nearfar.data.survey import Survey, survey
from nearfar.training.config import DataConfig
from nearfar.training.progress import Display


def open_readable(data: DataConfig, display: Display | None = None) -> tuple[Table, Survey]:
    """The rows that can be read, and what was found of all of them; `display` is told what is left out."""
    return readable(reopen(data.path, data.layout), data.max_broken, display, data.path)


def readable(
    table: Table, max_broken: float, display: Display | None = None, data: str | None = None
) -> tuple[Table, Survey]:
    """The same of a table that is open.

    Args:
        max_broken: the share of all rows that may be unreadable; more are an error.
        display: is told what is left out; without it, nothing is said.
        data: what the user calls the table.
    """
    display = display or Display(quiet=True)
    with display.looking("reading every image once", len(table)) as advance:
        found = survey(table, advance)
    found.check(table, max_broken)
    for line in found.report(table, data):
        display.note(line)
    return found.readable_rows(table), found
