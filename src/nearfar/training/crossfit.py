"""Cross-fitting: hold the training classes out fold by fold, and train a model on the rest each time.

A choice by few validation classes is unreliable, and classes held out for good are missing in training. So with few
classes, every training class is evaluated by a model that has not seen it. The best candidate on all of them is kept,
and the final model is then trained on all classes. Candidates are the pretrained features, the initial model, and the
trained model after some fractions of all steps; none was chosen within its own fold.
"""

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace

import numpy as np

from nearfar.training.candidates import Measured, best_of, chosen, features_only, on_cached_features
from nearfar.training.fit import fit
from nearfar.training.held_out import HeldOut
from nearfar.training.measure import Floats, embed
from nearfar.training.prepare import Prepared, build
from nearfar.training.progress import Display
from nearfar.training.runs import Run
from nearfar.training.splits import Parts
from nearfar.training.world import World

FRACTIONS = {"after 1/8": 1 / 8, "after 1/4": 1 / 4, "after 1/2": 1 / 2, "trained": 1.0}


@dataclass(frozen=True)
class Choice:
    """The choice made by the folds.

    Attributes:
        kept: the candidate to keep.
        fraction: the fraction of all steps after which the trained model is taken.
        values: the metric of each candidate on the held-out rows.
        metrics: all metrics of the kept candidate on the held-out rows.
    """

    kept: str
    fraction: float
    values: Mapping[str, float]
    metrics: Mapping[str, float]

    def steps(self, total: int) -> int:
        """The step after which training ends."""
        return max(1, round(self.fraction * total))


def cross_fit(run: Run, prepared: Prepared, display: Display, world: World, deadline: float | None = None) -> Choice:
    """Train once for every fold, and choose. The choice is stored in the run, so that a resumed run makes the same one.

    Args:
        deadline: when all training has to end, including the one on all classes that follows.
    """
    stored = world.broadcast(run.metrics.get("choice"))
    if stored is not None:
        return Choice(**stored)
    parts, config = prepared.parts, prepared.config
    snapshots: dict[str, list[Floats]] = {}
    for number in range(parts.folds):
        display.note(f"fold {number + 1} of {parts.folds}: trained without {_held_out(parts, number)}")
        fold_deadline = _share_of(deadline, parts.folds - number, parts.folds)
        for name, embeddings in _snapshots(run, prepared, number, display, world, fold_deadline).items():
            snapshots.setdefault(name, []).append(embeddings)
    tables = [parts.holding_out(number).val for number in range(parts.folds)]
    measured = {
        name: Measured.pooled(
            [
                Measured.of(x, table, config, binary=prepared.embedder.binary and name != "features")
                for x, table in zip(folds, tables, strict=True)
                if table
            ]
        )
        for name, folds in snapshots.items()
    }
    metric = config.evaluation.metric
    values = {name: candidate.metrics[metric] for name, candidate in measured.items()}
    trained = best_of({name: values[name] for name in FRACTIONS})
    values = {name: values[name] for name in ("features", "start") if name in values} | {"trained": values[trained]}
    compared = {name: measured[trained if name == "trained" else name] for name in values}
    kept = "trained" if config.evaluation.keep == "trained" else chosen(compared, metric)
    snapshot = trained if kept == "trained" else kept
    choice = Choice(kept, FRACTIONS[trained], values, measured[snapshot].metrics)
    if world.first:
        # The pretrained features are the same network in every fold: all classes may be compared with each other.
        models = [0 if snapshot == "features" else number for number in range(parts.folds)]
        fold = np.concatenate([np.full(len(x), model) for model, x in zip(models, snapshots[snapshot], strict=True)])
        labels = np.concatenate([table.labels for table in tables if table is not None])
        HeldOut(np.concatenate(snapshots[snapshot]), labels, fold, parts.open_set).save(run)
        run.write_metrics({"choice": asdict(choice)})
        run.forget_folds()
    world.wait()
    return choice


def _share_of(deadline: float | None, left: int, folds: int) -> float | None:
    """When a fold has to end. It takes 1 - 1/folds of the time of the final training on all classes."""
    if deadline is None:
        return None
    now, each = time.monotonic(), 1 - 1 / folds
    return now + (deadline - now) * each / (left * each + 1)


def _held_out(parts: Parts, number: int) -> str:
    assert parts.fold is not None
    labels = parts.table.labels[parts.fold == number]
    return f"{len(np.unique(labels)):,} classes" if parts.open_set else f"{len(labels):,} images"


def _snapshots(
    run: Run, prepared: Prepared, number: int, display: Display, world: World, deadline: float | None
) -> dict[str, Floats]:
    """Embeddings of the rows of a fold by every candidate; none was trained on them."""
    config, split, fold = prepared.config, prepared.parts.holding_out(number), run.fold(number)
    names = ["start", *FRACTIONS]
    if not world.broadcast(fold.load_look(names[-1]) is not None):
        base = replace(prepared.given, model=replace(prepared.given.model, dimension=config.model.dimension))
        fold_prepared = build(base, split, world, display)
        snapshots: dict[int, list[str]] = {0: ["start"]}
        for name, fraction in FRACTIONS.items():  # with few steps, several fractions may coincide
            snapshots.setdefault(max(1, round(fraction * fold_prepared.total_steps)), []).append(name)
        trainings = prepared.parts.folds + 1 if number == 0 else 1  # the estimate is shown once
        fit(fold, fold_prepared, display, world, snapshots=snapshots, deadline=deadline, whole=run, trainings=trainings)
    world.wait()
    assert split.val is not None
    candidates: dict[str, Floats] = {}
    features = features_only(config)
    if features is not None:
        candidates["features"] = embed(features, split.val, on_cached_features(config), world)
    saved = {name: fold.load_look(name) for name in names}
    return candidates | {name: embeddings for name, embeddings in saved.items() if embeddings is not None}
