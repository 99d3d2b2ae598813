"""Two runs on a folder of glyphs, one trained for a moment, for the command and for the browser."""

import shutil
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from nearfar.data.embedded import glyphs
from nearfar.models import Embedder
from nearfar.retrieval.encoder import Encoder
from nearfar.training.held_out import HeldOut
from nearfar.training.runs import Run
from nearfar.training.train import train
from tests.training.making import SMALL

CLASSES, EACH = 36, 8


@pytest.fixture(scope="session")
def glyph_folder(tmp_path_factory) -> Path:
    """A folder for each of 36 characters."""
    folder = tmp_path_factory.mktemp("data")
    table = glyphs(classes=CLASSES, per_class=EACH, size=24, difficulty=0.5, cache=folder / "cache")
    for row in range(len(table)):
        path = folder / "glyphs" / f"U+{ord(table.label_name(row)):04X}" / f"{row:03}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        assert table.images is not None
        Image.fromarray(np.asarray(table.images[row])).save(path)
    return folder / "glyphs"


@pytest.fixture(scope="session")
def glyph_runs(glyph_folder, tmp_path_factory) -> list[Path]:
    """A run of 60 steps, and the same with weights as they are before training. The first has held-out classes."""
    trained, untrained = (tmp_path_factory.mktemp("runs") / name for name in ("trained", "untrained"))
    options = {**SMALL, "size": 24, "framing": "stretch", "epochs": 1000, "quiet": True, "log_every": 50}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        train(str(glyph_folder), loss="MultiSimilarityLoss", max_steps=60, out=str(trained), **options)
    shutil.copytree(trained, untrained)
    model = Embedder.load(untrained)
    torch.manual_seed(0)
    for part in model.modules():
        if hasattr(part, "reset_parameters"):
            part.reset_parameters()
    model.save(untrained)
    pictures = sorted(glyph_folder.rglob("*.png"))
    labels = np.unique([path.parent.name for path in pictures], return_inverse=True)[1]
    vectors = Encoder.of_run(trained).embed(pictures)  # not held out; but who looks at the page cannot tell
    HeldOut(vectors, labels, np.zeros(len(labels), np.int64), True).save(Run(trained))
    return [trained, untrained]
