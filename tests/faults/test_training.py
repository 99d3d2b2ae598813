"""Training that is killed, or finds the disk full, at any change of a file, loses nothing."""

import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from nearfar.data import Pixels
from nearfar.training.runs import Run
from tests.faults.crash import FAULTS, LONG, WORDS_OF, Crasher, How, points
from tests.training.making import SMALL, patterns

FEW = 2  # crashes of each kind
PARTS = 5 if LONG else 1


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
    outcome = crasher.run(words(data, folder), folder)
    assert outcome.code == 0, outcome.said
    return folder, outcome.changes


def same(one: Path, other: Path) -> None:
    ours, theirs = load_file(one / "model.safetensors"), load_file(other / "model.safetensors")
    assert ours.keys() == theirs.keys()
    for name in ours:
        assert np.array_equal(ours[name], theirs[name], equal_nan=True), name
    assert Run(one).metrics["after"] == Run(other).metrics["after"]
    assert (one / "report.html").is_file()
    assert len((one / "curves.csv").read_text().splitlines()) == len((other / "curves.csv").read_text().splitlines())


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("how", FAULTS)
def test_a_run_goes_on_to_the_same_end(
    how: How, part: int, crasher: Crasher, data: Path, whole: tuple[Path, int], tmp_path: Path
) -> None:
    finished, changes = whole
    for at in points(changes, FEW, how)[part::PARTS]:
        folder = tmp_path / f"{how}-{at}"
        outcome = crasher.run(words(data, folder), folder, at, how)
        where = f"{how} at change {at}: {outcome}"
        complete = (folder / "config.yaml").exists() and Run(folder).finished  # but for its report
        if how == "kill":
            assert outcome.code == -signal.SIGKILL, where
        else:
            assert outcome.code in ({0, 2} if complete else {2}), where
            assert "Traceback" not in outcome.said, where
            if outcome.code or not (folder / "report.html").is_file():
                assert any(word in outcome.said for word in (*WORDS_OF.values(), "the disk is full")), where
        if complete:
            again = crasher.run(["report", str(folder)], folder)
        elif (folder / "config.yaml").exists():
            assert how == "kill" or not (folder / "checkpoints").exists() or "--resume" in outcome.said, where
            again = crasher.run(["train", "--resume", str(folder), "--quiet"], folder)
        else:  # it had not begun: once more
            shutil.rmtree(folder, ignore_errors=True)
            again = crasher.run(words(data, folder), folder)
        assert again.code == 0, f"going on after {where}: {again}"
        same(folder, finished)
        shutil.rmtree(folder)
