"""`nearfar train` in several processes: what one process would do; what is refused; a process that is killed."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.distributed as dist

from nearfar.errors import InputError, NearfarError
from nearfar.foundation.run_folder import RunError
from nearfar.training import train as train_module
from nearfar.training.config import TrainConfig
from nearfar.training.launch import check_devices, launch, reason_of
from nearfar.training.options import ConfigError, with_options
from nearfar.training.runs import Run
from nearfar.training.shards import whole
from nearfar.training.train import train
from nearfar.training.world import World, restarted
from tests.training.making import SMALL, patterns
from tests.training.test_train import assert_same, same_end, step_of
from tests.training.torchrun import KILLED_IN
from tests.training.workers import second_has_a_bug, second_is_killed, second_refuses

ROOT = Path(__file__).parent.parent.parent
gloo = pytest.mark.skipif(not dist.is_gloo_available(), reason="torch has no gloo")
OPTIONS = {
    **SMALL, "epochs": 2, "batch_size": 8, "pad": 2, "k": 2, "sampler.kind": "pk", "freeze_batch_norm": True,
    "loss": "ProxyAnchorLoss + CircleLoss", "loss.ProxyAnchorLoss.sharded": True, "optimiser.clip_norm": 1.0,
}  # fmt: skip


@gloo
def test_two_processes_train_as_one_does(tmp_path: Path) -> None:
    """One process makes the batches of two, and goes the same way: losses, metrics, weights, and the choice of epoch."""
    two = train(patterns(), quiet=True, out=str(tmp_path / "two"), devices=2, **OPTIONS)
    assert two.finished and two.config.devices == 2 and (two.folder / "report.html").is_file()
    Run(tmp_path / "one").begin(two.config)
    one = train(patterns(), quiet=True, resume=tmp_path / "one", devices=1)
    losses = [[row["loss"] for row in run.curves if row["loss"] is not None] for run in (one, two)]
    assert len(losses[0]) == step_of(two) > 6
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-4)
    assert one.metrics["best"]["step"] == two.metrics["best"]["step"]
    for name, value in one.metrics["after"].items():
        assert two.metrics["after"][name] == pytest.approx(value, abs=0.03), name
    states = [run.load_checkpoint("last") for run in (one, two)]
    for name, weights in states[0]["embedder"].items():
        torch.testing.assert_close(states[1]["embedder"][name], weights, rtol=1e-2, atol=1e-3)
    shards = [whole(run.shards(step_of(run))) for run in (one, two)]
    assert set(shards[0]) == set(shards[1]) and "loss.losses.ProxyAnchorLoss.weight" in shards[0]
    for name, table in shards[0].items():
        torch.testing.assert_close(shards[1][name], table, rtol=1e-2, atol=1e-3)


@gloo
def test_a_killed_process_and_a_restart_by_torchrun(tmp_path: Path) -> None:
    """All are started again, go on from the last checkpoint, and end with the very same bits."""
    folders = [tmp_path / "whole", tmp_path / "killed"]
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--max-restarts=1"]
    command += ["--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", "--local-addr=localhost", "-m"]
    done = subprocess.run(
        [*command, "tests.training.torchrun", *map(str, folders)],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert f"exitcode: -{signal.SIGKILL.value}" in done.stderr  # it was killed
    a, b = (Run(folder) for folder in folders)
    assert a.config.devices == 2 and step_of(a) > KILLED_IN
    assert (a.folder / "config.yaml").read_text().replace("whole", "killed") == (b.folder / "config.yaml").read_text()
    same_end(a, b)
    assert_same(whole(a.shards(step_of(a))), whole(b.shards(step_of(b))))
    assert len(list((b.folder / "checkpoints").glob("shards-*"))) == 1


@gloo
def test_a_process_that_fails_ends_all_and_is_heard() -> None:
    with pytest.raises(InputError, match=r"^the second cannot: give it less$"):  # of its own type, as it was raised
        launch(second_refuses, 2)
    with pytest.raises(RunError, match=r"process 1 of 2 ended: .*SIGKILL"):
        launch(second_is_killed, 2)


@gloo
def test_a_bug_in_a_process_keeps_its_traceback() -> None:
    with pytest.raises(RuntimeError, match=r"process 1 of 2 ended:\n(?s:.*)in second_has_a_bug(?s:.*)") as caught:
        launch(second_has_a_bug, 2)
    assert "invalid literal for int()" in str(caught.value) and not isinstance(caught.value, NearfarError)


def test_last_words() -> None:
    """An error's, with or without its traceback; of a process that was killed, the signal's name."""
    for message in ("it cannot", {"message": "it cannot", "extraInfo": {}}):
        assert reason_of(SimpleNamespace(message=message)) == "it cannot"
    assert reason_of(SimpleNamespace(message="", signal_name=lambda: "SIGKILL")) == "SIGKILL"


# Refusals


def test_what_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="start the processes on each machine with torchrun or srun"):
        train(patterns(), nodes=2, out=str(tmp_path / "run"), **SMALL)
    with pytest.raises(ConfigError, match="devices=0 must be at least 1"):
        check_devices("cpu", 0)
    with pytest.raises(ConfigError, match="need accelerator cpu or gpu, not mps"):
        check_devices("mps", 2)
    with pytest.raises(ConfigError, match="chunk works on one device"):
        train(patterns(), devices=2, chunk=4, out=str(tmp_path / "run"), **SMALL)
    with pytest.raises(ConfigError, match="a share of the classes"):
        train(patterns(), sample_rate=0.0, out=str(tmp_path / "run"), **SMALL)
    with pytest.raises(ValueError, match="makes no positive pairs"):  # in this process, before others start
        train(patterns(), devices=2, loss="CircleLoss", k=1, out=str(tmp_path / "run"), **SMALL)
    monkeypatch.setattr(train_module, "started", lambda: World(1, 4, 1, 2))
    with pytest.raises(ConfigError, match="need --out RUN"):
        train(patterns(), **SMALL)
    with pytest.raises(ConfigError, match="2 processes were started on each of 2 machines"):
        train(patterns(), devices=4, out=str(tmp_path / "run"), **SMALL)
    assert not (tmp_path / "run").exists()


def test_batches_of_another_world(tmp_path: Path) -> None:
    """A batch is what the configuration says, however many make it."""
    config = with_options(TrainConfig(), {**SMALL, "devices": 2, "loss": "CircleLoss", "k": 2, "batch_size": 6})
    alone = train_module.prepare(config, patterns())
    both = [train_module.prepare(config, patterns(), World(rank, 2, rank, 2)) for rank in range(2)]
    assert alone.total_steps == both[0].total_steps == both[1].total_steps
    batch, first, second = (next(iter(prepared.loader)) for prepared in (alone, *both))
    assert batch.rows.tolist() == [*first.rows.tolist(), *second.rows.tolist()]
    assert torch.equal(batch.images, torch.cat([first.images, second.images]))


def test_a_world_of_one() -> None:
    world = World()
    rows = np.ones((3, 2))
    assert world.first and world.nodes == 1 and world.any(True, False) == [True, False]
    assert world.gathered(rows) is rows and world.broadcast("x") == "x"
    assert [World(rank, 3, rank, 3).part(7).tolist() for rank in range(3)] == [[0, 1, 2], [3, 4], [5, 6]]
    world.wait()


def test_restarts_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCHELASTIC_RESTART_COUNT", raising=False)
    assert not restarted()
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "0")
    assert not restarted()
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "2")
    assert restarted()


def test_large_tables_of_one_process_are_saved_in_parts_too(tmp_path: Path) -> None:
    """So that any number of processes can go on with them."""
    options = {**OPTIONS, "epochs": 4, "checkpoints.steps": 3, "max_steps": 7}
    run = train(patterns(), quiet=True, out=str(tmp_path / "run"), **options)
    assert run.shards(7).is_dir()
    state = run.load_checkpoint("last")
    assert "losses.ProxyAnchorLoss.weight" not in state["loss"]
    assert sorted(state["shards"]) == [
        "loss.losses.ProxyAnchorLoss.weight",
        "optimiser.losses.ProxyAnchorLoss.weight.exp_avg",
        "optimiser.losses.ProxyAnchorLoss.weight.exp_avg_sq",
    ]
    broken = tmp_path / "broken"
    shutil.copytree(run.folder, broken)
    shutil.rmtree(broken / "checkpoints" / "shards-7")
    with pytest.raises(OSError, match="shards-7"):
        whole(Run(broken).shards(7))
