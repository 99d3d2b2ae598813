"""`compare`: from a data set to a leaderboard.

data ──► ground.py       test rows set apart; folds of the training classes; features, batches and the head's start
     ──► costs.py        with a budget: what a training and a run take here; budget.py: how much of all this fits
     ──► search.py       the same number of settings for every loss, judged on the folds
     ──► retrain.py      the best setting of each, over several seeds
     ──► look.py         the test rows, once
     ──► leaderboard.py, files.py, page.py
"""

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

import nearfar
from nearfar.compare import files
from nearfar.compare.budget import Budget, BudgetError, Costs, Plan, announced, choose
from nearfar.compare.costs import check_features, measure_costs
from nearfar.compare.ground import Ground, Rows, set_apart
from nearfar.compare.journal import Journal
from nearfar.compare.leaderboard import FILE, Leaderboard, make_leaderboard, read_leaderboard, to_json
from nearfar.compare.live import Live
from nearfar.compare.look import look
from nearfar.compare.pace import Pace
from nearfar.compare.page import write_page
from nearfar.compare.retrain import RUNS, retrain
from nearfar.compare.search import Found, search
from nearfar.compare.settings import FILE as COMPARISON
from nearfar.compare.settings import (
    FOLDS,
    Comparison,
    Effort,
    make_comparison,
    new_folder,
    read_comparison,
    write_comparison,
)
from nearfar.data import Table
from nearfar.data.opening import path_of
from nearfar.foundation.durations import duration, read_seconds
from nearfar.foundation.files import write_file
from nearfar.training.config import TrainConfig
from nearfar.training.finish import write_report
from nearfar.training.fit import StoppedError
from nearfar.training.measure import embed, measure, numbers
from nearfar.training.options import ConfigError, with_options
from nearfar.training.prepare import prepare
from nearfar.training.progress import Display
from nearfar.training.reading import open_readable, readable
from nearfar.training.runs import Run
from nearfar.training.start import start


def compare(
    data: str | os.PathLike[str] | Table | None = None,
    *,
    losses: Sequence[str] | None = None,
    trials: int | None = None,
    seeds: int | None = None,
    folds: int | None = None,
    budget: str | float | Budget | None = None,
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
        trials: settings that are tried of a loss with three hyper-parameters, its defaults first; 10 by default. Others
            have as many in proportion to their hyper-parameters, rates included.
        seeds: runs of each loss's best setting; 5 by default.
        folds: of the training classes; every setting is judged on each; 4 by default, fewer with few classes.
        budget: a time for everything, such as "10min", or seconds. There are fewer settings to fit it, then fewer
            seeds, folds, and losses, if they were not named; alike for all losses.
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
        limit = _budget(comparison.effort.budget)
        if (folder / FILE).is_file():
            return _tidied(read_leaderboard(folder))
    else:
        limit = _budget(budget)
        seconds = None if limit is None else limit.seconds
        counts = {"trials": trials, "seeds": seeds, "folds": folds, "budget": seconds}
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
        rows = set_apart(table, shared, comparison.effort.folds if folds or resume else 2)
        if not folds and resume is None:
            most = min(FOLDS, rows.classes // 2)
            comparison = replace(comparison, effort=replace(comparison.effort, folds=most))
        with Live(quiet) as live:
            for note in rows.notes:
                live.note(note)
            if resume is None:
                write_comparison(comparison, folder)
            try:
                board = _compare(comparison, rows, folder, live, limit)
            except BudgetError:
                if resume is None:
                    _forget(folder)
                raise
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
        path = data.name if isinstance(data, Table) else path_of(data)
        shared = replace(shared, data=replace(shared.data, path=path))
    return make_comparison(shared, losses, effort, finetune)


def _budget(budget: str | float | Budget | None) -> Budget | None:
    if isinstance(budget, str):
        budget = read_seconds(budget, "budget")
    return Budget(budget) if isinstance(budget, (int, float)) else budget


def _compare(asked: Comparison, rows: Rows, folder: Path, live: Live, budget: Budget | None) -> Leaderboard:
    journal = Journal(folder / "journal.jsonl", None if budget is None else lambda: budget.spent)
    if budget is not None:
        budget.go_on(journal.spent)
        if asked.shared.model.freeze:
            check_features(asked.shared, rows, budget)
    live.note(f"{folder}: features and {asked.effort.folds} folds of {rows.seen.num_classes:,} training classes")
    shared = replace(asked.shared, out=None)
    folds = rows.seen.folds(asked.effort.folds, seed=shared.seed)
    ground = Ground(shared, [(fold.split("train"), fold.split("val")) for fold in folds])
    comparison, pace = asked, None
    if budget is not None:
        pace = _plan(asked, ground, rows, journal, live, budget)
        ground = ground.with_folds(pace.plan.folds)
        comparison = replace(asked, contestants=pace.plan.losses, effort=replace(asked.effort, seeds=pace.plan.seeds))
    live.begin(comparison.contestants, comparison.effort.seeds, None if pace else comparison.effort.trials)
    live.starts_at(sum(fold.start_value for fold in ground.folds) / len(ground.folds))
    found = search(comparison, ground, journal, live, pace)
    files.write_trials(found, folder / "trials.csv")
    best = {name: found.best(name).setting for name in found.trials}
    runs = retrain(comparison, ground, best, rows.seen, folder, live.retrained, journal, pace)
    live.note("the search is over: now the test classes, once")
    seen = look(ground, runs, rows.seen, rows.test, lambda name: live.note(f"measured: {name}"))
    facts = _facts(asked, ground, found, rows, runs) | {"queries": seen.queries, "cosines": dict(seen.cosines)}
    board = make_leaderboard(found, seen, facts, "", folder)
    board = replace(board, run=str(_best(runs[board.winner]).folder))
    files.write_queries(seen, folder / "queries.npz")
    files.write_leaderboard(board, folder / "leaderboard.csv")
    files.write_settings({name: own[0].config for name, own in runs.items()}, folder / "settings")
    _complete(Run(board.run), rows)
    write_page(board, found, folder / "report.html")
    write_file(folder / FILE, to_json(board))  # last: it makes the comparison finished
    if budget is not None:
        live.note(f"took {duration(budget.spent)} of {duration(budget.seconds)}")
    return board


def _plan(asked: Comparison, ground: Ground, rows: Rows, journal: Journal, live: Live, budget: Budget) -> Pace:
    """How much of what was asked for fits: decided once, and kept."""
    effort = asked.effort
    wished = Plan(asked.contestants, effort.trials, effort.seeds, effort.folds)
    entry = journal.get("plan")
    if entry is None:
        costs = measure_costs(asked, ground, rows, journal, budget)
        plan = choose(costs, wished, budget.seconds, asked.named, budget.spent)
        entry = journal.add("plan", **asdict(plan), costs=asdict(costs))
    plan = Plan(tuple(entry["losses"]), entry["trials"], entry["seeds"], entry["folds"])
    costs = Costs(**entry["costs"])
    for line in announced(plan, wished, costs, budget):
        live.note(line)
    return Pace(budget, plan, costs, journal, asked.named)


def _forget(folder: Path) -> None:
    """Of a comparison that was refused nothing is left that would be in the way of another; features are cached."""
    for name in (COMPARISON, "journal.jsonl"):
        (folder / name).unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        folder.rmdir()


def _facts(
    asked: Comparison, ground: Ground, found: Found, rows: Rows, runs: Mapping[str, Sequence[Run]]
) -> dict[str, Any]:
    train = rows.seen.split("train")
    return {
        "data": asked.shared.data.path,
        "train_images": len(train),
        "train_classes": train.num_classes,
        "test_images": len(rows.test),
        "test_classes": rows.test.num_classes,
        "trials": found.rounds,
        "settings": {name: len(trials) for name, trials in found.trials.items()},
        "trials_wished": asked.effort.trials,
        "folds": len(ground.folds),
        "folds_wished": asked.effort.folds,
        "seeds": len(next(iter(runs.values()))),
        "seeds_wished": asked.effort.seeds,
        "left_out": [name for name in asked.contestants if name not in runs],
        "budget": asked.effort.budget,
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
    binary = prepared.embedder.binary
    measured = {
        name: numbers(measure(x, rows.test, config.evaluation.ks, binary=binary)) for name, x in embeddings.items()
    }
    run.write_metrics(
        {**measured, "measured_on": "test", "open_set": True, "compared_by": "hamming" if binary else "cosine"}
    )
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
