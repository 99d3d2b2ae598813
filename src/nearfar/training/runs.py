"""The run folder: everything that training leaves behind.

    config.yaml          the configuration with nothing left open; `nearfar train --config` repeats it
    model.safetensors    the best model, with its label names and its calibrated threshold
    metrics.json         features, start and trained model, on the test classes; which of them is kept, and why; times
    split.csv            every row of the data with its label, its role and a fingerprint
    held_out.npz         embeddings of classes that were held out, which thresholds are calibrated on
    curves.csv           loss, similarities, rates and validation metrics by step
    report.html          a page to look at: curves, similarities, best and worst queries, a map of the embedding
    checkpoints/         last.pt, from which `nearfar train --resume` goes on, best.pt and start.pt; what is too large
                         for one process is beside it, in shards-STEP
    environment.json     versions and machine

Files are replaced whole: written beside, flushed to the disk, renamed. A process killed at any moment leaves the old
state or the new one.
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
from nearfar.training.exhausted import out_of_memory
from nearfar.training.options import ConfigError, read_yaml, to_yaml
from nearfar.training.shards import Shard, save_shards

COSINES = ("cosine recall@1", "cosine map@r")  # of the numbers behind binary codes
MEASURED = ("recall@1", "map@r", *COSINES, "test recall@1", "test map@r")
COLUMNS = ("step", "epoch", "seconds", "loss", "s_p", "s_n", "lr", *MEASURED)


class Run(RunFolder):
    """A run folder; what `nearfar.train` returns.

    >>> Run("runs/none").model()  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    nearfar.errors.MissingFileError: there is no run runs/none: give a folder that nearfar train left, such as runs/...
    """

    @property
    def config(self) -> TrainConfig:
        """What was trained, with nothing left open."""
        if not is_run(self.folder):
            raise ConfigError(not_a_run(self.folder))
        if not (self.folder / "config.yaml").stat().st_size:  # elsewhere, that is a configuration without options
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
        """Refuse a folder that holds a run already."""
        if is_run(self.folder):
            go_on = "" if self.finished else f"nearfar train --resume {self.folder} goes on with it; "
            raise ConfigError(f"{self.folder} holds a run already: {go_on}choose another --out for a new one")

    def begin(self, config: TrainConfig) -> None:
        """Make the folder, and say in it what is trained."""
        self.check_free()
        self.folder.mkdir(parents=True, exist_ok=True)
        write_file(self.folder / "environment.json", json.dumps(environment(), indent=2))
        write_file(self.folder / "config.yaml", to_yaml(config))  # last: it makes the folder a run

    def write_metrics(self, changes: Mapping[str, Any]) -> None:
        """Add to `metrics.json`."""
        text = json.dumps({**self.metrics, **changes}, indent=2, ensure_ascii=False)
        write_file(self.folder / "metrics.json", text)

    def fold(self, number: int) -> "Run":
        """Where the training without one fold of the classes is kept until what it is for has been chosen."""
        return Run(self.folder / "folds" / str(number))

    def save_look(self, name: str, embeddings: NDArray[np.float32]) -> None:
        """Keep embeddings of held-out rows."""
        with replaced_file(self.folder / "looks" / f"{name}.npy") as file:
            np.save(file, embeddings)

    def load_look(self, name: str) -> NDArray[np.float32] | None:
        """What `save_look` has kept."""
        path = self.folder / "looks" / f"{name}.npy"
        found: NDArray[np.float32] | None = np.load(path, allow_pickle=False) if path.is_file() else None
        return found

    def forget_folds(self) -> None:
        """Delete what the folds have left."""
        shutil.rmtree(self.folder / "folds", ignore_errors=True)

    def save_checkpoint(self, name: str, state: Mapping[str, Any]) -> None:
        """Keep a state as `checkpoints/NAME.pt`, in place of the one before."""
        path = self.folder / "checkpoints" / f"{name}.pt"
        try:
            with replaced_file(path) as file:
                torch.save(dict(state), file)
        except (OSError, RuntimeError) as error:  # torch wraps what the disk says
            if out_of_memory(error):
                raise
            raise RunError(self._not_saved(path, error)) from error

    def _not_saved(self, path: Path, error: Exception) -> str:
        full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
        why = "the disk is full" if full or "enforce fail" in str(error) else str(error)
        kept, name = "nothing was kept yet", path.stem if path.suffix == ".pt" else "last"
        if self.has_checkpoint(name):
            with contextlib.suppress(OSError, RuntimeError):
                kept = f"the one of step {self.load_checkpoint(name)['step']} is intact"
        return f"{path} could not be written: {why}; {kept}. Make room, then: nearfar train --resume {self.folder}"

    def load_checkpoint(self, name: str) -> dict[str, Any]:
        """A state that was kept; nothing in it is executed."""
        path = self.folder / "checkpoints" / f"{name}.pt"
        try:
            state = torch.load(path, map_location="cpu", weights_only=True)
            if not isinstance(state, dict) or "step" not in state:
                raise ValueError("it holds no state")
        except FileNotFoundError:
            raise
        except Exception as error:  # bad bytes may be anything to it
            if out_of_memory(error):
                raise
            raise self.damaged(path, error, path.parent, "begins again at its first step") from error
        return state

    # What no process has whole. A state names the step that its shards are of, and is written after them: whenever a
    # process is killed, the last state has its shards.

    def shards(self, step: int) -> Path:
        """Where the shards of a step are."""
        return self.folder / "checkpoints" / f"shards-{step}"

    def save_shards(self, step: int, shards: Mapping[str, Shard]) -> None:
        """Keep them; every process does it with its own."""
        try:
            save_shards(self.shards(step), shards)
        except OSError as error:
            raise RunError(self._not_saved(self.shards(step), error)) from error

    def forget_shards(self, but: int) -> None:
        """Delete those of other steps."""
        for folder in (self.folder / "checkpoints").glob("shards-*"):
            if folder != self.shards(but):
                shutil.rmtree(folder, ignore_errors=True)

    def has_checkpoint(self, name: str) -> bool:
        """Whether such a state was kept."""
        return (self.folder / "checkpoints" / f"{name}.pt").is_file()


class Curves:
    """`curves.csv`, row by row; opened at a step, it forgets what was written after it."""

    def __init__(self, run: Run, step: int):
        path = run.folder / "curves.csv"
        try:
            kept = [row for row in _rows(path) if int(row["step"]) <= step]
        except (ValueError, KeyError, TypeError, csv.Error) as error:
            raise RunError(f"{path} is damaged ({error}): remove it, and the run goes on without it") from error
        write_rows(path, COLUMNS, ([row[name] for name in COLUMNS] for row in kept))
        self._path, self._file = path, path.open("a", newline="", encoding="utf-8")
        self._writer = csv.DictWriter(self._file, COLUMNS)

    def add(self, row: Mapping[str, float]) -> None:
        """One row; what is missing stays empty."""
        with named_errors(self._path):
            self._writer.writerow({name: row.get(name, "") for name in COLUMNS})
            self._file.flush()

    def close(self) -> None:
        """No more rows. Each was written when it came; where that failed, it has been told."""
        with contextlib.suppress(OSError):
            self._file.close()


def _rows(path: Path) -> list[dict[str, str]]:
    """The whole rows; a last one that was cut off by a kill is left out."""
    if not path.is_file():
        return []
    text = path.read_text(encoding="utf-8")
    lines = text[: text.rfind("\n") + 1]
    return [row for row in csv.DictReader(io.StringIO(lines)) if row.get(COLUMNS[-1]) is not None]


def new_folder(config: TrainConfig) -> Path:
    """runs/DATA-LOSS-NUMBER, the first number that is free."""
    data = re.sub(r"[^\w.-]+", "-", Path(config.data.path).stem) or "data"
    loss = "+".join(loss.name.removesuffix("Loss").lower() for loss in config.loss)
    return numbered_folder("runs", f"{data}-{loss}")
