"""The end of a run: choose a candidate, calibrate its threshold, evaluate all candidates on the test rows."""

import time
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nearfar.data import Table
from nearfar.models import Embedder
from nearfar.training import norms, thresholds
from nearfar.training.candidates import Measured, chosen, features_only, gain, on_cached_features, verdict
from nearfar.training.config import TrainConfig
from nearfar.training.crossfit import Choice
from nearfar.training.defaults import is_pretrained
from nearfar.training.fit import Fitted
from nearfar.training.held_out import HeldOut, held_out_of
from nearfar.training.learner import Learner
from nearfar.training.measure import Floats, embed
from nearfar.training.prepare import Prepared
from nearfar.training.progress import Display, counted, print_table
from nearfar.training.runs import COSINES, Run
from nearfar.training.splits import Parts
from nearfar.training.world import World

SHOWN = ("recall@1", "recall@2", "recall@4", "recall@8", "map@r", "r_precision", "map", *COSINES)
COLUMNS = {"features": "features", "start": "start", "trained": "after"}


def tested(parts: Parts) -> Table | None:
    """The rows to evaluate on: the test rows, or else the validation rows."""
    return parts.test if parts.test is not None else parts.val


@dataclass
class _Candidates:
    """The embedders that a run may keep. The initial and the trained model are states of one network."""

    embedder: Embedder
    config: TrainConfig
    states: dict[str, Mapping[str, Any]]
    features: Embedder | None

    @property
    def names(self) -> list[str]:
        return ["features", *self.states] if self.features is not None else [*self.states]

    def model(self, name: str) -> Embedder:
        """The embedder; another call may change it."""
        if name == "features":
            assert self.features is not None
            return self.features
        self.embedder.load_state_dict(self.states[name])
        return self.embedder.eval()

    def binary(self, name: str) -> bool:
        """Whether the candidate's embeddings are codes; pretrained features never are."""
        return name != "features" and self.embedder.binary

    def embed(self, name: str, table: Table, world: World, display: Display) -> Floats:
        """Embeddings of a table's rows."""
        config = self.config if name == "trained" else on_cached_features(self.config)
        with display.looking(f"images, {COLUMNS[name]}", len(table) // world.size) as advance:
            return embed(self.model(name), table, config, world, advance)


def finish(
    run: Run, fitted: Fitted, prepared: Prepared, choice: Choice | None, display: Display, world: World | None = None
) -> None:
    """Choose a candidate, calibrate it on held-out rows, evaluate all candidates on the test rows, and save.

    Each process embeds its share; the first one writes.
    """
    config, parts, world = prepared.config, prepared.parts, world or World()
    world.wait()  # for the best model to be written
    candidates = _candidates(run, fitted, config, chosen=choice is not None)
    kept, values, held_out = _chosen(run, candidates, parts, choice, world, display)
    began = time.monotonic()
    table = tested(parts)
    measured: dict[str, Measured] = {}
    if table is not None:
        display.note(f"measuring on {len(table):,} images")
        for name in candidates.names:
            embeddings = candidates.embed(name, table, world, display)
            measured[name] = Measured.of(embeddings, table, config, world, binary=candidates.binary(name))
            if name == kept:
                shown = embeddings
    after = measured[kept].metrics if kept in measured else choice.metrics if choice is not None else {}
    if not world.first:
        return
    model = candidates.model(kept)
    threshold, note = None, thresholds.NO_BETTER
    if learned(kept, values, config):
        threshold, note = thresholds.of_run(
            held_out,
            config.evaluation,
            parts.table.labels,
            codes=model.binary,
            test=(shown, parts.test.labels) if parts.test is not None else None,
            seed=config.seed,
        )
    model.label_names = candidates.embedder.label_names
    model.calibration = {} if threshold is None else {"threshold": threshold}
    model.save(run.folder)
    classes = table.num_classes if table is not None else parts.train.num_classes
    what = f"{classes:,} {'unseen' if parts.open_set else 'known'} classes"
    better = gain(kept, measured, config.evaluation.metric)
    sentence = verdict(kept, measured, values, config.evaluation.metric, what) if measured else ""
    run.write_metrics(
        {
            "before": dict(measured["start"].metrics) if "start" in measured else {},
            "after": dict(after),
            "candidates": {name: candidate.to_dict() for name, candidate in measured.items()},
            "kept": kept,
            "compared_by": "hamming" if model.binary else "cosine",
            "held_out": values,
            "verdict": sentence,
            "gain": None if better is None else asdict(better),
            "measured_on": "test" if parts.test is not None else "validation",
            "classes": classes,
            "open_set": parts.open_set,
            "best": fitted.best,
            "norms": norms.described(fitted.learner.loss, config.model),
            "steps": fitted.learner.done,
            "threshold": threshold,
            "threshold_note": note,
            "train_seconds": round(fitted.seconds, 3),
            "test_seconds": round(time.monotonic() - began, 3),
        }
    )
    if table is not None and config.evaluation.report:
        write_report(run, shown, table, config)
    if not display.quiet:
        report(run)


def learned(kept: str, values: Mapping[str, float], config: TrainConfig) -> bool:
    """Whether the kept candidate is better, on the held-out rows, than an untrained network or the initial model."""
    if kept == "start":
        return is_pretrained(config.model.backbone or "", config.model.weights) or config.model.backbone == "features"
    return kept != "trained" or "start" not in values or values["trained"] > values["start"]


def _candidates(run: Run, fitted: Fitted, config: TrainConfig, *, chosen: bool) -> _Candidates:
    """The candidates; the trained model is the one of the best step, if validation rows chose one."""
    embedder, learner = fitted.learner.embedder, fitted.learner
    if fitted.best is not None and not chosen:
        embedder.load_state_dict(run.load_checkpoint("best")["embedder"])
    elif learner.ema is not None:
        _take_average(embedder, learner)
    states: dict[str, Mapping[str, Any]] = {}
    if run.has_checkpoint("start"):
        states["start"] = run.load_checkpoint("start")["embedder"]
    states["trained"] = {name: value.detach().clone() for name, value in embedder.state_dict().items()}
    return _Candidates(embedder, config, states, features_only(config))


def _chosen(
    run: Run, candidates: _Candidates, parts: Parts, choice: Choice | None, world: World, display: Display
) -> tuple[str, dict[str, float], HeldOut | None]:
    """The kept candidate, the metric of each on the held-out rows, and the held-out rows as it embeds them."""
    if choice is not None:
        return choice.kept, dict(choice.values), held_out_of(run)
    if parts.val is None:
        return "trained", {}, None
    config, metric = candidates.config, candidates.config.evaluation.metric
    embeddings = {name: candidates.embed(name, parts.val, world, display) for name in candidates.names}
    measured = {
        name: Measured.of(x, parts.val, config, world, binary=candidates.binary(name)) for name, x in embeddings.items()
    }
    values = {name: float(result.metrics[metric]) for name, result in measured.items() if metric in result.metrics}
    kept = "trained"
    if config.evaluation.keep == "best" and "trained" in values:
        kept = chosen(measured, metric)
    rows, kept_embeddings = parts.val, embeddings[kept]
    if kept == "features":  # the training rows are unseen to it, too
        rows = parts.to_choose_by
        kept_embeddings = candidates.embed(kept, rows, world, display)
    held_out = HeldOut(kept_embeddings, rows.labels, np.zeros(len(rows), np.int64), parts.open_set)
    if world.first:
        held_out.save(run)
    return kept, values, held_out


def write_report(run: Run, embeddings: Floats, table: Table, config: TrainConfig) -> None:
    """Write report.html into the run. It comes last and can be repeated, so a failure only warns."""
    try:
        from nearfar.report.run import write_run_report

        binary = run.metrics.get("compared_by") == "hamming"
        write_run_report(run.folder, embeddings, table, binary=binary, seed=config.seed)
    except Exception as error:
        warnings.warn(
            f"the run is complete, but its report could not be written: {error!r}. To try again: "
            f"nearfar report {run.folder}",
            stacklevel=2,
        )


def _take_average(embedder: Embedder, learner: Learner) -> None:
    assert learner.ema is not None
    state = learner.ema.state_dict()["average"]
    assert isinstance(state, dict)
    embedder.load_state_dict(state)


def report(run: Run) -> None:
    """Print the candidates, the verdict and the next commands."""
    metrics, config = run.metrics, run.config
    after, candidates = metrics["after"], metrics["candidates"]
    names = [name for name in SHOWN if name in after] + [name for name in after if name.endswith("accuracy")]
    name = Path(config.data.test or config.data.path).name
    classes = f"{metrics['classes']:,} {'unseen' if metrics['open_set'] else 'known'} classes"
    columns = {
        f"{COLUMNS[name]}{' (kept)' if name == metrics['kept'] else ''}": {
            key: _with_interval(candidate["metrics"][key], candidate["intervals"].get(key))
            for key in names
            if key in candidate["metrics"]
        }
        for name, candidate in candidates.items()
    }
    if columns:
        how = ", codes by Hamming distance" if metrics.get("compared_by") == "hamming" else ""
        print_table(
            f"{classes} of {name} ({metrics['measured_on']}){how}, with 95 % intervals over these classes", columns
        )
    elif after:
        print_table(f"training classes of {name}, by models that had not seen them", {"": {n: after[n] for n in names}})
    else:
        print(f"nothing was evaluated, since there are no test data: nearfar evaluate {run.folder} DATA does so")
    best = metrics["best"]
    if best is not None:
        print(f"best of validation ({config.evaluation.metric} {best['value']:.1%}) at step {best['step']:,}")
    for line in (metrics["verdict"], *to_try(metrics, config), metrics["threshold_note"]):
        if line:
            print(line)
    steps = counted(metrics["steps"], "step")
    print(f"trained {steps} in {metrics['train_seconds']:,.0f} s; {run.folder} holds the model\n")
    if (run.folder / "report.html").is_file():
        print(f"look at it:            {run.folder / 'report.html'}")
    inputs = "features" if config.model.backbone == "features" else '"photos"'
    if inputs != "features":  # features have no images to show
        print(f"search with it:        nearfar index {run.folder} DATA, nearfar search {run.folder} IMAGE")
        print(f"show it to others:     nearfar serve {run.folder}")
    print(f"measure it elsewhere:  nearfar evaluate {run.folder} DATA")
    print(f"repeat it:             nearfar train --config {run.folder / 'config.yaml'} --out NEW")
    print(f'use it:                nearfar.models.Embedder.load("{run.folder}").embed({inputs})')


def _with_interval(value: float, interval: tuple[float, float] | None) -> str:
    return f"{value:.1%}" if interval is None else f"{value:.1%} [{100 * interval[0]:.0f}, {100 * interval[1]:.0f}]"


def to_try(metrics: Mapping[str, Any], config: TrainConfig) -> list[str]:
    """Suggestions for a training that did not help."""
    if metrics["kept"] == "trained":
        return []
    ideas = []
    if config.model.freeze and config.model.backbone != "features":
        ideas.append("the whole network (without --freeze)")
    ideas += ["more classes to train on", "another loss (nearfar compare)", "--keep trained, to keep the trained model"]
    return [f"what to try: {', '.join(ideas[:-1])}, or {ideas[-1]}"]
