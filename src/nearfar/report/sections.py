"""The sections of a run's report that its files alone fill: summary, curves, configuration, environment."""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from nearfar.data import Table
from nearfar.durations import duration
from nearfar.report import figures, style
from nearfar.report.files import RunFiles
from nearfar.report.markup import Markup, text
from nearfar.report.page import Page, number

Floats = npt.NDArray[np.float64]
HEADLINE = ("recall@1", "map@r", "r_precision", "map")


def summary(page: Page, files: RunFiles, table: Table) -> None:
    """What came out, before and after."""
    section = page.section("Summary")
    metrics = files.metrics
    before, after = metrics.get("before") or {}, metrics.get("after") or {}
    things = "images" if table.images is not None else "rows"
    cards = [(_shown(name, after[name]), name, _change(name, before, after)) for name in HEADLINE if name in after][:2]
    if "train_seconds" in metrics:
        cards.append((duration(metrics["train_seconds"]), f"{metrics.get('steps', 0):,} steps", "of training"))
    cards.append((f"{table.num_classes:,}", "classes measured", f"{len(table):,} {things}"))
    section.markup(_cards(cards))
    kind = "classes"
    if "open_set" in metrics:
        kind = "classes that training has not seen" if metrics["open_set"] else "known classes"
    measured_on = metrics.get("measured_on", "given")
    words = f"Measured on the {measured_on} rows: {len(table):,} {things} of {table.num_classes:,} {kind}."
    if (step := best_step(files)) is not None:
        words += f" The best epoch was chosen on the validation rows, at step {step:,.0f}."
    section.paragraph(words)
    names = [name for name in after if isinstance(after[name], (int, float))]
    main = [name for name in names if name.startswith("recall@") or name in HEADLINE or name.endswith("accuracy")]
    for chosen, fold in ((main, ""), ([name for name in names if name not in main], "All other metrics")):
        if chosen:
            rows = [
                [
                    name,
                    _shown(name, before[name]) if name in before else "",
                    _shown(name, after[name]),
                    _change(name, before, after, short=True),
                ]
                for name in chosen
            ]
            caption = "" if fold else "Before: the model as training began. Change: in points of per cent."
            section.table(["metric", "before", "after", "change"], rows, caption=caption, fold=fold)


def best_step(files: RunFiles) -> float | None:
    """The step whose model was kept, where validation chose one."""
    best = files.metrics.get("best")
    return float(best["step"]) if isinstance(best, Mapping) and "step" in best else None


def _cards(cards: Sequence[tuple[str, str, str]]) -> Markup:
    inside = "".join(
        f'<div class="card"><b>{text(value)}</b>{text(name)}<span>{text(more)}</span></div>'
        for value, name, more in cards
    )
    return Markup(f'<div class="cards">{inside}</div>')


def _shown(name: str, value: float) -> str:
    """Shares in per cent; thresholds and counts as they are."""
    share = isinstance(value, float) and 0 <= value <= 1 and "threshold" not in name
    return f"{100 * value:.1f} %" if share else number(value)


def _change(name: str, before: Mapping[str, float], after: Mapping[str, float], short: bool = False) -> str:
    """In points of per cent; nothing where a metric is no share or has no value before."""
    if not all(name in values and _shown(name, values[name]).endswith("%") for values in (before, after)):
        return ""
    points = 100 * (after[name] - before[name])
    return f"{points:+.1f}" if short else f"{points:+.1f} points, from {100 * before[name]:.1f} %"


def curves(page: Page, files: RunFiles) -> None:
    """How training went."""
    columns = files.curves
    if "step" not in columns:
        return
    steps = columns["step"]

    def series(*names: str) -> dict[str, tuple[Floats, Floats]]:
        return {
            name: (steps[there], columns[name][there])
            for name in names
            if name in columns and (there := np.isfinite(columns[name])).any()
        }

    marked = best_step(files)
    drawings = [
        (series("loss"), "loss", False, None, "The loss by training step."),
        (series("s_p", "s_n"), "mean similarity", False, None,
         "Mean similarity in training batches, of positive pairs (s_p) and of negative pairs (s_n)."),
        (series("recall@1", "map@r", "test recall@1", "test map@r"), "retrieval", True, marked,
         "Retrieval on the validation rows, which choose the best step."),
    ]  # fmt: skip
    if any(lines for lines, *_ in drawings):
        section = page.section("Curves")
        for lines, label, shares, step, caption in drawings:
            if lines:
                section.figure(style.svg(figures.curves(lines, label, marked=step, shares=shares)), caption)


def settings(page: Page, files: RunFiles) -> None:
    """What was asked for, and on which machine it ran."""
    if files.config_text:
        section = page.section("Configuration")
        section.paragraph("Repeat it with nearfar train --config config.yaml --out NEW.")
        section.folded("config.yaml", files.config_text)
    if files.environment:
        section = page.section("Environment")
        rows = [[name, str(value)] for name, value in files.environment.items() if name != "packages"]
        rows += [
            [name, str(version)]
            for name, version in (files.environment.get("packages") or {}).items()
            if name != "nearfar"
        ]
        section.table(["what", "which"], rows)
