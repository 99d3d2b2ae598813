"""`check_up`: the batch doctor called on the first batch of a run, before there is one."""

from dataclasses import replace

import torch

from nearfar.training.config import TrainConfig
from nearfar.training.doctor import BatchReport, diagnose_batch
from nearfar.training.progress import Display
from nearfar.training.runs import Run
from nearfar.training.start import start
from nearfar.training.train import prepare


def check_up(config: TrainConfig, run: Run | None = None, display: Display | None = None) -> tuple[str, BatchReport]:
    """A summary of the data, and a report on its first batch; with a run, by the run's model."""
    with torch.random.fork_rng(devices=[]):
        prepared = prepare(config, display=display)
        embedder, parts = prepared.embedder, prepared.parts
        if run is None:
            start(embedder, prepared.loss, parts.train, prepared.config, display=display)
        else:
            embedder.load_state_dict(run.model().state_dict())
        batch = next(iter(prepared.loader))
        embedder.eval()
        with torch.no_grad():
            embeddings = embedder.project(batch.images) if prepared.config.model.freeze else embedder(batch.images)
        report = diagnose_batch(embeddings, batch.labels, prepared.loss)
    tables = [part for part in (parts.train, parts.val, parts.test) if part is not None]
    lines = [replace(part, notes=()).summary() for part in tables]
    notes = dict.fromkeys(note for told in (*(part.notes for part in tables), parts.notes) for note in told)
    return "\n".join([*lines, *(f"note: {note}" for note in notes)]), report
