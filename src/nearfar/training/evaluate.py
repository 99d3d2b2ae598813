"""`evaluate`: a finished run, measured again or on other data."""

import os
from dataclasses import replace
from typing import Any

import nearfar.data
from nearfar.data import Table
from nearfar.models.extraction import progress_bar
from nearfar.training.build import prepared
from nearfar.training.config import DataConfig, TrainConfig
from nearfar.training.finish import tested
from nearfar.training.measure import embed, measure
from nearfar.training.options import ConfigError
from nearfar.training.runs import Run
from nearfar.training.splits import split


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
    """Metrics of a run's model, as `nearfar.evaluation.retrieval_metrics` gives them.

    Args:
        run: a run, or its folder.
        data: what `nearfar.data.open` opens, or a table: its test rows are measured, or all rows where none are for
            testing. By default, the run's own data and its test rows.
        ks: for recall@k; by default the run's.
        ci: add bootstrap intervals.
        flip: average an image and its mirror image; by default as the run does.
        size: side of the images; by default that of the run.
        device: where the network computes.
        progress: show a bar.
    """
    run = run if isinstance(run, Run) else Run(run)
    config = run.config
    if flip is not None:
        config = replace(config, evaluation=replace(config.evaluation, flip=flip))
    table, model = rows_of(config, data), run.model(device)
    if size is not None:
        if size < 1:
            raise ConfigError(f"the side of images must be at least 1 pixel, not {size}")
        model.preprocess = model.transform = prepared(model.preprocess, replace(DataConfig(), size=size))
    with progress_bar(progress, len(table)) as advance:
        embeddings = embed(model, table, config, advance=advance)
    metrics = measure(embeddings, table, ks or config.evaluation.ks, ci=ci)
    if not metrics:
        raise ConfigError(f"{table.name}: no two rows have the same label, so there is nothing to find")
    return {"data": table.name, "images": len(table), **metrics}


def rows_of(config: TrainConfig, data: str | os.PathLike[str] | Table | None) -> Table:
    """The rows to measure."""
    if data is None:
        own = tested(split(nearfar.data.open(config.data.path, config.data.layout), config.data, config.seed))
        if own is None:
            raise ConfigError(f"{config.data.path} has neither test nor validation rows: give other data")
        return own
    table = data if isinstance(data, Table) else nearfar.data.open(data)
    held_out = [name for name in table.split_names if name not in ("train", "val")]
    return table.split(*held_out) if held_out else table
