"""`evaluate`: evaluate a finished run again, or on other data."""

import os
from dataclasses import replace
from typing import Any

from nearfar.data import Table
from nearfar.models.extraction import progress_bar
from nearfar.training.build import prepared
from nearfar.training.config import DataConfig
from nearfar.training.finish import tested
from nearfar.training.kept_split import KeptSplit, parts_of, unseen_rows
from nearfar.training.measure import embed, measure
from nearfar.training.options import ConfigError
from nearfar.training.runs import Run


def evaluate(
    run: Run | str | os.PathLike[str],
    data: str | os.PathLike[str] | Table | None = None,
    *,
    ks: tuple[int, ...] | None = None,
    ci: bool = False,
    flip: bool | None = None,
    size: int | None = None,
    device: str = "cpu",
    progress: bool = False,
) -> dict[str, Any]:
    """Compute the metrics of a run's model as `nearfar.evaluation.retrieval_metrics` does; "notes" lists omissions.

    Args:
        run: a run, or its folder.
        data: a table, or anything that `nearfar.data.open` opens; its test rows are evaluated, or all rows if it has no
            split. By default, the run's own test rows. Images that the run was trained on are always left out.
        ks: values of k for recall@k; by default the run's.
        ci: add 95 % intervals over classes.
        flip: average the embeddings of an image and its mirror image; by default as the run does.
        size: side of the images; by default the run's.
        device: the network's device.
        progress: show a progress bar.
    """
    run = run if isinstance(run, Run) else Run(run)
    config = run.config
    if flip is not None:
        config = replace(config, evaluation=replace(config.evaluation, flip=flip))
    (table, notes), model = rows_of(run, data), run.model(device)
    if size is not None:
        if size < 1:
            raise ConfigError(f"the side of images must be at least 1 pixel, not {size}")
        model.preprocess = model.transform = prepared(model.preprocess, replace(DataConfig(), size=size))
    with progress_bar(progress, len(table)) as advance:
        embeddings = embed(model, table, config, advance=advance)
    metrics = measure(embeddings, table, ks or config.evaluation.ks, binary=model.binary, ci=ci)
    if not metrics:
        raise ConfigError(f"{table.name}: no two rows have the same label, so retrieval cannot be evaluated")
    compared_by = "hamming" if model.binary else "cosine"
    return {"data": table.name, "images": len(table), "notes": notes, "compared_by": compared_by, **metrics}


def rows_of(run: Run, data: str | os.PathLike[str] | Table | None) -> tuple[Table, tuple[str, ...]]:
    """The rows to evaluate a run on, without images that it was trained on, and notes about them.

    Args:
        data: other data: its test rows, or all rows if it has no split. By default the test rows of the run's split.
    """
    if data is None:
        parts = parts_of(run)
        rows = tested(parts)
        if rows is None:
            raise ConfigError(
                f"{run.config.data.path} has neither test nor validation rows: name other data to evaluate on"
            )
        return rows, parts.notes
    return unseen_rows(data, KeptSplit.load(run), run.config.data.max_broken)
