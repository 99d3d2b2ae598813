"""The end of a run: the best model, its threshold, what it is worth on the test rows, and the report."""

import time
import warnings
from pathlib import Path
from typing import Any

from torch import nn

from nearfar.data import Table
from nearfar.errors import InputError
from nearfar.models import Embedder
from nearfar.training.config import TrainConfig
from nearfar.training.learner import Learner
from nearfar.training.measure import Floats, embed, measure, threshold_for
from nearfar.training.progress import Display, print_table
from nearfar.training.runs import Run
from nearfar.training.splits import Parts
from nearfar.training.world import World

SHOWN = ("recall@1", "recall@2", "recall@4", "recall@8", "map@r", "r_precision", "map")


def tested(parts: Parts) -> Table | None:
    """The rows whose metrics count: the test rows, or the validation rows where there are none."""
    return parts.test if parts.test is not None else parts.val


def measure_before(
    embedder: Embedder,
    parts: Parts,
    config: TrainConfig,
    world: World | None = None,
    display: Display | None = None,
) -> dict[str, float]:
    """The metrics of the model as it starts."""
    table = tested(parts)
    if table is None:
        return {}
    share = len(table) // (world or World()).size
    with (display or Display(quiet=True)).looking("test images", share) as advance:
        embeddings = embed(embedder, table, config, world, advance)
    return numbers(measure(embeddings, table, config.evaluation.ks, world=world))


def numbers(metrics: dict[str, Any]) -> dict[str, float]:
    """Those metrics that are numbers."""
    return {name: value for name, value in metrics.items() if isinstance(value, (int, float))}


def finish(
    run: Run,
    learner: Learner,
    parts: Parts,
    best: dict[str, Any] | None,
    seconds: float,
    display: Display,
    world: World | None = None,
) -> None:
    """Take the best model, calibrate it on the validation rows, measure it on the test rows, and save it.

    Of several processes each embeds its part, and the first one writes.
    """
    config, embedder, world = learner.config, learner.embedder, world or World()
    world.wait()  # until the best model is written
    if best is not None:
        embedder.load_state_dict(run.load_checkpoint("best")["embedder"])
    elif learner.ema is not None:
        _take_average(embedder, learner)
    embedder.eval()
    threshold, note = _threshold(embedder, parts, config, world)
    embedder.calibration = {} if threshold is None else {"threshold": threshold}
    if world.first:
        embedder.save(run.folder)
    began = time.monotonic()
    table = tested(parts)
    after: dict[str, float] = {}
    if table is not None:
        display.note(f"measuring the {'best' if best else 'last'} model on {len(table):,} images")
        with display.looking("test images", len(table) // world.size) as advance:
            embeddings = embed(embedder, table, config, world, advance)
        after = numbers(measure(embeddings, table, config.evaluation.ks, world=world))
    if not world.first:
        return
    run.write_metrics(
        {
            "after": after,
            "measured_on": "test" if parts.test is not None else "validation",
            "open_set": parts.open_set,
            "best": best,
            "steps": learner.done,
            "threshold": threshold,
            "train_seconds": round(seconds, 3),
            "test_seconds": round(time.monotonic() - began, 3),
        }
    )
    if table is not None:
        write_report(run, embeddings, table, config)
    if not display.quiet:
        report(run, note)


def write_report(run: Run, embeddings: Floats, table: Table, config: TrainConfig) -> None:
    """Leave report.html in the run. It is the last thing done and can be done again: its failure fails no run."""
    try:
        from nearfar.report.run import write_run_report

        write_run_report(run.folder, embeddings, table, seed=config.seed)
    except Exception as error:
        warnings.warn(
            f"the run is whole, but its report could not be written: {error!r}. To try again: "
            f"nearfar report {run.folder}",
            stacklevel=2,
        )


def _take_average(embedder: nn.Module, learner: Learner) -> None:
    assert learner.ema is not None
    state = learner.ema.state_dict()["average"]
    assert isinstance(state, dict)
    embedder.load_state_dict(state)


def _threshold(
    embedder: Embedder, parts: Parts, config: TrainConfig, world: World
) -> tuple[dict[str, Any] | None, str]:
    """A threshold for "the same", and a line about it."""
    wished = config.evaluation.target_precision
    if parts.val is None:
        return None, "no threshold: there are no validation rows to calibrate it on"
    try:
        found = threshold_for(embed(embedder, parts.val, config, world), parts.val.labels, wished, config.seed)
    except InputError as error:
        return None, f"no threshold: {error}"
    return found.to_dict(), (
        f"two images show the same from a similarity of {found.threshold:.3f} on: "
        f"{found.precision:.1%} of such pairs do, and {found.tar:.1%} of those that do are found (validation)"
    )


def report(run: Run, note: str = "") -> None:
    """Print before and after, and what to do next."""
    metrics, config = run.metrics, run.config
    before, after = metrics.get("before", {}), metrics["after"]
    names = [name for name in SHOWN if name in after] + [name for name in after if name.endswith("accuracy")]
    name = Path(config.data.path).name
    what = f"{'unseen' if metrics['open_set'] else 'known'} classes of {name} ({metrics['measured_on']})"
    columns = {
        name: {key: values[key] for key in names if key in values}
        for name, values in (("before", before), ("after", after))
    }
    print_table(what, columns)
    best = metrics["best"]
    if best is not None:
        print(f"best of validation ({config.evaluation.metric} {best['value']:.1%}) at step {best['step']:,}")
    if note:
        print(note)
    print(f"trained {metrics['steps']:,} steps in {metrics['train_seconds']:,.0f} s; {run.folder} holds the model\n")
    if (run.folder / "report.html").is_file():
        print(f"look at it:            {run.folder / 'report.html'}")
    given = "features" if config.model.backbone == "features" else '"photos"'
    if given != "features":  # of which there is nothing to show
        print(f"search with it:        nearfar index {run.folder} DATA, nearfar search {run.folder} IMAGE")
        print(f"show it to others:     nearfar serve {run.folder}")
    print(f"measure it elsewhere:  nearfar evaluate {run.folder} DATA")
    print(f"repeat it:             nearfar train --config {run.folder / 'config.yaml'} --out NEW")
    print(f'use it:                nearfar.models.Embedder.load("{run.folder}").embed({given})')
