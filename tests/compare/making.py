"""A comparison small enough for a test: a network that is good for nothing, but frozen, and patterns to tell apart."""

from pathlib import Path
from typing import Any

import torch

from nearfar.compare.comparison import compare
from nearfar.compare.leaderboard import Leaderboard
from nearfar.data import Table
from nearfar.models import Embedder
from tests.training.making import SMALL, patterns

SHARED = {name: value for name, value in SMALL.items() if name != "folds"}  # a comparison has folds of its own


LOSSES = ["ContrastiveLoss", "NormFaceLoss"]


def data() -> Table:
    """24 classes of 6; 12 of them to train on."""
    return patterns(classes=24, each=6, noise=60.0)


def trunk_file(folder: Path) -> str:
    """Weights of a trunk, drawn at random, as if someone had trained them."""
    torch.manual_seed(0)
    path = folder / "trunk.pt"
    torch.save(Embedder("convnet", head=None, trunk_options={"width": 8}).trunk.state_dict(), path)
    return str(path)


def small(out: Path, weights: str, **changed: Any) -> Leaderboard:
    """Three settings of two losses on two folds, two seeds."""
    options = {"losses": LOSSES, "trials": 3, "seeds": 2, "folds": 2, "epochs": 2, "weights": weights, **SHARED}
    return compare(data(), **{**options, "quiet": True, "out": str(out), **changed})
