"""The sections of a run's report from its files: summary, curves, configuration and environment."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from nearfar.data import Table
from nearfar.evaluation.class_means import interval_note
from nearfar.foundation.durations import duration
from nearfar.foundation.run_folder import RunFolder
from nearfar.report import figures, style
from nearfar.report.markup import Markup, text
from nearfar.report.page import Page, number

Floats = npt.NDArray[np.float64]
HEADLINE = ("recall@1", "map@r", "r_precision", "map")


COLUMNS = {"features": "pretrained features", "start": "start", "trained": "after"}


def summary(page: Page, run: RunFolder, table: Table, notes: Sequence[str] = ()) -> None:
    """Add the summary: the verdict, and the metrics of all candidates."""
    section = page.section("Summary")
    metrics = run.metrics
    after = metrics.get("after") or {}
    unit = "images" if table.images is not None else "rows"
    if metrics.get("verdict"):
        section.paragraph(metrics["verdict"])
    cards = [(_shown(name, after[name]), name, _change(name, metrics)) for name in HEADLINE if name in after][:2]
    if "train_seconds" in metrics:
        cards.append((duration(metrics["train_seconds"]), f"{metrics.get('steps', 0):,} steps", "of training"))
    cards.append((f"{table.num_classes:,}", "classes measured", f"{len(table):,} {unit}"))
    section.markup(_cards(cards))
    kind = "classes"
    if "open_set" in metrics:
        kind = "classes unseen in training" if metrics["open_set"] else "known classes"
    measured_on = metrics.get("measured_on", "given")
    description = f"Measured on the {measured_on} rows: {len(table):,} {unit} of {table.num_classes:,} {kind}."
    if (step := best_step(run)) is not None:
        description += f" The best epoch was chosen on the validation rows, at step {step:,.0f}."
    if metrics.get("compared_by") == "hamming":
        description += (
            " The model has binary codes, compared by Hamming distance as in search. Metrics named cosine are those of "
            "the real-valued outputs before binarisation."
        )
    section.paragraph(description)
    if "norms" in metrics:
        section.paragraph(f"The loss was trained on embeddings {metrics['norms']}. All metrics use their cosines.")
    for note in notes:
        section.paragraph(f"Note: {note}.")
    names = [name for name in after if isinstance(after[name], (int, float))]
    main = [
        name
        for name in names
        if name.startswith("recall@") or name.removeprefix("cosine ") in HEADLINE or name.endswith("accuracy")
    ]
    candidates = _candidates(metrics)
    header = ["metric", *(f"{COLUMNS[name]}{' (kept)' if name == metrics.get('kept') else ''}" for name in candidates)]
    for chosen, fold in ((main, ""), ([name for name in names if name not in main], "All other metrics")):
        if chosen:
            rows = [[name, *(_with_interval(name, values) for values in candidates.values())] for name in chosen]
            caption = "" if fold else f"{interval_note(table.num_classes)}."
            section.table(header, rows, caption=caption, fold=fold)


def _candidates(metrics: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The columns of the table. Older runs only have those before and after training."""
    candidates: dict[str, Mapping[str, Any]] = dict(metrics.get("candidates") or {})
    if not candidates:
        known = {"start": metrics.get("before"), "trained": metrics.get("after")}
        candidates = {name: {"metrics": values, "intervals": {}} for name, values in known.items() if values}
    return candidates


def _with_interval(name: str, candidate: Mapping[str, Any]) -> str:
    if name not in candidate["metrics"]:
        return ""
    value, interval = _shown(name, candidate["metrics"][name]), candidate["intervals"].get(name)
    if interval is None or not value.endswith("%"):
        return value
    return f"{value} ({100 * interval[0]:.1f} to {100 * interval[1]:.1f})"


def best_step(run: RunFolder) -> float | None:
    """The step of the kept model; None if validation did not choose one."""
    best = run.metrics.get("best")
    return float(best["step"]) if isinstance(best, Mapping) and "step" in best else None


def _cards(cards: Sequence[tuple[str, str, str]]) -> Markup:
    inside = "".join(
        f'<div class="card"><b>{text(value)}</b>{text(name)}<span>{text(more)}</span></div>'
        for value, name, more in cards
    )
    return Markup(f'<div class="cards">{inside}</div>')


def _shown(name: str, value: float) -> str:
    """Format a metric: shares in per cent, thresholds and counts as numbers."""
    share = isinstance(value, float) and 0 <= value <= 1 and "threshold" not in name
    return f"{100 * value:.1f} %" if share else number(value)


def _change(name: str, metrics: Mapping[str, Any]) -> str:
    """The change of a metric by training, in percentage points; "" if it is not known."""
    candidates = _candidates(metrics)
    if metrics.get("kept") == next(iter(candidates), None):
        return COLUMNS[metrics["kept"]] if metrics["kept"] == "features" else "before training"
    base: Mapping[str, Any] = next(
        (values["metrics"] for values in candidates.values() if name in values["metrics"]), {}
    )
    after = metrics["after"]
    if not all(name in values and _shown(name, values[name]).endswith("%") for values in (base, after)):
        return ""
    return f"{100 * (after[name] - base[name]):+.1f} points, from {100 * base[name]:.1f} %"


def curves(page: Page, run: RunFolder) -> None:
    """Add the curves of the training."""
    rows = run.curves
    if not rows or "step" not in rows[0]:
        return
    columns = {name: np.array([row[name] for row in rows], np.float64) for name in rows[0]}  # None becomes NaN
    steps = columns["step"]

    def series(*names: str) -> dict[str, tuple[Floats, Floats]]:
        """The series with at least two points."""
        return {
            name: (steps[finite], columns[name][finite])
            for name in names
            if name in columns and (finite := np.isfinite(columns[name])).sum() > 1
        }

    marked = best_step(run)
    drawings = [
        (series("loss"), "loss", False, None, "Loss by training step."),
        (series("s_p", "s_n"), "mean similarity", False, None,
         "Mean similarity in training batches, of positive pairs (s_p) and of negative pairs (s_n)."),
        (series("recall@1", "map@r", "cosine map@r", "test recall@1", "test map@r"), "retrieval", True, marked,
         "Retrieval metrics on the validation rows, by which the best step is chosen."),
    ]  # fmt: skip
    if any(lines for lines, *_ in drawings):
        section = page.section("Curves")
        for lines, label, shares, step, caption in drawings:
            if lines:
                section.figure(style.svg(figures.curves(lines, label, marked=step, shares=shares)), caption)


def settings(page: Page, run: RunFolder) -> None:
    """Add the configuration and the environment."""
    if run.configuration:
        section = page.section("Configuration")
        section.paragraph("Repeat it with nearfar train --config config.yaml --out NEW.")
        section.folded("config.yaml", run.configuration)
    if environment := run.environment:
        section = page.section("Environment")
        rows = [[name, str(value)] for name, value in environment.items() if name != "packages"]
        rows += [
            [name, str(version)] for name, version in (environment.get("packages") or {}).items() if name != "nearfar"
        ]
        section.table(["name", "value"], rows)
