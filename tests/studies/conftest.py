"""Studies small enough for a test: a network that is good for nothing, but frozen, and patterns to tell apart."""

from pathlib import Path

import pytest

from nearfar.data import Table
from nearfar.training.config import TrainConfig
from nearfar.training.options import with_options
from tests.compare.making import trunk_file
from tests.training.making import SMALL, patterns


@pytest.fixture(scope="session")
def trunk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the trunk's weights, and room for its features."""
    folder = tmp_path_factory.mktemp("trunk")
    trunk_file(folder)
    return folder


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> Table:
    """24 classes of 8 images, half of them to train on; what every path leads to."""
    made = patterns(noise=70.0)
    monkeypatch.setattr("nearfar.data.opening.open", lambda path, layout=None: made)
    return made


@pytest.fixture
def config(trunk: Path, table: Table, monkeypatch: pytest.MonkeyPatch) -> TrainConfig:
    """Heads of 8 numbers on them, trained for 6 steps."""
    monkeypatch.setenv("NEARFAR_CACHE", str(trunk))
    options = {**SMALL, "weights": str(trunk / "trunk.pt"), "max_steps": 6, "path": "patterns"}
    return with_options(TrainConfig(), options)
