"""Embeddings of held-out classes, by models that were not trained on them: the basis of thresholds and choices.

With validation classes, these are their rows, embedded by the kept model. With few classes, a run cross-fits: the
training classes are dealt into folds, and each fold is embedded by a model trained on the others. Then only rows of
the same fold may be compared with each other.
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
    """Held-out rows.

    Attributes:
        embeddings: (N, D), of any norm; rows of unreadable images are NaN.
        labels: (N,) class ids.
        fold: (N,) number of the model that embedded each row; all 0 for a single model.
        open_set: whether the classes were unknown to the model, not only the images.
    """

    embeddings: NDArray[np.float32]
    labels: NDArray[np.int64]
    fold: NDArray[np.int64]
    open_set: bool

    def save(self, run: Run) -> None:
        """Save the rows in the run's folder."""
        with replaced_file(run.folder / FILE_NAME) as file:
            np.savez(file, embeddings=self.embeddings, labels=self.labels, fold=self.fold, open_set=self.open_set)


def held_out_of(run: Run) -> HeldOut | None:
    """Load a run's held-out rows; None if it has none, or was made by a version that did not save them."""
    path: Path = run.folder / FILE_NAME
    if not path.is_file():
        return None
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            return HeldOut(arrays["embeddings"], arrays["labels"], arrays["fold"], bool(arrays["open_set"]))
    except (ValueError, KeyError, OSError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise RunError(
            f"{path} is damaged ({error}): remove it; thresholds can then not be calibrated again"
        ) from error
