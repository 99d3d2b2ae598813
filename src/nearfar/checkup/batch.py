"""The batch doctor on the first batch of a training, by the initial model or by that of a finished run."""

import torch

from nearfar.data import Table
from nearfar.training.candidates import on_cached_features
from nearfar.training.config import TrainConfig
from nearfar.training.doctor import BatchReport, diagnose_batch
from nearfar.training.norms import set_norms
from nearfar.training.prepare import Prepared, prepare
from nearfar.training.progress import Display
from nearfar.training.runs import Run
from nearfar.training.start import start


def diagnose_first_batch(
    config: TrainConfig, table: Table, run: Run | None = None, display: Display | None = None
) -> tuple[Prepared, BatchReport]:
    """Prepare training, and diagnose its first batch; with a run, by the run's model."""
    with torch.random.fork_rng(devices=[]):
        prepared = prepare(config, table, display=display)
        embedder, parts, chosen = prepared.embedder, prepared.parts, prepared.config
        if run is None:
            # Use the cache, so that a run with a frozen trunk finds the features there.
            start(embedder, prepared.loss, parts.train, on_cached_features(chosen), display=display)
        else:
            embedder.load_state_dict(run.model().state_dict())
        set_norms(embedder, prepared.loss, chosen.model)
        batch = next(iter(prepared.loader))
        embedder.eval()
        with torch.no_grad():
            features = batch.images if chosen.model.freeze else embedder.features(batch.images)
            embeddings = embedder.project(features, embedder.free_norm)
        return prepared, diagnose_batch(embeddings, batch.labels, prepared.loss)
