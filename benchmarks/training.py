"""A step of `nearfar train` against a bare PyTorch loop with the same model, loss, optimiser and batches.

Both train from the same weights in turn, several times over, in one process; the ratio is the median over the rounds.
What ours does besides: Lightning's loop, a seed for every step, the check that the loss is a number, a row of the
curves every ten steps, the progress bar's clock.
"""

import itertools
import tempfile
import warnings
from pathlib import Path

import torch

from benchmarks import extraction, results
from nearfar.training.config import TrainConfig
from nearfar.training.data import Stream
from nearfar.training.fit import make_trainer
from nearfar.training.learner import Learner, make_optimisation
from nearfar.training.loggers import Loggers
from nearfar.training.options import with_options
from nearfar.training.prepare import Prepared, prepare
from nearfar.training.progress import Display
from nearfar.training.recorder import Recorder
from nearfar.training.runs import Run

CSV = results.CSV.with_name("training.csv")
# From steps of a few milliseconds, where overhead shows, to those of the demo.
CASES = {
    "convnet, width 8, batch 16": {"options": {"width": 8}, "batch_size": 16},
    "convnet, width 16, batch 128": {"options": {"width": 16}, "batch_size": 128},
}


def ours(prepared: Prepared, steps: int) -> int:
    """Train by Lightning, with everything but validation and checkpoints, which are not steps."""
    prepared.loader.load_state_dict(prepared.loader.sampler.state_at(0, 0))
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run = Run(Path(folder))
        recorder = _Steps(
            run,
            prepared.config,
            Stream(prepared.loader, steps),
            val=None,
            test=None,
            display=Display(quiet=True),
            loggers=Loggers(prepared.config, run.folder),
        )
        learner = Learner(prepared.embedder, prepared.loss, prepared.config, steps, recorder)
        make_trainer(prepared.config, steps).fit(learner, recorder.stream)
        recorder.close()
    return steps


class _Steps(Recorder):
    def evaluate(self, learner: Learner) -> None: ...

    def save(self, learner: Learner) -> None: ...


def bare(prepared: Prepared, steps: int) -> int:
    """The loop anyone would write."""
    prepared.loader.load_state_dict(prepared.loader.sampler.state_at(0, 0))
    optimiser, schedule = make_optimisation(prepared.config, prepared.embedder, prepared.loss, steps)
    prepared.embedder.train()
    done = 0
    while done < steps:
        for batch in itertools.islice(prepared.loader, steps - done):
            optimiser.zero_grad()
            prepared.loss(prepared.embedder(batch.images), batch.labels).backward()
            optimiser.step()
            schedule.step()
            done += 1
    return steps


def measure(steps: int, rounds: int, out: Path | None) -> list[tuple[str, float, float, float]]:
    """Steps a second of ours and of the bare loop, and the ratio of their times; appended to `out`."""
    rows = []
    for case, options in CASES.items():
        config = with_options(TrainConfig(), {**options, "loss": "CircleLoss", "accelerator": "cpu"})
        with torch.random.fork_rng(devices=[]):
            prepared = prepare(config)
            fast, reference, ratio = extraction.in_rounds(
                lambda prepared=prepared: ours(prepared, steps),  # type: ignore[misc]
                lambda prepared=prepared: bare(prepared, steps),  # type: ignore[misc]
                rounds,
            )
        rows.append((case, fast, reference, ratio))
        print(f"{case}: {fast:.1f} steps a second against {reference:.1f}, step time {1 / ratio:.3f} x", flush=True)
        if out is not None:
            row = dict(zip(("case", "ours", "reference", "ratio"), rows[-1], strict=True))
            note = f"steps/s; {steps} steps, CircleLoss, glyphs, {torch.get_num_threads()} threads"
            results.append(extraction.Row(**results.stamp(), **row, note=note), out)  # type: ignore[arg-type]
    return rows
