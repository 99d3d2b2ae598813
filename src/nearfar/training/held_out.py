"""Embeddings of classes that the model which made them was not trained on: what thresholds and choices rest on.

Where classes are held out for validation, these are their rows, by the model that was kept. Where they are few, a run
cross-fits: the training classes are dealt into folds, and each fold is embedded by a model that was trained on the
others. Only rows of one fold may then be compared with each other.
"""

import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nearfar.foundation.files import replaced_file
from nearfar.foundation.run_folder import RunError
from nearfar.training.runs import Run

FILE_NAME = "held_out.npz"


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Rows that were held out.

    Attributes:
        embeddings: (N, D), of any length; rows of unreadable images are NaN.
        labels: (N,) class ids.
        fold: (N,) numbers of the models that embedded them; all 0 where there was one.
        open_set: whether the classes were unknown to the model; if not, only the images were.
    """

    embeddings: NDArray[np.float32]
    labels: NDArray[np.int64]
    fold: NDArray[np.int64]
    open_set: bool

    def save(self, run: Run) -> None:
        """Keep them in the run's folder."""
        with replaced_file(run.folder / FILE_NAME) as file:
            np.savez(file, embeddings=self.embeddings, labels=self.labels, fold=self.fold, open_set=self.open_set)


def held_out_of(run: Run) -> HeldOut | None:
    """What a run has kept; None for a run that held nothing out, or was made before that was kept."""
    path: Path = run.folder / FILE_NAME
    if not path.is_file():
        return None
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as kept:
            return HeldOut(kept["embeddings"], kept["labels"], kept["fold"], bool(kept["open_set"]))
    except (ValueError, KeyError, OSError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise RunError(f"{path} is damaged ({error}): remove it; thresholds can then not be found anew") from error
