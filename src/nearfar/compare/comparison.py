"""`compare`: from a data set to a leaderboard.

data ──► workbench.py       test rows held out; folds of the training classes; features, batches and the initial head
     ──► costs.py           with a budget: the costs of a training and of a run; budget.py: the plan that fits
     ──► search.py          settings of every loss, evaluated on the folds
     ──► retrain.py         the best setting of each, with several seeds
     ──► query_metrics.py   metrics on the test rows, once
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
from nearfar.compare.budget import Budget, BudgetError, Costs, Plan, announcement, choose
from nearfar.compare.costs import check_features, measure_costs
from nearfar.compare.journal import Journal
from nearfar.compare.leaderboard import FILE, Leaderboard, make_leaderboard, read_leaderboard, to_json
from nearfar.compare.pace import Pace
from nearfar.compare.page import write_page
from nearfar.compare.query_metrics import QueryMetrics, measure_on_test
from nearfar.compare.retrain import RUNS, retrain
from nearfar.compare.search import SearchResult, search
from nearfar.compare.settings import FILE as COMPARISON
from nearfar.compare.settings import (
    FOLDS,
    Comparison,
    Effort,
    make_comparison,
    new_folder,
    read_comparison,
    with_data,
    write_comparison,
)
from nearfar.compare.terminal import ProgressView
from nearfar.compare.workbench import Rows, Workbench, make_workbench, open_rows
from nearfar.data import Table
from nearfar.foundation.durations import duration, read_seconds
from nearfar.foundation.files import write_file
from nearfar.training.config import TrainConfig
from nearfar.training.finish import write_report
from nearfar.training.fit import StoppedError
from nearfar.training.measure import embed, measure, numbers
from nearfar.training.options import ConfigError, with_options
from nearfar.training.prepare import prepare
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
    """Find the best loss for a data set: all are searched, trained and evaluated in the same way.

        board = compare("photos", losses=["CircleLoss", "ProxyAnchorLoss"], budget="10min")
        board.winner, board.run, board.rows[0].metrics["map@r"].value

    Args:
        data: a table, or anything that `nearfar.data.open` opens; by default the built-in glyphs.
        losses: names; "CircleLoss/class" for the class-level form of a loss with both; a dozen by default.
        trials: settings of a loss with three hyper-parameters, rates included, the defaults first; others get them in
            proportion; 10 by default.
        seeds: runs of each loss's best setting; 5 by default.
        folds: folds of the training classes; every setting is evaluated on each; 4 by default, fewer with few classes.
        budget: total time, such as "10min", or seconds. To fit it, settings are reduced, then seeds, folds, and losses
            that you do not name; the same for all losses.
        finetune: train the whole network, not a head on cached features.
        config: the configuration that the losses share, without losses and their rates.
        resume: the folder of a comparison to resume; takes no other options. The result is as if uninterrupted.
        quiet: print nothing.
        options: the options of `nearfar train --help` except those of losses; `out` is the folder.
    """
    if resume is not None:
        others = (config, losses, trials, seeds, folds, budget, None if isinstance(data, Table) else data)
        if options or finetune or any(other is not None for other in others):
            raise ConfigError("a comparison is resumed with its own settings: --resume FOLDER takes no other options")
        folder, comparison = Path(resume), read_comparison(resume)
        limit = _budget(comparison.effort.budget)
        if (folder / FILE).is_file():
            return _delete_other_models(read_leaderboard(folder))
    else:
        limit = _budget(budget)
        seconds = None if limit is None else limit.seconds
        counts = {"trials": trials, "seeds": seeds, "folds": folds, "budget": seconds}
        effort = Effort(**{name: value for name, value in counts.items() if value is not None})  # type: ignore[arg-type]
        shared = with_data(with_options(config or TrainConfig(), options), data)
        comparison = make_comparison(shared, losses, effort, finetune)
        folder = Path(comparison.shared.out or new_folder(comparison.shared))
    with torch.random.fork_rng(devices=[]), _resumable(folder):
        rows = open_rows(data, comparison.shared, comparison.effort.folds if folds or resume else 2, quiet)
        if not folds and resume is None:
            most = min(FOLDS, rows.classes // 2)
            comparison = replace(comparison, effort=replace(comparison.effort, folds=most))
        with ProgressView(quiet) as view:
            for note in rows.notes:
                view.note(note)
            if resume is None:
                write_comparison(comparison, folder)
            try:
                board = _compare(comparison, rows, folder, view, limit)
            except BudgetError:
                if resume is None:
                    _delete(folder)
                raise
    return _delete_other_models(board)


def _budget(budget: str | float | Budget | None) -> Budget | None:
    if isinstance(budget, str):
        budget = read_seconds(budget, "budget")
    return Budget(budget) if isinstance(budget, (int, float)) else budget


def _compare(asked: Comparison, rows: Rows, folder: Path, view: ProgressView, budget: Budget | None) -> Leaderboard:
    journal = Journal(folder / "journal.jsonl", None if budget is None else lambda: budget.spent)
    if budget is not None:
        budget.resume(journal.spent)
        if asked.shared.model.freeze:
            check_features(asked.shared, rows, budget)
    view.note(f"{folder}: features and {asked.effort.folds} folds of {rows.seen.num_classes:,} training classes")
    workbench = make_workbench(asked.shared, rows, asked.effort.folds)
    comparison, pace = asked, None
    if budget is not None:
        pace = _plan(asked, workbench, rows, journal, view, budget)
        workbench = workbench.with_folds(pace.plan.folds)
        comparison = replace(asked, contestants=pace.plan.losses, effort=replace(asked.effort, seeds=pace.plan.seeds))
    view.begin(comparison.contestants, comparison.effort.seeds, None if pace else comparison.effort.trials)
    view.starts_at(workbench.start_value)
    result = search(comparison, workbench, journal, view, pace)
    files.write_trials(result, folder / "trials.csv")
    best = {name: result.best(name).setting for name in result.trials}
    runs = retrain(comparison, workbench, best, rows.seen, folder, view.retrained, journal, pace)
    view.note("search done; evaluating the test classes, once")
    metrics = measure_on_test(workbench, runs, rows.seen, rows.test, lambda name: view.note(f"measured: {name}"))
    facts = _facts(asked, workbench, result, rows, runs, metrics)
    board = make_leaderboard(result, metrics, facts, "", folder)
    board = replace(board, run=str(_best(runs[board.winner]).folder))
    files.write_queries(metrics, folder / "queries.npz")
    files.write_leaderboard(board, folder / "leaderboard.csv")
    files.write_settings({name: seeds[0].config for name, seeds in runs.items()}, folder / "settings")
    _complete(Run(board.run), rows)
    write_page(board, result, folder / "report.html")
    write_file(folder / FILE, to_json(board))  # last: it makes the comparison finished
    if budget is not None:
        view.note(f"took {duration(budget.spent)} of {duration(budget.seconds)}")
    return board


def _plan(
    asked: Comparison, workbench: Workbench, rows: Rows, journal: Journal, view: ProgressView, budget: Budget
) -> Pace:
    """Choose the largest plan that fits into the budget, once."""
    effort = asked.effort
    wished = Plan(asked.contestants, effort.trials, effort.seeds, effort.folds)
    entry = journal.get("plan")
    if entry is None:
        costs = measure_costs(asked, workbench, rows, journal, budget)
        plan = choose(costs, wished, budget.seconds, asked.named, budget.spent)
        entry = journal.add("plan", **asdict(plan), costs=asdict(costs))
    plan = Plan(tuple(entry["losses"]), entry["trials"], entry["seeds"], entry["folds"])
    costs = Costs(**entry["costs"])
    for line in announcement(plan, wished, costs, budget):
        view.note(line)
    return Pace(budget, plan, costs, journal, asked.named)


def _delete(folder: Path) -> None:
    """Delete a comparison with too short a budget; features stay cached."""
    for name in (COMPARISON, "journal.jsonl"):
        (folder / name).unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        folder.rmdir()


def _facts(
    asked: Comparison,
    workbench: Workbench,
    result: SearchResult,
    rows: Rows,
    runs: Mapping[str, Sequence[Run]],
    metrics: QueryMetrics,
) -> dict[str, Any]:
    train = rows.seen.split("train")
    return {
        "data": asked.shared.data.path,
        "train_images": len(train),
        "train_classes": train.num_classes,
        "test_images": len(rows.test),
        "test_classes": rows.test.num_classes,
        "queries": metrics.queries,
        "cosines": dict(metrics.cosines),
        "trials": result.rounds,
        "settings": {name: len(trials) for name, trials in result.trials.items()},
        "trials_wished": asked.effort.trials,
        "folds": len(workbench.folds),
        "folds_wished": asked.effort.folds,
        "seeds": len(next(iter(runs.values()))),
        "seeds_wished": asked.effort.seeds,
        "left_out": [name for name in asked.contestants if name not in runs],
        "budget": asked.effort.budget,
        "start": workbench.start_value,
        "finetuned": not workbench.config.model.freeze,
        "backbone": workbench.config.model.backbone,
        "dimension": workbench.config.model.dimension,
        "search_seconds": round(result.seconds, 1),
        "nearfar": nearfar.__version__,
    }


def _best(runs: Sequence[Run]) -> Run:
    """The best run on the validation classes; test classes choose among losses, not among runs."""
    return max(runs, key=lambda run: -1.0 if run.metrics["best"] is None else run.metrics["best"]["value"])


def _complete(run: Run, rows: Rows) -> None:
    """Add a report and metrics on the test rows to the winner's run, as in a normal run."""
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


def _delete_other_models(board: Leaderboard) -> Leaderboard:
    """Delete all models but the winner's; the saved settings can train the others again."""
    kept = Path(board.run).name
    for model in (board.folder / RUNS).glob("*/model.safetensors"):
        if model.parent.name != kept:
            model.unlink()
    return board


@contextlib.contextmanager
def _resumable(folder: Path) -> Iterator[None]:
    """Make the message of a stop say how to resume the comparison, not one of its runs."""
    try:
        yield
    except StoppedError as stopped:
        raise StoppedError(f"stopped and saved. To resume: nearfar compare --resume {folder}") from stopped
