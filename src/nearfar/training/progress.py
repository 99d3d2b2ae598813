"""Progress display: a bar on a terminal, lines elsewhere."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table as RichTable

BETWEEN_FRAMES = 0.3  # seconds; drawing takes milliseconds from training
BETWEEN_LINES = 30.0  # seconds, without a terminal
BEFORE_A_BAR = 1.0  # seconds


class Display:
    """The bar and notes of a run; silent if `quiet`."""

    def __init__(self, quiet: bool = False):
        self.quiet = quiet
        self.console = Console(stderr=True, quiet=quiet, highlight=False)
        self._bar: Progress | None = None
        self._shown = 0.0
        self._recall = ""

    def note(self, text: str) -> None:
        """Print a line above the bar."""
        self.console.print(text, markup=False, soft_wrap=True)

    def start(self, total: int, done: int) -> None:
        """Start the bar."""
        self._shown = time.monotonic()
        if not self.console.is_terminal or self.quiet:
            return
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[numbers]}"),
            TimeRemainingColumn(),
            TextColumn("left"),
        )
        self._bar = Progress(*columns, console=self.console, auto_refresh=False)
        self._task = self._bar.add_task("training", total=total, completed=done, numbers="")
        self._bar.start()

    @contextlib.contextmanager
    def looking(self, what: str, total: int) -> Iterator[Callable[[int], None]]:
        """Show the progress of work other than training steps, unless it is short.

        Yields a function to call with the number of images done.
        """
        done, shown = 0, time.monotonic()
        bar: Progress | None = None

        def advance(count: int) -> None:
            nonlocal done, shown, bar
            done += count
            wait = (
                BETWEEN_LINES if not self.console.is_terminal else BETWEEN_FRAMES if bar is not None else BEFORE_A_BAR
            )
            if self.quiet or time.monotonic() - shown < wait:
                return
            shown = time.monotonic()
            if not self.console.is_terminal:
                self.note(f"{what}: {done:,} of {total:,}")
                return
            if bar is None:
                columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
                bar = Progress(*columns, TextColumn("left"), console=self.console, auto_refresh=False, transient=True)
                bar.add_task(what, total=total)
                bar.start()
            bar.update(bar.task_ids[0], completed=done, refresh=True)

        try:
            yield advance
        finally:
            if bar is not None:
                bar.stop()

    def due(self) -> bool:
        """Whether it is time to update the display."""
        if self.quiet:
            return False
        return time.monotonic() - self._shown > (BETWEEN_FRAMES if self._bar is not None else BETWEEN_LINES)

    def step(self, done: int, total: int, numbers: Mapping[str, float]) -> None:
        """Show the progress of training; call it when `due`, since drawing is slow."""
        self._shown = time.monotonic()
        text = "  ".join(f"{name} {value:.3f}" for name, value in numbers.items())
        if self._bar is not None:
            self._bar.update(self._task, completed=done, numbers=f"{text}{self._recall}", refresh=True)
        else:
            self.note(f"step {done:,} of {total:,}  {text}{self._recall}")

    def measured(self, epoch: int, step: int, metrics: Mapping[str, Any], best: bool) -> None:
        """Show the metrics on the validation classes."""
        self._recall = f"  R@1 {metrics['recall@1']:.1%}" if "recall@1" in metrics else ""
        shown = "  ".join(f"{name} {metrics[name]:.1%}" for name in ("recall@1", "map@r") if name in metrics)
        self.note(f"epoch {epoch}, step {step:,}: validation {shown}{'  (best so far)' if best else ''}")

    def close(self) -> None:
        """Close the bar."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def shown(name: str, value: float) -> str:
    """Format a metric: shares in per cent, thresholds as similarities.

    >>> shown("recall@1", 0.957), shown("lfw threshold@far=0.001", 0.3456)
    ('95.7%', '0.346')
    """
    return f"{value:.3f}" if "threshold" in name else f"{value:.1%}"


def print_table(title: str, columns: Mapping[str, Mapping[str, float | str]]) -> None:
    """Print metrics (rows) of several models (columns) on standard output; strings are printed unchanged."""
    table = RichTable(show_header=any(columns))
    table.add_column("")
    for name in columns:
        table.add_column(name, justify="right")
    for row in {name: None for values in columns.values() for name in values}:
        cells = (values.get(row, "") for values in columns.values())
        table.add_row(row, *(value if isinstance(value, str) else shown(row, value) for value in cells))
    console = Console(file=sys.stdout, highlight=False, markup=False)
    console.print(title, soft_wrap=True)  # do not wrap a long title
    console.print(table)


def counted(number: int, singular: str, plural: str | None = None) -> str:
    """Format a number with its noun.

    >>> counted(1, "class", "classes"), counted(2000, "picture")
    ('1 class', '2,000 pictures')
    """
    return f"{number:,} {singular if number == 1 else plural or singular + 's'}"
