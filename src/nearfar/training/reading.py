"""Open a data set without its unreadable images: the first step of every command that takes data.

table, survey = open_readable(config.data, display)
"""

from nearfar.data import Table
from nearfar.data.opening import reopen
from nearfar.data.survey import Survey, survey
from nearfar.training.config import DataConfig
from nearfar.training.progress import Display


def open_readable(data: DataConfig, display: Display | None = None) -> tuple[Table, Survey]:
    """Open data: the readable rows, and the survey of all rows; `display` shows what is left out."""
    return readable(reopen(data.path, data.layout), data.max_broken, display, data.path)


def readable(
    table: Table, max_broken: float, display: Display | None = None, data: str | None = None
) -> tuple[Table, Survey]:
    """The readable rows of a table, and the survey of all rows.

    Args:
        max_broken: the largest share of rows that may be unreadable; more raise an error.
        display: shows what is left out; None shows nothing.
        data: the user's name for the table, for messages.
    """
    display = display or Display(quiet=True)
    with display.looking("reading every image once", len(table)) as advance:
        result = survey(table, advance)
    result.check(table, max_broken)
    for line in result.report(table, data):
        display.note(line)
    return result.readable_rows(table), result
