"""Cross-fitting: the training classes are held out fold by fold, and a model is trained on the rest each time.

Few validation classes decide little, and classes that are held out for good are missing in training. So where there are
few, every training class is judged by a model that has not seen it; what is best on all of them together is kept, and
the model itself is then trained on all classes. Candidates are the pretrained features, the model as it starts, and the
trained one after some fractions of all steps, of which none was chosen within its own fold.
"""

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace

import numpy as np

from nearfar.training.candidates import Measured, best_of, chosen, features_alone, on_cached_features
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
    """What the folds have chosen.

    Attributes:
        kept: which candidate.
        fraction: of all steps, after which the trained model is taken.
        values: the metric that chose, of the candidates on the held-out rows.
        metrics: all metrics of the one that is kept, there.
    """

    kept: str
    fraction: float
    values: Mapping[str, float]
    metrics: Mapping[str, float]

    def steps(self, total: int) -> int:
        """The step after which training ends."""
        return max(1, round(self.fraction * total))


def cross_fit(run: Run, prepared: Prepared, display: Display, world: World, deadline: float | None = None) -> Choice:
    """Train once for every fold, and choose. What was chosen is kept in the run: going on with it chooses the same.

    Args:
        deadline: when all training, also that on all classes which follows, has to end.
    """
    stored = world.told(run.metrics.get("choice"))
    if stored is not None:
        return Choice(**stored)
    parts, config = prepared.parts, prepared.config
    looks: dict[str, list[Floats]] = {}
    for number in range(parts.folds):
        display.note(f"fold {number + 1} of {parts.folds}: trained without {_held(parts, number)}")
        own = _share_of(deadline, parts.folds - number, parts.folds)
        for name, embeddings in _looks(run, prepared, number, display, world, own).items():
            looks.setdefault(name, []).append(embeddings)
    tables = [parts.holding_out(number).val for number in range(parts.folds)]
    measured = {
        name: Measured.pooled(
            [
                Measured.of(x, table, config, binary=prepared.embedder.binary and name != "features")
                for x, table in zip(folds, tables, strict=True)
                if table
            ]
        )
        for name, folds in looks.items()
    }
    metric = config.evaluation.metric
    values = {name: found.metrics[metric] for name, found in measured.items()}
    trained = best_of({name: values[name] for name in FRACTIONS})
    values = {name: values[name] for name in ("features", "start") if name in values} | {"trained": values[trained]}
    compared = {name: measured[trained if name == "trained" else name] for name in values}
    kept = "trained" if config.evaluation.keep == "trained" else chosen(compared, metric)
    look = trained if kept == "trained" else kept
    choice = Choice(kept, FRACTIONS[trained], values, measured[look].metrics)
    if world.first:
        # The pretrained features are the same network in every fold: all classes may be compared with each other.
        models = [0 if look == "features" else number for number in range(parts.folds)]
        fold = np.concatenate([np.full(len(x), model) for model, x in zip(models, looks[look], strict=True)])
        labels = np.concatenate([table.labels for table in tables if table is not None])
        HeldOut(np.concatenate(looks[look]), labels, fold, parts.open_set).save(run)
        run.write_metrics({"choice": asdict(choice)})
        run.forget_folds()
    world.wait()
    return choice


def _share_of(deadline: float | None, left: int, folds: int) -> float | None:
    """When a fold has to end: it takes 1 - 1/folds as long as the training on all classes, which comes last."""
    if deadline is None:
        return None
    now, each = time.monotonic(), 1 - 1 / folds
    return now + (deadline - now) * each / (left * each + 1)


def _held(parts: Parts, number: int) -> str:
    assert parts.fold is not None
    labels = parts.table.labels[parts.fold == number]
    return f"{len(np.unique(labels)):,} classes" if parts.open_set else f"{len(labels):,} images"


def _looks(
    run: Run, prepared: Prepared, number: int, display: Display, world: World, deadline: float | None
) -> dict[str, Floats]:
    """Embeddings of the rows of a fold by every candidate, none of which was trained on them."""
    config, own, fold = prepared.config, prepared.parts.holding_out(number), run.fold(number)
    names = ["start", *FRACTIONS]
    if not world.told(fold.load_look(names[-1]) is not None):
        given = replace(prepared.given, model=replace(prepared.given.model, dimension=config.model.dimension))
        part = build(given, own, world, display)
        looks: dict[int, list[str]] = {0: ["start"]}
        for name, fraction in FRACTIONS.items():  # of a handful of steps, several fractions may be one
            looks.setdefault(max(1, round(fraction * part.total_steps)), []).append(name)
        trainings = prepared.parts.folds + 1 if number == 0 else 1  # which is told once
        fit(fold, part, display, world, looks=looks, deadline=deadline, whole=run, trainings=trainings)
    world.wait()
    assert own.val is not None
    found: dict[str, Floats] = {}
    features = features_alone(config)
    if features is not None:
        found["features"] = embed(features, own.val, on_cached_features(config), world)
    kept = {name: fold.load_look(name) for name in names}
    return found | {name: embeddings for name, embeddings in kept.items() if embeddings is not None}
