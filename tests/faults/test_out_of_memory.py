"""Without memory: an error that names the options that take less, and a run that goes on."""

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from nearfar.cli import main
from nearfar.commands.train import parser
from nearfar.models import Embedder
from nearfar.training.config import TrainConfig
from nearfar.training.memory_errors import lighter_options, out_of_memory
from nearfar.training.options import with_options
from nearfar.training.runs import Run
from nearfar.training.train import prepare, train
from tests.retrieval.making import photos, run
from tests.training.making import SMALL, patterns
from tests.training.test_train import same_end

TABLE = patterns(classes=12, each=4)
OPTIONS = {**SMALL, "batch_size": 8, "k": 2, "epochs": 2, "checkpoints.steps": 2}
ERRORS = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 8 GiB"),
    RuntimeError("[enforce fail at alloc_cpu.cpp:124] err == 0. DefaultCPUAllocator: can't allocate memory: you tried"),
    MemoryError(),
]


@contextmanager
def without_memory(error: Exception, calls: int) -> Iterator[None]:
    """The network runs out of memory after so many batches."""
    original, left = Embedder.forward, calls

    def forward(self: Embedder, *args: Any) -> Any:
        nonlocal left
        left -= 1
        if left < 0:
            raise error
        return original(self, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Embedder, "forward", forward)
        yield


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "patterns.npz"
    assert TABLE.images is not None
    np.savez(path, images=np.stack([np.asarray(image) for image in TABLE.images]), labels=TABLE.labels)
    return path


def test_training_says_what_takes_less_and_goes_on(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    options = {**OPTIONS, "options": "{width: 8}"}
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    with without_memory(ERRORS[1], calls=8):  # those of the first measurement, and some steps
        assert main(["train", str(data), *words, "--quiet", "--out", str(folder)]) == 2
    said = capsys.readouterr().err
    assert said.startswith("nearfar train: out of memory (")
    for option in ("--p 2 --batch_size 4 ", "--chunk 2 --freeze_batch_norm", "--size 12 ", "--precision bf16-mixed"):
        assert option in said
    assert "--freeze " not in said.replace("--freeze_batch_norm", "")  # its weights are random
    assert f"nearfar train --resume {folder}" in said and f"--config {folder / 'config.yaml'} --out NEW" in said
    assert Run(folder).load_checkpoint("last")["step"] > 0 and not Run(folder).finished
    assert main(["train", "--resume", str(folder), "--quiet"]) == 0
    same_end(Run(folder), train(data, quiet=True, out=str(tmp_path / "whole"), **OPTIONS))


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_whatever_says_so(error: Exception, tmp_path: Path) -> None:
    with (
        without_memory(error, calls=0),
        pytest.raises(RuntimeError, match=r"^out of memory \((.|\n)*--p 2 --batch_size"),
    ):
        train(TABLE, quiet=True, out=str(tmp_path / "run"), **OPTIONS)
    assert not Run(tmp_path / "run").finished  # it has begun, and can be resumed


def test_before_a_run_has_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing_left(*_: Any, **__: Any) -> None:
        raise MemoryError

    monkeypatch.setattr("nearfar.training.prepare.build_embedder", nothing_left)
    with pytest.raises(RuntimeError, match=r"out of memory \(MemoryError\)(.|\n)*No run was started"):
        train(TABLE, quiet=True, out=str(tmp_path / "run"), **OPTIONS)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("command", ["evaluate", "embed", "index"])
def test_commands_that_embed(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(tmp_path / "run", photos(tmp_path / "photos", classes=8, each=3))
    words = [command, str(tmp_path / "run"), *(["--out", str(tmp_path / "e.npz")] if command == "embed" else [])]
    for error in ERRORS:
        with without_memory(error, calls=0):
            assert main(words) == 2
        said = capsys.readouterr().err
        assert said.startswith(f"nearfar {command}: out of memory (") and "--device cpu" in said
    assert not (tmp_path / "e.npz").exists() and not (tmp_path / "run" / "index" / "index.json").exists()
    assert main(words) == 0


def test_what_the_libraries_raise() -> None:
    for ask in (lambda: torch.empty(2**50), lambda: np.empty(2**50), lambda: bytearray(2**50)):
        with pytest.raises((RuntimeError, MemoryError)) as caught:
            ask()
        assert out_of_memory(caught.value), caught.value
    for other in (RuntimeError("shapes differ"), ValueError("out of memory of the user"), OSError(28, "No space left")):
        assert not out_of_memory(other)


CONFIGURATIONS = [
    {},
    {"loss": "ArcFaceLoss", "sampler.kind": "plain"},
    {"loss": "CircleLoss + 0.5 * ProxyAnchorLoss", "loss.CircleLoss.memory": 40, "chunk": 6, "freeze_batch_norm": True},
    {"loss": "CircleLoss", "loss.memory": 40, "sampler.kind": "balanced", "workers": 2},
    {"size": (16, 12), "framing": "stretch"},
]


@pytest.mark.parametrize("options", CONFIGURATIONS, ids=str)
def test_the_advice_can_be_followed(options: dict[str, Any]) -> None:
    """Every line is options that are accepted as they stand, on top of the configuration of the run."""
    config = prepare(with_options(TrainConfig(), {**OPTIONS, **options}), TABLE).config
    lines = dict(lighter_options(config))
    assert len(lines) >= 4
    for line in lines:
        form = parser()
        changed = form.settings_of(form.parse_args(shlex.split(line)))
        assert changed
        if "devices" not in changed:  # which would be begun in processes of their own
            lighted = prepare(with_options(config, changed), TABLE).config
            assert lighted != config
    assert any("chunk" in line for line in lines) and any("size" in line for line in lines)
