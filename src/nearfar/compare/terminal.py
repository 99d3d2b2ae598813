"""Terminal output of a comparison: progress as a table, or as lines in a log; the leaderboard at the end."""

import math
import sys
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.live import Live as RichLive
from rich.table import Table as RichTable

from nearfar.compare.budget import omissions
from nearfar.compare.leaderboard import Leaderboard
from nearfar.compare.query_metrics import METRICS
from nearfar.compare.search import Trial
from nearfar.compare.spaces import share
from nearfar.compare.statistics import Mean
from nearfar.training.progress import counted
from nearfar.training.runs import Run

HEADINGS = {"map@r": "MAP@R", "r_precision": "R-precision", "recall@1": "Recall@1"}
WIDTH = 80  # columns of the result
SIGNS = {"better": "+", "cannot": "?", "worse": "-"}  # by a verdict's first word


class ProgressView:
    """Shows progress, unless `quiet`. A context: the table is visible while it is open."""

    def __init__(self, quiet: bool = False):
        self._console = Console(stderr=True, quiet=quiet, highlight=False)
        self._trials: int | None = None
        self._seeds = 0
        self._lines: dict[str, list[str]] = {}
        self._start = math.nan
        self._table: RichLive | None = None
        if self._console.is_terminal and not quiet:
            self._table = RichLive(console=self._console, auto_refresh=False)

    def __enter__(self) -> "ProgressView":
        if self._table is not None:
            self._table.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._table is not None:
            self._table.stop()

    def note(self, text: str) -> None:
        """Print a line above the table."""
        self._console.print(text, markup=False, soft_wrap=True)

    def begin(self, contestants: Sequence[str], seeds: int, trials: int | None) -> None:
        """Set the contestants, their runs and rounds of settings (None: as many as the time allows)."""
        self._trials, self._seeds = trials, seeds
        self._lines = {name: ["", "", "", ""] for name in contestants}

    def starts_at(self, value: float) -> None:
        """Set the metric on the validation classes before any step."""
        self._start = value

    def trial(self, trial: Trial, best: Trial) -> None:
        """Show a tried setting."""
        state = "given up" if trial.pruned else "diverged" if trial.outcomes[-1].diverged else f"{trial.value:.2%}"
        done = f"{trial.number + 1}" + ("" if self._trials is None else f" of {share(trial.loss, self._trials)}")
        self._lines[trial.loss][:3] = [done, state, f"{best.value:.2%} ({best.value - self._start:+.2%})"]
        self._show(f"{trial.loss}: setting {done}: {state}; best {best.value:.2%}, {trial.seconds:.1f} s")

    def retrained(self, name: str, seed: int, run: Run) -> None:
        """Show a finished run of a loss's best setting."""
        self._lines[name][3] += f"{run.metrics['best']['value']:.2%} " if run.metrics["best"] else "done "
        self._show(f"{name}: its best setting is trained with seed {seed}")

    def _show(self, line: str) -> None:
        if self._table is None:
            self.note(line)
            return
        table = RichTable("loss", "settings", "last", "best (against the start)", f"{self._seeds} runs of the best")
        table.title = "on held-out training classes"
        table.title_justify = "left"
        for name, cells in self._lines.items():
            table.add_row(name, *cells)
        self._table.update(table, refresh=True)


def print_leaderboard(board: Leaderboard) -> None:
    """Print a leaderboard on standard output."""
    facts = board.facts
    table = RichTable(box=SIMPLE, title_justify="left", pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("", no_wrap=True)
    for metric in METRICS:
        table.add_column(HEADINGS[metric], justify="right", no_wrap=True)
    for heading in ("ms/step", "MB", ""):
        table.add_column(heading, justify="right", no_wrap=True)
    equal = set(board.equals(board.rows[0].name))
    for row in board.rows:
        cost = [
            "" if row.step_seconds is None else f"{1000 * row.step_seconds:.1f}",
            "" if row.peak_bytes is None else f"{row.peak_bytes / 1e6:.0f}",
        ]
        sign = SIGNS.get(board.verdict(row.name).partition(" ")[0], "")
        metrics = [shown(row.metrics[metric]) for metric in METRICS]
        table.add_row(row.name, *metrics, *cost, ("≈" if row.name in equal else "") + sign)
    print(
        f"{facts['data']}: {facts['test_images']:,} images of {facts['test_classes']:,} unseen classes\n"
        f"{effort(facts)}, {counted(facts['seeds'], 'run')} of the best; in per cent"
    )
    if short := omissions(facts):
        print(textwrap.fill(short, WIDTH))
    if facts.get("cosines"):
        print(textwrap.fill(of_codes(facts["cosines"]), WIDTH))
    Console(file=sys.stdout, highlight=False).print(table)
    print(
        "±  95 % interval over seeds only, for other runs on the same classes\n"
        "+  better than the baselines    -  worse than one of them    ?  cannot be told\n"
        "≈  cannot be told from the first"
    )
    verdicts = f"{board.against(board.rows[0].name)} {claim(board)}"
    print(textwrap.fill(board.outdated or verdicts, WIDTH))
    print(f"the winner, trained:   {board.run}")
    print(f"look at it:            {board.folder / 'report.html'}")


def of_codes(cosines: Mapping[str, float]) -> str:
    """Describe how binary codes are compared, and the MAP@R of the vectors before binarisation."""
    each = ", ".join(f"{name} {100 * value:.2f}" for name, value in cosines.items())
    return (
        "The heads produce binary codes, compared by Hamming distance, as in search. MAP@R by cosine, before "
        f"binarisation: {each}."
    )


def effort(facts: Mapping[str, Any]) -> str:
    """Describe the number of tried settings."""
    counts = facts.get("settings", {}).values()
    if len(set(counts)) < 2:
        return f"{counted(facts['trials'], 'setting')} of each loss"
    return f"{min(counts)} to {max(counts)} settings of each loss (more for more hyper-parameters)"


def claim(board: Leaderboard) -> str:
    """Describe the scope of the verdicts."""
    facts = board.facts
    return (
        f"Verdicts rest on {counted(facts['test_classes'], 'class', 'classes')} and {counted(facts['seeds'], 'run')} "
        f"and hold for others of their kind; the chance of any false one among all {len(board.pairs):,} pairs is 5 %."
    )


def shown(mean: Mean) -> str:
    """Format in per cent, with the half-width of the interval over seeds if there are several."""
    return f"{100 * mean.value:.2f}" + ("" if math.isnan(mean.seeds) else f" ± {100 * mean.seeds:.2f}")
