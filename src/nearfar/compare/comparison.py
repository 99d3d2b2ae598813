"""`compare`: from a data set to a leaderboard.

data ──► ground.py       test rows set apart; folds of the training classes; features, batches and the head's start
     ──► search.py       the same number of settings for every loss, judged on the folds
     ──► retrain.py      the best setting of each, over several seeds
     ──► look.py         the test rows, once
     ──► leaderboard.py, files.py, page.py
"""

import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import nearfar
from nearfar.compare import files
from nearfar.compare.ground import Ground, Rows, set_apart
from nearfar.compare.journal import Journal
from nearfar.compare.leaderboard import FILE, Leaderboard, make_leaderboard, read_leaderboard, to_json
from nearfar.compare.live import Live
from nearfar.compare.look import look
from nearfar.compare.page import write_page
from nearfar.compare.retrain import RUNS, retrain
from nearfar.compare.search import Found, search
from nearfar.compare.settings import (
    Comparison,
    Effort,
    make_comparison,
    new_folder,
    read_comparison,
    read_seconds,
    write_comparison,
)
from nearfar.data import Table
from nearfar.training.config import TrainConfig
from nearfar.training.finish import write_report
from nearfar.training.fit import StoppedError
from nearfar.training.measure import embed, measure, numbers
from nearfar.training.options import ConfigError, with_options
from nearfar.training.prepare import prepare
from nearfar.training.progress import Display
from nearfar.training.reading import open_readable, readable
from nearfar.training.runs import Run, replacing
from nearfar.training.start import start


def compare(
    data: str | os.PathLike[str] | Table | None = None,
    *,
    losses: Sequence[str] | None = None,
    trials: int | None = None,
    seeds: int | None = None,
    folds: int | None = None,
    budget: str | float | None = None,
    finetune: bool = False,
    config: TrainConfig | None = None,
    resume: str | os.PathLike[str] | None = None,
    quiet: bool = False,
    **options: Any,
) -> Leaderboard:
    """Which loss is best on this data: every one searched, trained and measured alike.

        board = compare("photos", losses=["CircleLoss", "ProxyAnchorLoss"], budget="10min")
        board.winner, board.run, board.rows[0].metrics["map@r"].value

    Args:
        data: what `nearfar.data.open` opens, or a table; the embedded glyphs by default.
        losses: names, "CircleLoss/class" for the class-level form of a loss that has both; a dozen by default.
        trials: settings of each loss that are tried, its defaults first; 10 by default.
        seeds: runs of each loss's best setting; 3 by default.
        folds: of the training classes; every setting is judged on each; 4 by default.
        budget: a time for everything, such as "10min" or seconds. All losses get equally fewer settings to fit it.
        finetune: train the whole network, not a head on cached features.
        config: of everything that the losses share.
        resume: the folder of a comparison to go on with, instead of all else. It ends as it would have ended.
        quiet: show nothing.
        options: every option of `nearfar train --help` but the loss's, by the same names; `out` is the folder.
    """
    if resume is not None:
        others = (config, losses, trials, seeds, folds, budget, None if isinstance(data, Table) else data)
        if options or finetune or any(other is not None for other in others):
            raise ConfigError("a comparison goes on as it began: --resume FOLDER takes no other options")
        folder, comparison = Path(resume), read_comparison(resume)
        if (folder / FILE).is_file():
            return _tidied(read_leaderboard(folder))
    else:
        counts = {"trials": trials, "seeds": seeds, "folds": folds, "budget": _seconds(budget)}
        effort = Effort(**{name: value for name, value in counts.items() if value is not None})  # type: ignore[arg-type]
        comparison = _new(data, losses, effort, finetune, config, options)
        folder = Path(comparison.shared.out or new_folder(comparison.shared))
    with torch.random.fork_rng(devices=[]), _going_on(folder):
        shared = comparison.shared
        display = Display(quiet)
        if isinstance(data, Table):
            table, _ = readable(data, shared.data.max_broken, display)
        else:
            table, _ = open_readable(shared.data, display)
        rows = set_apart(table, shared, comparison.effort.folds)
        if resume is None:
            write_comparison(comparison, folder)
        effort = comparison.effort
        with Live(comparison.contestants, effort.trials, effort.seeds, quiet) as live:
            for note in rows.notes:
                live.note(note)
            board = _compare(comparison, rows, folder, live)
    return _tidied(board)


def _new(
    data: str | os.PathLike[str] | Table | None,
    losses: Sequence[str] | None,
    effort: Effort,
    finetune: bool,
    config: TrainConfig | None,
    options: dict[str, Any],
) -> Comparison:
    shared = with_options(config or TrainConfig(), options)
    if data is not None:
        path = data.name if isinstance(data, Table) else os.fspath(data)
        shared = replace(shared, data=replace(shared.data, path=path))
    return make_comparison(shared, losses, effort, finetune)


def _seconds(budget: str | float | None) -> float | None:
    return read_seconds(budget) if isinstance(budget, str) else budget


def _compare(comparison: Comparison, rows: Rows, folder: Path, live: Live) -> Leaderboard:
    effort = comparison.effort
    journal = Journal(folder / "journal.jsonl")
    live.note(f"{folder}: features and {effort.folds} folds of {rows.seen.num_classes:,} training classes")
    began = time.monotonic()
    shared = replace(comparison.shared, out=None)
    folds = rows.seen.folds(effort.folds, seed=shared.seed)
    ground = Ground(shared, [(fold.split("train"), fold.split("val")) for fold in folds])
    made = journal.get("ground") or journal.add("ground", seconds=time.monotonic() - began)
    live.starts_at(sum(fold.start_value for fold in ground.folds) / len(ground.folds))
    reserved = made["seconds"] * len(rows.test) / len(rows.seen)
    found = search(comparison, ground, journal, live, spent=made["seconds"], reserved=reserved)
    files.write_trials(found, folder / "trials.csv")
    runs = retrain(comparison, ground, found, rows.seen, folder, live.retrained)
    live.note("the search is over: now the test classes, once")
    seen = look(ground, runs, rows.seen, rows.test, lambda name: live.note(f"measured: {name}"))
    board = make_leaderboard(found, seen, _facts(comparison, ground, found, rows, seen.queries), "", folder)
    board = replace(board, run=str(_best(runs[board.winner]).folder))
    files.write_queries(seen, folder / "queries.npz")
    files.write_leaderboard(board, folder / "leaderboard.csv")
    files.write_settings({name: own[0].config for name, own in runs.items()}, folder / "settings")
    _complete(Run(board.run), rows)
    write_page(board, found, folder / "report.html")
    with replacing(folder / FILE) as file:  # last: it makes the comparison finished
        file.write(to_json(board).encode())
    return board


def _facts(comparison: Comparison, ground: Ground, found: Found, rows: Rows, queries: int) -> dict[str, Any]:
    train = rows.seen.split("train")
    return {
        "data": comparison.shared.data.path,
        "train_images": len(train),
        "train_classes": train.num_classes,
        "test_images": len(rows.test),
        "test_classes": rows.test.num_classes,
        "queries": queries,
        "trials": len(next(iter(found.trials.values()))),
        "trials_wished": comparison.effort.trials,
        "folds": comparison.effort.folds,
        "seeds": comparison.effort.seeds,
        "budget": comparison.effort.budget,
        "start": sum(fold.start_value for fold in ground.folds) / len(ground.folds),
        "finetuned": not ground.config.model.freeze,
        "backbone": ground.config.model.backbone,
        "dimension": ground.config.model.dimension,
        "search_seconds": round(found.seconds, 1),
        "nearfar": nearfar.__version__,
    }


def _best(runs: Sequence[Run]) -> Run:
    """By the validation classes; the test classes choose among losses, not among runs."""
    return max(runs, key=lambda run: -1.0 if run.metrics["best"] is None else run.metrics["best"]["value"])


def _complete(run: Run, rows: Rows) -> None:
    """Give the winner's run what a run has that saw the test rows: its metrics before and after, on them."""
    config = run.config
    prepared = prepare(config, rows.seen)
    start(prepared.embedder, prepared.loss, prepared.parts.train, config)
    embeddings = {
        "before": embed(prepared.embedder, rows.test, config),
        "after": embed(run.model(), rows.test, config),
    }
    measured = {name: numbers(measure(x, rows.test, config.evaluation.ks)) for name, x in embeddings.items()}
    run.write_metrics({**measured, "measured_on": "test", "open_set": True})
    write_report(run, embeddings["after"], rows.test, config)


def _tidied(board: Leaderboard) -> Leaderboard:
    """Only the winner's model is kept: the others' settings are there to train them again."""
    kept = Path(board.run).name
    for model in (board.folder / RUNS).glob("*/model.safetensors"):
        if model.parent.name != kept:
            model.unlink()
    return board


@contextlib.contextmanager
def _going_on(folder: Path) -> Iterator[None]:
    """Who is stopped is told how to go on with the comparison, not with one of its runs."""
    try:
        yield
    except StoppedError as stopped:
        raise StoppedError(f"stopped and saved. To go on: nearfar compare --resume {folder}") from stopped
