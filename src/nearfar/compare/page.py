"""`report.html` of a comparison: the leaderboard, the differences, and the search."""

import math
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from nearfar.compare.budget import omissions
from nearfar.compare.leaderboard import RANKED_BY, Leaderboard
from nearfar.compare.query_metrics import METRICS
from nearfar.compare.search import SearchResult
from nearfar.compare.terminal import HEADINGS, claim, effort, of_codes, shown
from nearfar.report import Page, style
from nearfar.report.page import Cell
from nearfar.training.progress import counted

ROW_HEIGHT = 0.27  # inches


def write_page(board: Leaderboard, result: SearchResult, path: Path) -> None:
    """Write the page."""
    page = Page("Which loss is best on these data?", f"nearfar compare {board.facts['data']}")
    _leaderboard(page, board)
    _differences(page, board)
    _search(page, board, result)
    page.write(path)


def _leaderboard(page: Page, board: Leaderboard) -> None:
    facts = board.facts
    section = page.section("Leaderboard")
    section.paragraph(
        f"{board.winner} has the highest MAP@R of the losses. {board.against(board.winner)} {claim(board)}"
    )
    section.paragraph(
        f"{facts['test_images']:,} images of {facts['test_classes']:,} classes that were not used for training or "
        f"choices, {facts['queries']:,} queries. Every loss had the same "
        f"{'network' if facts['finetuned'] else 'features'} ({facts['backbone']}), head, dimension "
        f"({facts['dimension']}), batches and steps, {effort(facts)} on {counted(facts['folds'], 'fold')} of the "
        f"{facts['train_classes']:,} training classes, and {counted(facts['seeds'], 'run')} of the best setting. "
        + omissions(facts)
    )
    if facts.get("cosines"):
        section.paragraph(of_codes(facts["cosines"]))
    section.figure(
        style.svg(forest(board)),
        "MAP@R on the test classes, with separate 95 % intervals over classes and seeds for each contestant. "
        "Contestants with overlapping bars may still differ significantly, since they share the classes: see below. "
        "Dashed: the better baseline.",
        wide=True,
    )
    section.table(
        ["", *(HEADINGS[name] for name in METRICS), "validation", "ms a step", "peak MB", "against the baselines"],
        [_line(board, rank) for rank in range(len(board.rows))],
        caption="In per cent; ±: 95 % interval over seeds only, for other runs on the same classes.",
        bold=[rank for rank, row in enumerate(board.rows) if row.name == board.winner],
    )


def _line(board: Leaderboard, rank: int) -> list[Cell]:
    row = board.rows[rank]
    return [
        row.name,
        *(shown(row.metrics[name]) for name in METRICS),
        None if row.validation is None else f"{100 * row.validation:.2f}",
        None if row.step_seconds is None else f"{1000 * row.step_seconds:.1f}",
        None if row.peak_bytes is None else round(row.peak_bytes / 1e6),
        board.verdict(row.name),
    ]


def forest(board: Leaderboard) -> Figure:
    """Draw the means with their intervals over classes and seeds, the best on top."""
    rows = board.rows
    values = np.array([row.metrics[RANKED_BY].value for row in rows])
    errors = np.array([[m.value - m.low, m.high - m.value] for m in (row.metrics[RANKED_BY] for row in rows)]).T
    with style.figure(2 * style.WIDTH, 0.8 + ROW_HEIGHT * len(rows)) as drawn:
        axes = drawn.subplots()
        for baseline, colour, marker in ((False, style.ONE, "o"), (True, style.TWO, "s")):
            chosen = [rank for rank, row in enumerate(rows) if row.baseline is baseline]
            axes.errorbar(values[chosen], chosen, xerr=errors[:, chosen], fmt=marker, color=colour, markersize=5)
        best = max(row.metrics[RANKED_BY].value for row in rows if row.baseline)
        axes.axvline(best, color=style.FAINT, linewidth=1, linestyle=(0, (4, 3)))
        axes.set_yticks(range(len(rows)), [row.name for row in rows])
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.grid(axis="y", visible=False)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{100 * x:.4g} %"))
    return drawn


def _differences(page: Page, board: Leaderboard) -> None:
    section = page.section("Differences")
    section.paragraph(
        "MAP@R of the row minus that of the column, in points. Differences in parentheses are not significant for "
        "other classes and other seeds (Student's errors of both, paired by query and seed; Holm's correction, 5 % for "
        f"all {len(board.pairs):,} pairs together)."
    )
    names = [row.name for row in board.rows]
    section.table(
        ["", *(str(rank) for rank in range(1, len(names) + 1))],
        [
            [f"{rank}. {name}", *(_difference(board, name, other) for other in names)]
            for rank, name in enumerate(names, 1)
        ],
    )


def _difference(board: Leaderboard, name: str, other: str) -> str:
    if name == other:
        return "·"
    pair = board.pair(name, other)
    value = 100 * (pair.difference if pair.second == name else -pair.difference)
    return f"{value:+.2f}" if pair.significant else f"({value:+.2f})"


def _search(page: Page, board: Leaderboard, result: SearchResult) -> None:
    section = page.section("Search")
    facts = board.facts
    section.paragraph(
        f"{counted(facts['trials'], 'setting')} of a loss with three hyper-parameters, and of others in proportion, "
        "the defaults first; a setting worse than the median of its predecessors was pruned. Each half of a fold's "
        "classes is evaluated at the epoch that is best for the other half. The initial model has a MAP@R of "
        f"{100 * facts['start']:.2f} % on the folds."
    )
    section.figure(
        style.svg(progress(result, facts["start"])),
        "The best setting so far, on the folds, against the start, by the number of settings tried.",
        wide=True,
    )
    section.table(
        ["loss", "best setting", "MAP@R on the folds", "its defaults", "settings", "given up", "diverged", "seconds"],
        [_tried(result, name) for name in result.trials],
    )


def _tried(result: SearchResult, name: str) -> list[Cell]:
    trials, best = result.trials[name], result.best(name)
    return [
        name,
        ", ".join(f"{key.removeprefix('loss.')} {_plain(value)}" for key, value in best.setting.items()),
        f"{best.value:.2%}",
        f"{trials[0].value:.2%}",
        len(trials),
        sum(trial.pruned for trial in trials),
        sum(any(outcome.diverged for outcome in trial.outcomes) for trial in trials),
        round(sum(trial.seconds for trial in trials), 1),
    ]


def _plain(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def progress(result: SearchResult, start: float) -> Figure:
    """Draw the best value so far, relative to the start, as a line for each loss, named at its end."""
    with style.figure(2 * style.WIDTH, 1.4 * style.HEIGHT) as drawn:
        axes = drawn.subplots()
        for number, (name, trials) in enumerate(result.trials.items()):
            colour, line, marker = style.SERIES[number % len(style.SERIES)]
            best = -math.inf
            values = []
            for trial in trials:
                best = best if trial.pruned else max(best, trial.value)
                values.append(100 * (best - start))
            axes.plot(range(1, len(values) + 1), values, line, color=colour, marker=marker, markersize=3)
            axes.annotate(name, (len(values), values[-1]), (5, 0), textcoords="offset points", va="center", fontsize=8)
        axes.axhline(0, color=style.FAINT, linewidth=1)
        axes.set(xlabel="settings tried", ylabel="points of MAP@R above the start")
        axes.xaxis.set_major_locator(MaxNLocator(10, integer=True))
    return drawn
