"""The run folder: everything that training writes.

    config.yaml          the resolved configuration; `nearfar train --config` repeats the run
    model.safetensors    the best model, with its label names and its calibrated threshold
    metrics.json         metrics of features, initial and trained model on the test classes; the kept one; times
    split.csv            every row of the data with its label, its role and a fingerprint
    held_out.npz         embeddings of held-out classes, for calibrating thresholds
    curves.csv           loss, similarities, rates and validation metrics by step
    report.html          curves, similarities, best and worst queries, a map of the embedding
    checkpoints/         last.pt, which `nearfar train --resume` continues, best.pt and start.pt; large class
                         weights are beside it, in shards-STEP
    environment.json     versions and machine

Files are replaced atomically: written beside, flushed to the disk, renamed. A process killed at any moment leaves the
old state or the new one.
"""

import contextlib
import csv
import errno
import io
import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from nearfar.errors import MissingFileError
from nearfar.foundation.files import named_errors, replaced_file, write_file, write_rows
from nearfar.foundation.folders import numbered_folder
from nearfar.foundation.run_folder import RunError, RunFolder, is_run, not_a_run
from nearfar.models import Embedder
from nearfar.training.config import TrainConfig
from nearfar.training.environment import environment
from nearfar.training.memory_errors import out_of_memory
from nearfar.training.options import ConfigError, read_yaml, to_yaml
from nearfar.training.shards import Shard, save_shards

COSINES = ("cosine recall@1", "cosine map@r")  # of the real vectors behind binary codes
MEASURED = ("recall@1", "map@r", *COSINES, "test recall@1", "test map@r")
COLUMNS = ("step", "epoch", "seconds", "loss", "s_p", "s_n", "lr", *MEASURED)


class Run(RunFolder):
    """A run folder, as `nearfar.train` returns it.

    >>> Run("runs/none").model()  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    nearfar.errors.MissingFileError: there is no run runs/none: give a folder that nearfar train left, such as runs/...
    """

    @property
    def config(self) -> TrainConfig:
        """The resolved configuration."""
        if not is_run(self.folder):
            raise ConfigError(not_a_run(self.folder))
        if not (self.folder / "config.yaml").stat().st_size:  # an empty file would read as the default configuration
            raise ConfigError(f"{self.folder / 'config.yaml'} is damaged: it is empty")
        return read_yaml(self.folder / "config.yaml")

    @property
    def has_model(self) -> bool:
        """Whether the best model is there; resuming a finished run without it makes it from the checkpoints again."""
        return (self.folder / "model.safetensors").is_file()

    def model(self, device: str = "cpu") -> Embedder:
        """The best model."""
        if not self.has_model:
            missing = f"{self.folder} has no model{'' if self.finished else ' yet'}"
            raise MissingFileError(
                f"{missing}: nearfar train --resume {self.folder} makes it"
                if is_run(self.folder)
                else not_a_run(self.folder)
            )
        return Embedder.load(self.folder, device=device)

    # Writing

    def check_free(self) -> None:
        """Reject a folder that contains a run."""
        if is_run(self.folder):
            resume = "" if self.finished else f"nearfar train --resume {self.folder} resumes it; "
            raise ConfigError(f"{self.folder} already contains a run: {resume}choose another --out for a new one")

    def begin(self, config: TrainConfig) -> None:
        """Create the folder and write its configuration."""
        self.check_free()
        self.folder.mkdir(parents=True, exist_ok=True)
        write_file(self.folder / "environment.json", json.dumps(environment(), indent=2))
        write_file(self.folder / "config.yaml", to_yaml(config))  # last: it makes the folder a run

    def write_metrics(self, changes: Mapping[str, Any]) -> None:
        """Add to `metrics.json`."""
        text = json.dumps({**self.metrics, **changes}, indent=2, ensure_ascii=False)
        write_file(self.folder / "metrics.json", text)

    def fold(self, number: int) -> "Run":
        """The run folder of the training without one fold, deleted after the choice."""
        return Run(self.folder / "folds" / str(number))

    def save_look(self, name: str, embeddings: NDArray[np.float32]) -> None:
        """Save embeddings of held-out rows under a name."""
        with replaced_file(self.folder / "looks" / f"{name}.npy") as file:
            np.save(file, embeddings)

    def load_look(self, name: str) -> NDArray[np.float32] | None:
        """Load the embeddings that `save_look` saved; None if there are none."""
        path = self.folder / "looks" / f"{name}.npy"
        embeddings: NDArray[np.float32] | None = np.load(path, allow_pickle=False) if path.is_file() else None
        return embeddings

    def forget_folds(self) -> None:
        """Delete the folders of the folds."""
        shutil.rmtree(self.folder / "folds", ignore_errors=True)

    def save_checkpoint(self, name: str, state: Mapping[str, Any]) -> None:
        """Save a state as `checkpoints/NAME.pt`, replacing the previous one."""
        path = self.folder / "checkpoints" / f"{name}.pt"
        try:
            with replaced_file(path) as file:
                torch.save(dict(state), file)
        except (OSError, RuntimeError) as error:  # torch wraps errors of the disk
            if out_of_memory(error):
                raise
            raise RunError(self._not_saved(path, error)) from error

    def _not_saved(self, path: Path, error: Exception) -> str:
        full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
        why = "the disk is full" if full or "enforce fail" in str(error) else str(error)
        saved, name = "no checkpoint was saved yet", path.stem if path.suffix == ".pt" else "last"
        if self.has_checkpoint(name):
            with contextlib.suppress(OSError, RuntimeError):
                saved = f"the one of step {self.load_checkpoint(name)['step']} is intact"
        return f"{path} could not be written: {why}; {saved}. Make room, then: nearfar train --resume {self.folder}"

    def load_checkpoint(self, name: str) -> dict[str, Any]:
        """Load a saved state, without executing code in it."""
        path = self.folder / "checkpoints" / f"{name}.pt"
        try:
            state = torch.load(path, map_location="cpu", weights_only=True)
            if not isinstance(state, dict) or "step" not in state:
                raise ValueError("it does not contain a state")
        except FileNotFoundError:
            raise
        except Exception as error:  # damaged files can raise anything
            if out_of_memory(error):
                raise
            raise self.damaged(path, error, path.parent, "starts again at its first step") from error
        return state

    # Sharded tensors. A state names the step of its shards and is written after them, so that the last state has its
    # shards whenever a process is killed.

    def shards(self, step: int) -> Path:
        """The folder of the shards of a step."""
        return self.folder / "checkpoints" / f"shards-{step}"

    def save_shards(self, step: int, shards: Mapping[str, Shard]) -> None:
        """Save shards; every process saves its own."""
        try:
            save_shards(self.shards(step), shards)
        except OSError as error:
            raise RunError(self._not_saved(self.shards(step), error)) from error

    def forget_shards(self, but: int) -> None:
        """Delete the shards of other steps."""
        for folder in (self.folder / "checkpoints").glob("shards-*"):
            if folder != self.shards(but):
                shutil.rmtree(folder, ignore_errors=True)

    def has_checkpoint(self, name: str) -> bool:
        """Whether a state of this name is saved."""
        return (self.folder / "checkpoints" / f"{name}.pt").is_file()


class Curves:
    """Writer of `curves.csv`; opened at a step, it deletes later rows."""

    def __init__(self, run: Run, step: int):
        path = run.folder / "curves.csv"
        try:
            rows = [row for row in _rows(path) if int(row["step"]) <= step]
        except (ValueError, KeyError, TypeError, csv.Error) as error:
            raise RunError(f"{path} is damaged ({error}): remove it, and the run continues without it") from error
        write_rows(path, COLUMNS, ([row[name] for name in COLUMNS] for row in rows))
        self._path, self._file = path, path.open("a", newline="", encoding="utf-8")
        self._writer = csv.DictWriter(self._file, COLUMNS)

    def add(self, row: Mapping[str, float]) -> None:
        """Write one row; missing values stay empty."""
        with named_errors(self._path):
            self._writer.writerow({name: row.get(name, "") for name in COLUMNS})
            self._file.flush()

    def close(self) -> None:
        """Close the file. Every row was flushed when it was added, so errors were raised then."""
        with contextlib.suppress(OSError):
            self._file.close()


def _rows(path: Path) -> list[dict[str, str]]:
    """The complete rows; a last row cut off by a kill is left out."""
    if not path.is_file():
        return []
    text = path.read_text(encoding="utf-8")
    lines = text[: text.rfind("\n") + 1]
    return [row for row in csv.DictReader(io.StringIO(lines)) if row.get(COLUMNS[-1]) is not None]


def new_folder(config: TrainConfig) -> Path:
    """The folder runs/DATA-LOSS-NUMBER with the first free number."""
    data = re.sub(r"[^\w.-]+", "-", Path(config.data.path).stem) or "data"
    loss = "+".join(loss.name.removesuffix("Loss").lower() for loss in config.loss)
    return numbered_folder("runs", f"{data}-{loss}")
