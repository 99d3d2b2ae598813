"""The report of a run: `report.html`, from the files of its folder and the embeddings of its test rows."""

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
BROKEN = 50  # listed broken images


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
        folder: the folder of a run. Its metrics.json, curves.csv, config.yaml and environment.json are shown, if they
            exist.
        embeddings: (N, D) embeddings of the rows that the run is measured on, with NaN for broken images.
        table: these rows.
        binary: whether the embeddings are binary codes, of which only the signs count.
        notes: notes for the summary, such as changes of the data since the run.
        seed: the seed of the samples that are shown.
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
        raise ValueError(f"{len(embeddings)} embeddings for {len(table)} rows of {table.name}: give one for each row")
    run = RunFolder(folder)
    losses = " + ".join(str(loss.get("name")) for loss in run.losses) or "a run"
    page = Page(f"{table.name}: {losses}", f"Run {run.folder.name}")
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
    single, unlabelled = int((sizes == 1).sum()), int((table.labels < 0).sum())
    problems = []
    if len(broken):
        problems.append(f"{len(broken):,} of {len(table):,} images could not be read.")
    if single:
        problems.append(f"{single:,} classes have only one image, which has no match.")
    if unlabelled:
        problems.append(f"{unlabelled:,} rows have no label.")
    for problem in [*problems, *table.notes]:
        section.paragraph(problem)
    if not problems and not table.notes:
        section.paragraph(f"None: all {len(table):,} images could be read, and every class has at least two.")
    if len(broken):
        names = [row_name(table, int(row)) for row in broken[:BROKEN]]
        more = [f"... and {len(broken) - BROKEN:,} more"] if len(broken) > BROKEN else []
        section.folded(f"The images that could not be read (at most {BROKEN})", "\n".join([*names, *more]))
