"""A run as training leaves it, without training; photographs in folders; vectors."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from nearfar.evaluation import calibrate
from nearfar.imaging import EvalTransform
from nearfar.models import Embedder
from nearfar.training.config import TrainConfig
from nearfar.training.options import with_options
from nearfar.training.runs import Run
from tests.training.making import patterns


def photos(folder: Path, classes: int = 6, each: int = 4, seed: int = 0) -> Path:
    """A folder for each class, of PNG files of 16 x 16 pixels."""
    table = patterns(classes=classes, each=each, noise=15.0, seed=seed)
    assert table.images is not None
    for row in range(len(table)):
        path = folder / table.label_name(row) / f"{row:03}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.asarray(table.images[row])).save(path)
    return folder


def embedder(seed: int = 0, **options: Any) -> Embedder:
    """A small network with random weights."""
    torch.manual_seed(seed)
    preprocess = EvalTransform(16, 16)
    return Embedder(
        "convnet", trunk_options={"width": 8}, preprocess=preprocess, **{"head": "linear", "dimension": 8, **options}
    ).eval()


def run(folder: Path, data: Path, seed: int = 0, threshold: float | None = None, **options: Any) -> Run:
    """A run folder with such a network; with a threshold, calibrated to precision 0.9 at it."""
    made = Run(folder)
    made.begin(with_options(TrainConfig(), {"data.path": str(data), "data.layout": None}))
    model = embedder(seed, **options)
    if threshold is not None:
        found = calibrate(np.array([threshold, threshold - 0.2]), np.array([True, False]), precision=0.9)
        model.calibration = {"threshold": {**found.to_dict(), "threshold": threshold}}
    model.save(folder)
    return made


def vectors(count: int, dimension: int = 16, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(count, dimension)).astype(np.float32)


def names(count: int, first: int = 0) -> list[str]:
    return [f"photos/{number:05}.jpg" for number in range(first, first + count)]
