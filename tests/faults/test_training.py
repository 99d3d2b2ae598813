"""Training that is killed, or finds the disk full, at any change of a file, loses nothing."""

import os
import random
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from nearfar.data import Pixels
from nearfar.training.runs import Run
from tests.faults.crash import Crasher, How
from tests.training.making import SMALL, patterns

POINTS = 10**9 if os.environ.get("NEARFAR_LONG") else 4  # crashes of each kind


@pytest.fixture(scope="module")
def crasher() -> Iterator[Crasher]:
    process = Crasher()
    yield process
    process.close()


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures of 12 classes, of which half are for testing."""
    table = patterns(classes=12, each=4)
    assert isinstance(table.images, Pixels)
    path = tmp_path_factory.mktemp("data") / "patterns.npz"
    np.savez(path, images=np.stack([np.asarray(table.images[i]) for i in range(len(table))]), labels=table.labels)
    return path


def words(data: Path, out: Path) -> list[str]:
    options = SMALL | {"options": "{width: 8}", "batch_size": 8, "k": 2, "epochs": 2, "checkpoints.steps": 2}
    return ["train", str(data), *(word for name, value in options.items() for word in (f"--{name}", str(value))), "--quiet",
            "--out", str(out)]  # fmt: skip


@pytest.fixture(scope="module")
def whole(crasher: Crasher, data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """A run that nothing happened to, and how many changes of files it took."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    code, changes = crasher.run(words(data, folder), folder)
    assert code == 0
    return folder, changes


def same(one: Path, other: Path) -> None:
    ours, theirs = load_file(one / "model.safetensors"), load_file(other / "model.safetensors")
    assert ours.keys() == theirs.keys()
    for name in ours:
        assert np.array_equal(ours[name], theirs[name], equal_nan=True), name
    assert Run(one).metrics["after"] == Run(other).metrics["after"]
    assert (one / "report.html").is_file()
    assert len((one / "curves.csv").read_text().splitlines()) == len((other / "curves.csv").read_text().splitlines())


@pytest.mark.parametrize("how", ["kill", "full"])
def test_a_run_goes_on_to_the_same_end(
    how: How, crasher: Crasher, data: Path, whole: tuple[Path, int], tmp_path: Path
) -> None:
    finished, changes = whole
    points = random.Random(0).sample(range(1, changes + 1), min(POINTS, changes))
    for at in points:
        folder = tmp_path / f"{how}-{at}"
        code, _ = crasher.run(words(data, folder), folder, at, how)
        complete = (folder / "config.yaml").exists() and Run(folder).finished  # but for its report
        expected = {-signal.SIGKILL} if how == "kill" else {0, 2} if complete else {2}
        assert code in expected, f"{how} at change {at}"
        if complete:
            code, _ = crasher.run(["report", str(folder)], folder)
        elif (folder / "config.yaml").exists():
            code, _ = crasher.run(["train", "--resume", str(folder), "--quiet"], folder)
        else:  # it had not begun: once more
            shutil.rmtree(folder, ignore_errors=True)
            code, _ = crasher.run(words(data, folder), folder)
        assert code == 0, f"going on after {how} at change {at}"
        same(folder, finished)
        shutil.rmtree(folder)
