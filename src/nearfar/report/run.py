"""The report of a run: `report.html`, from the files of its folder and the embeddings of the rows it is measured on."""

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from nearfar.data import Table
from nearfar.foundation.run_folder import RunFolder
from nearfar.report import sections
from nearfar.report.measured import Measured, row_name
from nearfar.report.page import Page

Floats = npt.NDArray[np.float32]
BROKEN = 50  # names of broken images


def write_run_report(
    folder: str | os.PathLike[str],
    embeddings: Floats,
    table: Table,
    *,
    binary: bool = False,
    notes: Sequence[str] = (),
    seed: int = 0,
) -> Path:
    """Write `report.html` into a run's folder.

    Args:
        folder: a run; what is there of metrics.json, curves.csv, config.yaml and environment.json is shown.
        embeddings: (N, D) of the rows the run is measured on; those of unreadable images are NaN.
        table: these rows.
        binary: whether the signs of the embeddings are what counts, as of a hashing head.
        notes: what is to be said of them, such as what has changed since the run began.
        seed: draws the samples that keep the page small.
    """
    page = run_page(folder, embeddings, table, binary=binary, notes=notes, seed=seed)
    return page.write(Path(folder) / "report.html")


def run_page(
    folder: str | os.PathLike[str],
    embeddings: Floats,
    table: Table,
    *,
    binary: bool = False,
    notes: Sequence[str] = (),
    seed: int = 0,
) -> Page:
    """The page of a run."""
    if len(embeddings) != len(table):
        raise ValueError(f"{len(embeddings)} embeddings for {len(table)} rows of {table.name}: they must be the same")
    run = RunFolder(folder)
    losses = " + ".join(str(loss.get("name")) for loss in run.losses) or "a run"
    page = Page(f"{table.name}: {losses}", f"A run of nearfar in {run.folder.name}")
    sections.summary(page, run, table, notes)
    sections.curves(page, run)
    Measured(embeddings, table, run, seed, binary=binary).add_to(page)
    _problems(page, embeddings, table)
    sections.settings(page, run)
    return page


def _problems(page: Page, embeddings: Floats, table: Table) -> None:
    section = page.section("Data problems")
    broken = np.flatnonzero(np.isnan(embeddings).any(1))
    sizes = np.unique(table.labels[table.labels >= 0], return_counts=True)[1]
    alone, without = int((sizes == 1).sum()), int((table.labels < 0).sum())
    found = []
    if len(broken):
        found.append(f"{len(broken):,} of {len(table):,} images could not be read.")
    if alone:
        found.append(f"{alone:,} classes have one image alone: nothing can be found for it.")
    if without:
        found.append(f"{without:,} rows have no label.")
    for words in [*found, *table.notes]:
        section.paragraph(words)
    if not found and not table.notes:
        section.paragraph(f"None seen: all {len(table):,} images could be read, and every class has two or more.")
    if len(broken):
        names = [row_name(table, int(row)) for row in broken[:BROKEN]]
        more = [f"... and {len(broken) - BROKEN:,} more"] if len(broken) > BROKEN else []
        section.folded(f"The images that could not be read (at most {BROKEN})", "\n".join([*names, *more]))
