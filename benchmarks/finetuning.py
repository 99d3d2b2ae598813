"""Recall@1 of CUB-200-2011's unseen classes while a network is fine-tuned: curves of runs, drawn and tabulated.

    nearfar train CUB_200_2011 ... --evaluation.watch_test --out RUN
    python -m benchmarks finetuning RUN

keeps the epochs of the run in benchmarks/results/finetuning.csv (by its name), and writes docs/figures/finetuning.* and
the table of docs/training.md from all that are there.
"""

import csv
from pathlib import Path

import matplotlib as mpl
from matplotlib import pyplot as plt

from benchmarks.charts import GREY, SETTINGS
from benchmarks.results import ROOT
from benchmarks.tables import markdown
from benchmarks.tables import replace as write_between
from nearfar.training.runs import Run

CSV = ROOT / "benchmarks" / "results" / "finetuning.csv"
COLUMNS = ("run", "loss", "epoch", "minutes", "recall@1", "map@r")
# Plain PyTorch with pytorch-metric-learning's Proxy-Anchor, on the same machine and a copy of like quality: epochs of
# 1,325 s / 3; crops of 224, batches of 90, AdamW 1e-4, proxies x 100, random head, avg+max pooling, BN frozen.
PEER = ("PyTorch + pytorch-metric-learning", [(1325 / 3 / 60 * (i + 1), r) for i, r in enumerate((58.9, 62.0, 62.9))])
COLOURS, MARKERS = ("#0072B2", "#009E73", "#CC79A7", "#E69F00"), "oD^v"

Rows = list[dict[str, str]]


def epochs(run: Run) -> Rows:
    """What the run measured of its test classes, before and after every epoch."""
    loss = " + ".join(loss.name for loss in run.config.loss)
    before = {"epoch": 0.0, "minutes": 0.0, **{name: run.metrics["before"][name] for name in ("recall@1", "map@r")}}
    after = [
        {
            "epoch": (row["epoch"] or 0) + 1,
            "minutes": (row["seconds"] or 0) / 60,
            "recall@1": row["test recall@1"],
            "map@r": row["test map@r"] or 0,
        }
        for row in run.curves
        if row["test recall@1"] is not None
    ]
    return [
        {
            "run": run.folder.name,
            "loss": loss,
            "epoch": f"{row['epoch']:.0f}",
            "minutes": f"{row['minutes']:.1f}",
            "recall@1": f"{100 * row['recall@1']:.2f}",
            "map@r": f"{100 * row['map@r']:.2f}",
        }
        for row in [before, *after]
    ]


def keep(runs: list[Path], path: Path = CSV) -> Rows:
    """All epochs, with those of these runs in place of what was kept of them."""
    rows: Rows = []
    if path.is_file():
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
    for folder in runs:
        rows = [row for row in rows if row["run"] != folder.name] + epochs(Run(folder))
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)
    return rows


def draw(rows: Rows, folder: Path) -> None:
    """Recall@1 against minutes of training."""
    with mpl.rc_context(SETTINGS):
        figure, axes = plt.subplots(figsize=(7, 4))
        names = list(dict.fromkeys(row["run"] for row in rows))
        for name, colour, marker in zip(names, COLOURS, MARKERS, strict=False):
            own = [row for row in rows if row["run"] == name]
            axes.plot(
                [float(row["minutes"]) for row in own],
                [float(row["recall@1"]) for row in own],
                color=colour,
                marker=marker,
                label=f"nearfar, {own[0]['loss']}",
            )
        axes.plot(*zip(*PEER[1], strict=True), color="#D55E00", marker="s", linestyle="--", label=PEER[0])
        for value, text in ((66.7, "Circle's paper"), (68.4, "Proxy-Anchor's paper")):
            axes.axhline(value, color=GREY, linewidth=0.8, linestyle=":")
            axes.annotate(f"{text} {value}", (0, value), (2, 3), textcoords="offset points", fontsize=8, color=GREY)
        axes.set(xlabel="minutes of training on two cores", ylabel="Recall@1 of unseen classes, %")
        axes.legend(frameon=False, loc="lower right")
        axes.set_xlim(left=0)
        for suffix in ("svg", "png"):
            metadata = {"Date": None} if suffix == "svg" else {}
            figure.savefig(folder / f"finetuning.{suffix}", metadata=metadata, bbox_inches="tight")
        plt.close(figure)


def table(rows: Rows) -> str:
    """A line for every epoch."""
    lines = [[row["loss"], row["epoch"], row["minutes"], row["recall@1"], row["map@r"]] for row in rows]
    return markdown(["loss", "epochs", "minutes of training", "Recall@1, %", "MAP@R, %"], lines)


def measure(runs: list[Path], root: Path = ROOT) -> int:
    """Keep, draw, write; 1 if the page has no place for it."""
    rows = keep(runs)
    draw(rows, root / "docs" / "figures")
    picture = "![Recall@1 of CUB's unseen classes against minutes of fine-tuning](figures/finetuning.svg)"
    return int(not write_between(root / "docs" / "training.md", f"{picture}\n\n{table(rows)}"))
