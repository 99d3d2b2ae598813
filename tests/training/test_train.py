"""Runs from end to end on small made data; what is refused; what a stop of any kind leaves behind."""

import errno
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import nearfar
from nearfar.data import glyphs
from nearfar.errors import MissingFileError
from nearfar.evaluation import retrieval_metrics
from nearfar.foundation.run_folder import RunError
from nearfar.models import Embedder
from nearfar.training import learner, recorder, runs
from nearfar.training.config import TrainConfig
from nearfar.training.evaluate import evaluate
from nearfar.training.learner import Learner
from nearfar.training.options import ConfigError, with_options
from nearfar.training.runs import Curves, Run
from nearfar.training.train import StoppedError, prepare, train
from tests.training.making import SMALL, patterns

ROOT = Path(__file__).parent.parent.parent
TABLE = patterns()


def short(out: Path, **options: object) -> Run:
    return train(TABLE, quiet=True, out=str(out), **{**SMALL, "epochs": 2, **options})


def step_of(run: Run, name: str = "last") -> int:
    return int(run.load_checkpoint(name)["step"])


# A run


def test_what_a_run_leaves(tmp_path: Path) -> None:
    run = short(tmp_path / "run", loss="CircleLoss + 0.5 * ArcFaceLoss")
    assert run.finished and isinstance(run, Run)
    files = {"config.yaml", "model.safetensors", "metrics.json", "curves.csv", "checkpoints", "environment.json"}
    files |= {"report.html", "split.csv", "held_out.npz"}
    assert {path.name for path in run.folder.iterdir()} == files
    assert {path.name for path in (run.folder / "checkpoints").iterdir()} == {"last.pt", "best.pt", "start.pt"}
    assert json.loads((run.folder / "environment.json").read_text())["nearfar"] == nearfar.__version__
    steps = [row["step"] for row in run.curves if row["loss"] is not None]
    assert steps == list(range(1, int(run.metrics["steps"]) + 1))
    measured = [row for row in run.curves if row["recall@1"] is not None]
    assert [row["epoch"] for row in measured] == [0, 1]
    best = max(measured, key=lambda row: row["map@r"])
    assert run.metrics["best"]["value"] == best["map@r"] and step_of(run, "best") == best["step"]
    assert run.config.sampler.kind == "pk" and run.config.data.framing == "stretch"  # nothing is left open


def test_metrics_are_those_of_the_saved_model_on_the_test_rows(tmp_path: Path) -> None:
    run = short(tmp_path / "run")
    test = TABLE.split("test")
    model = Embedder.load(run.folder)
    expected = retrieval_metrics(model.embed(test.images), test.labels)
    assert run.metrics["after"]["recall@1"] == expected["recall@1"]
    assert run.metrics["after"]["map@r"] == expected["map@r"]
    assert evaluate(run, test)["map@r"] == expected["map@r"]
    larger = replace(model.preprocess, size=24)
    found = torch.from_numpy(np.concatenate(list(model.stream(test.images, transform=larger))))
    assert evaluate(run, test, size=24)["map@r"] == retrieval_metrics(found, test.labels)["map@r"] != expected["map@r"]
    assert set(model.label_names) < set(TABLE.label_names) and len(model.label_names) == 9  # 3 of 12 are validation
    threshold = model.calibration.get("threshold")
    assert threshold == run.metrics["threshold"]


def test_the_best_epoch_is_chosen_on_validation_classes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With validation values that fall, the first epoch's model is kept, whatever the test rows would say."""
    values = iter([0.9, 0.5, 0.1])
    monkeypatch.setattr(recorder, "measure", lambda *args, **options: {"map@r": next(values), "recall@1": 0.0})
    run = short(tmp_path / "run", epochs=3)
    first = run.load_checkpoint("best")
    assert run.metrics["best"]["epoch"] == 0 and first["step"] == step_of(run) // 3
    saved = load_file(run.folder / "model.safetensors")
    assert all(torch.equal(saved[name], value) for name, value in first["embedder"].items())


def test_watching_the_test_rows_decides_nothing(tmp_path: Path) -> None:
    watched, unwatched = short(tmp_path / "a", **{"evaluation.watch_test": True}), short(tmp_path / "b")
    rows = [row for row in watched.curves if row["test recall@1"] is not None]
    assert [row["epoch"] for row in rows] == [0, 1]
    assert all(row["test recall@1"] is None for row in unwatched.curves)
    assert (
        watched.metrics["best"] == unwatched.metrics["best"] and watched.metrics["after"] == unwatched.metrics["after"]
    )
    best = next(row for row in rows if row["step"] == watched.metrics["best"]["step"])
    assert best["test recall@1"] == pytest.approx(watched.metrics["after"]["recall@1"])


def test_a_lost_model_is_made_again(tmp_path: Path) -> None:
    run = short(tmp_path / "run", epochs=1)
    path, metrics, images = run.folder / "model.safetensors", run.metrics, [TABLE.images[row] for row in range(4)]
    expected = run.model().embed(images)
    path.unlink()
    with pytest.raises(MissingFileError, match=r"has no model: nearfar train --resume .*run makes it"):
        run.model()
    resumed = train(TABLE, resume=run.folder, quiet=True)
    assert resumed.metrics["after"] == metrics["after"]
    np.testing.assert_array_equal(resumed.model().embed(images), expected)


def test_larger_images_in_evaluation(tmp_path: Path) -> None:
    run = short(tmp_path / "run", test_size=24, epochs=1)
    assert run.model().preprocess.size == 24 and run.config.data.size == 16
    with pytest.raises(ConfigError, match="needs data\\.size"):
        train(TABLE, quiet=True, out=str(tmp_path / "no"), **{**SMALL, "size": None, "test_size": 24})


def test_it_learns_unseen_characters(tmp_path: Path) -> None:
    """A tenth of the demo's budget: ten times the untrained network, on characters it has not seen."""
    table = glyphs(classes=400, per_class=8, cache=tmp_path)
    run = train(
        table,
        quiet=True,
        out=str(tmp_path / "run"),
        epochs=8,
        loss="MultiSimilarityLoss",
        options={"width": 8},
        dimension=64,
        batch_size=64,
        lr=5e-3,
        accelerator="cpu",
        **{"evaluation.every": 8},
    )
    before, after = run.metrics["before"]["recall@1"], run.metrics["after"]["recall@1"]
    assert before < 0.1
    assert after > 0.3, after  # 0.37 where this was written


def test_same_seed_same_run(tmp_path: Path) -> None:
    models = []
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        state = torch.get_rng_state()
        run = short(tmp_path / name, seed=seed, epochs=1)
        assert torch.equal(torch.get_rng_state(), state)  # the caller's generator is left alone
        models.append(load_file(run.folder / "model.safetensors"))
    assert all(torch.equal(models[0][name], models[1][name]) for name in models[0])
    assert any(not torch.equal(models[0][name], models[2][name]) for name in models[0])


@pytest.mark.parametrize(
    "options",
    [
        {"ema": 0.9},
        {"precision": "bf16-mixed"},
        {"chunk": 8, "freeze_batch_norm": True},
        {"optimiser.clip_norm": 0.1, "optimiser.clip_value": 0.01, "optimiser.name": "sgd"},
        {"schedule.kind": "step", "warmup_epochs": 1, "head": "mlp", "schedule.warmup_steps": 2},
        {"head": "hash", "sampler.kind": "balanced", "loss": "ProxyAnchorLoss"},
        {"loss": "CircleLoss", "loss.class_level": True, "loss.dims": "4,8", "data.validation": 0},
        {"loss": "TripletMarginLoss", "loss.memory": 32, "parts": (1, 2), "dimension": 9, "evaluation.flip": True},
        {"head": "none", "dimension": None, "split": "images"},
    ],
    ids=lambda options: " ".join(options),
)
def test_options_train(tmp_path: Path, options: dict) -> None:
    run = short(tmp_path / "run", max_steps=5, **options)
    assert run.metrics["steps"] == 5 and 0 <= run.metrics["after"]["recall@1"] <= 1


def test_a_report_can_be_left_out(tmp_path: Path) -> None:
    run = short(tmp_path / "run", max_steps=1, **{"evaluation.report": False})
    assert run.finished and not (run.folder / "report.html").exists()


def test_a_warmup_that_would_never_end_is_shorter(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = {**SMALL, "warmup_epochs": 9, "schedule.warmup_steps": 2000, "max_steps": 20}  # an epoch has 4
    run = train(TABLE, out=str(tmp_path / "run"), **options)
    said = " ".join(capsys.readouterr().err.split())
    assert "warm-up of the rates shortened from 2,000 steps to 2: the run has 20" in said
    assert "of the head (trunk frozen) shortened from 9 epochs to 0: the run has 20 steps, an epoch 4" in said
    assert (run.config.schedule.warmup_steps, run.config.model.warmup_epochs) == (2, 0)


def test_chunks_change_nothing(tmp_path: Path) -> None:
    """GradCache inside the trainer: the same curve as the whole batch, up to rounding."""
    options = {"freeze_batch_norm": True, "epochs": 1, "loss": "CircleLoss"}
    whole = short(tmp_path / "whole", **options)
    chunks = short(tmp_path / "chunks", chunk=5, **options)
    losses = [[row["loss"] for row in run.curves if row["loss"] is not None] for run in (whole, chunks)]
    assert len(losses[0]) > 3
    np.testing.assert_allclose(*losses, rtol=1e-3)


def test_averaged_weights_are_what_is_kept(tmp_path: Path) -> None:
    run = short(tmp_path / "run", ema=0.9, **{"data.validation": 0})
    state, saved = run.load_checkpoint("last"), load_file(run.folder / "model.safetensors")
    assert all(torch.equal(saved[name], value) for name, value in state["ema"]["average"].items())
    assert any(not torch.equal(saved[name], value) for name, value in state["embedder"].items())


def test_frozen_trunk_trains_a_head_on_cached_features(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEARFAR_CACHE", str(tmp_path / "cache"))
    trunk = short(tmp_path / "trunk", epochs=1)
    weights = {k.removeprefix("trunk."): v for k, v in trunk.model().state_dict().items() if k.startswith("trunk.")}
    torch.save(weights, tmp_path / "trunk.pt")
    options = {"freeze": True, "weights": str(tmp_path / "trunk.pt"), "dimension": 8, "views": 2, "loss": "CircleLoss"}
    run = short(tmp_path / "run", **options)
    assert run.config.model.head_start == "pca"
    after = run.model().state_dict()
    assert all(torch.equal(after[f"trunk.{name}"], value) for name, value in weights.items())
    assert run.metrics["after"]["recall@1"] > 0.2
    monkeypatch.setattr(Embedder, "features", None)  # the second time, no image goes through the trunk
    again = short(tmp_path / "again", **options)
    assert again.metrics["after"] == run.metrics["after"]


# Refusals, before anything is trained


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"loss": "CircleLoss", "sampler.kind": "pk", "k": 1}, "makes no positive pairs"),
        ({"loss": "InfoNCELoss"}, "two views"),
        ({"loss": "TripletMarginLoss", "loss.class_level": True}, "no class-level form"),
        ({"loss": "ArcFaceLoss", "loss.margin": 30}, "ArcFaceLoss: .*radians"),
        ({"freeze": True}, "which are random"),
        ({"views": 2}, "add --freeze"),
        ({"chunk": 4}, "freeze batch normalisation"),
        ({"loggers": ("wandb",)}, "pip install wandb"),
        ({"sampler.kind": "hierarchical"}, "has no super-classes"),
        ({"p": 4, "k": 2, "loss": "CircleLoss"}, "set only one of them"),
        ({"schedule.milestones": "10,20"}, "fractions of all steps"),
        ({"backbone": "convent"}, "did you mean convnet"),
        ({"backbone": "convent", "freeze": True}, "did you mean convnet"),
        ({"batch_size": 1, "sampler.kind": "plain", "loss": "ProxyAnchorLoss"}, "a batch of one image"),
        ({"max_steps": 0}, "leave nothing to train"),
        ({"framing": "stretch", "resize": 20}, "does not go with framing stretch"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else None,
)
def test_refusals(tmp_path: Path, options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        short(tmp_path / "run", **options)
    assert not (tmp_path / "run" / "checkpoints").exists()


@pytest.mark.parametrize("options", [{"loss": "CircleLoss", "k": 1}, {"max_steps": 0}])
def test_refusals_come_before_the_features_of_a_frozen_trunk(options: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    def compute(*_: object, **__: object) -> None:
        raise AssertionError("features are computed")

    monkeypatch.setattr("nearfar.training.data.cached_features", compute)
    config = with_options(TrainConfig(), {"backbone": "efficientnet-lite0", "size": 32, "dimension": 8, "freeze": True})
    with pytest.raises(AssertionError, match="features are computed"):
        prepare(config, TABLE)
    with pytest.raises(ValueError, match=r"makes no positive pairs|leave nothing to train"):
        prepare(with_options(config, options), TABLE)


def test_a_parameter_in_no_optimiser(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    everything = learner.parameter_groups

    def but_proxies(*given: Any, **options: Any) -> list[dict[str, Any]]:
        return [group for group in everything(*given, **options) if not group["name"].startswith("proxies")]

    monkeypatch.setattr(learner, "parameter_groups", but_proxies)
    with pytest.raises(ValueError, match=r"weight \(9, 8\), is in no optimiser"):
        short(tmp_path / "run", loss="ProxyAnchorLoss")


def test_shared_classes(tmp_path: Path) -> None:
    shared = replace(TABLE, labels=TABLE.labels % 12)
    with pytest.raises(ValueError, match="both trained on and tested"):
        train(shared, quiet=True, out=str(tmp_path / "run"), **SMALL)


def test_folders_are_not_written_over(tmp_path: Path) -> None:
    run = short(tmp_path / "run", max_steps=1)
    with pytest.raises(ConfigError, match="already contains a run"):
        short(tmp_path / "run")
    with pytest.raises(ConfigError, match="is already finished"):
        train(TABLE, resume=run.folder)
    with pytest.raises(ConfigError, match="takes no options but"):
        train(TABLE, resume=run.folder, epochs=3)
    with pytest.raises(ConfigError, match=r"there is no run .*none: give a folder that nearfar train left"):
        train(resume=tmp_path / "none")
    with pytest.raises(ConfigError, match=r"is not a run: it has no config\.yaml"):
        train(resume=tmp_path)


# Stops


def same_end(a: Run, b: Run) -> None:
    """Bitwise: the model, everything in the last state but the clock, and the curves."""
    assert (a.folder / "model.safetensors").read_bytes() == (b.folder / "model.safetensors").read_bytes()
    one, other = a.load_checkpoint("last"), b.load_checkpoint("last")
    one.pop("seconds"), other.pop("seconds")
    assert_same(one, other)
    rows = [[{**row, "seconds": 0} for row in run.curves] for run in (a, b)]
    assert rows[0] == rows[1]
    assert a.metrics["after"] == b.metrics["after"]


def assert_same(a: object, b: object) -> None:
    assert type(a) is type(b)
    if isinstance(a, dict):
        assert a.keys() == b.keys()
        for name in a:
            assert_same(a[name], b[name])
    elif isinstance(a, (list, tuple)):
        for one, other in zip(a, b, strict=True):
            assert_same(one, other)
    else:
        assert torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b


# Everything that has a state: two losses, a memory, proxies, averaged weights, a schedule, a new optimiser after
# warm-up, dropout of nothing but random transforms, batch normalisation.
STATEFUL = {
    "loss": "ProxyAnchorLoss + CircleLoss", "loss.CircleLoss.memory": 48, "ema": 0.9, "epochs": 4, "pad": 2,
    "checkpoints.steps": 3, "head": "mlp", "schedule.warmup_steps": 3, "evaluation.every": 2, "color": 0.2,
    "warmup_epochs": 1, "optimiser.restart": True,  # after four steps
}  # fmt: skip

# Says when it comes to a step, and goes on with it once it is told to.
KILLED = """
import sys
from nearfar.training.learner import Learner
from nearfar.training.train import train
from tests.training.making import SMALL, patterns
from tests.training.test_train import STATEFUL
folder, workers, at = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
step = Learner.training_step
def waiting(self, batch):
    if self.done == at:
        print("here", flush=True)
        sys.stdin.readline()
    return step(self, batch)
Learner.training_step = waiting
train(patterns(), quiet=True, out=folder, **{**SMALL, **STATEFUL, "workers": workers})
"""


def begun(folder: Path, workers: int, at: int, **options: Any) -> subprocess.Popen[str]:
    """A run in a process of its own, which has done so many steps and waits within the next."""
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(folder), str(workers), str(at)],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        **options,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "here\n"
    return process


@pytest.mark.parametrize(("workers", "at"), [(0, 7), (2, 13)])
def test_killed_and_resumed_is_uninterrupted(tmp_path: Path, workers: int, at: int) -> None:
    whole = short(tmp_path / "whole", **STATEFUL)
    folder = tmp_path / "killed"
    with begun(folder, workers, at) as process:
        process.kill()
    assert process.returncode == -signal.SIGKILL
    killed = Run(folder)
    assert 0 < step_of(killed) < at < step_of(whole) and not killed.finished
    same_end(whole, train(TABLE, resume=folder, quiet=True))


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_all_processes_of_a_job_saves_and_resumes(tmp_path: Path, sent: signal.Signals) -> None:
    """As a terminal sends Ctrl-C, and a scheduler its last warning: to the workers too."""
    whole = short(tmp_path / "whole", **STATEFUL)
    folder = tmp_path / "stopped"
    process = begun(folder, 2, 4, start_new_session=True, stderr=subprocess.PIPE)
    os.killpg(process.pid, sent)
    _, said = process.communicate("go on\n")  # the signal is there before the words are
    assert process.returncode == 1
    assert "StoppedError: stopped and saved at step 5" in said
    same_end(whole, train(TABLE, resume=folder, quiet=True))


@pytest.mark.parametrize(("at", "sent"), [(1, [signal.SIGINT]), (5, [signal.SIGTERM] * 2), (4, [signal.SIGINT])])
def test_stopped_by_a_signal_saves_and_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int, sent: list
) -> None:
    """At the very first step, in the middle, at the end of an epoch."""
    whole = short(tmp_path / "whole", **STATEFUL)
    original, before = Learner.training_step, signal.getsignal(signal.SIGINT)  # a shell's background jobs ignore it

    def interrupted(self: Learner, batch: object) -> torch.Tensor:
        if self.done + 1 == at:
            for number in sent:
                os.kill(os.getpid(), number)
        return original(self, batch)

    with monkeypatch.context() as patch:
        patch.setattr(Learner, "training_step", interrupted)
        with pytest.raises(StoppedError, match=rf"saved at step {at}\. To resume: nearfar train --resume"):
            short(tmp_path / "stopped", **STATEFUL)
    assert step_of(Run(tmp_path / "stopped")) == at
    assert signal.getsignal(signal.SIGINT) is before
    same_end(whole, train(TABLE, resume=tmp_path / "stopped", quiet=True))


def test_killed_before_the_first_checkpoint(tmp_path: Path) -> None:
    """Nothing but the configuration is there: it begins again."""
    whole = short(tmp_path / "whole", max_steps=3)
    folder = tmp_path / "killed"
    Run(folder).begin(whole.config)
    (folder / "curves.csv").write_text("step,epo", encoding="utf-8")
    same_end(whole, train(TABLE, resume=folder, quiet=True))


def test_killed_while_finishing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All steps done, nothing measured yet."""
    whole = short(tmp_path / "whole")
    with monkeypatch.context() as patch:
        patch.setattr("nearfar.training.train.finish", lambda *args: None)
        short(tmp_path / "killed")
    same_end(whole, train(TABLE, resume=tmp_path / "killed", quiet=True))


def test_a_loss_that_is_no_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = Learner.training_step

    def broken(self: Learner, batch: object) -> torch.Tensor:
        if self.done == 7:
            with torch.no_grad():
                self.embedder.head_parameters()[0].fill_(float("nan"))
        return original(self, batch)

    monkeypatch.setattr(Learner, "training_step", broken)
    with pytest.raises(RunError, match=r"(?s)not a number \(step 8\).*--lr.*of step 6, is saved") as caught:
        short(tmp_path / "run", **STATEFUL)
    assert "clip_norm" in str(caught.value)
    state = Run(tmp_path / "run").load_checkpoint("last")
    assert all(torch.isfinite(value).all() for value in state["embedder"].values() if value.is_floating_point())


def test_weights_that_are_no_numbers_are_not_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the step that spoilt them, and before the next one shows it."""
    original = Learner.on_train_batch_end

    def broken(self: Learner, *args: object) -> None:
        if self.done == 5:
            with torch.no_grad():
                self.embedder.head_parameters()[0].fill_(float("inf"))
        original(self, *args)

    monkeypatch.setattr(Learner, "on_train_batch_end", broken)
    with pytest.raises(RunError, match=r"(?s)weights are no longer finite \(step 6\).*of step 4, is saved"):
        short(tmp_path / "run", **STATEFUL)


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original, calls = torch.save, []

    def full(state: object, file: object) -> None:
        calls.append(1)
        if len(calls) == 3:  # after the state at the start
            file.write(b"half of it")
            raise OSError(errno.ENOSPC, "No space left on device")
        original(state, file)

    with monkeypatch.context() as patch:
        patch.setattr(runs.torch, "save", full)
        with pytest.raises(
            RunError, match=r"(?s)the disk is full; the one of step 3 is intact.*--resume.*step 3, is saved"
        ):
            short(tmp_path / "run", **STATEFUL)
    kept = {path.name for path in (tmp_path / "run" / "checkpoints").iterdir()}
    assert kept == {"last.pt", "start.pt"}  # no half file
    same_end(short(tmp_path / "whole", **STATEFUL), train(TABLE, resume=tmp_path / "run", quiet=True))


def test_a_checkpoint_of_another_format(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("nearfar.training.learner.FORMAT", 99)
        patch.setattr("nearfar.training.train.finish", lambda *args: None)
        short(tmp_path / "run", max_steps=2)
    with pytest.raises(RunError, match="has format 99, but this version of nearfar resumes format 1"):
        train(TABLE, resume=tmp_path / "run", quiet=True)


# Parts


def test_curves_forget_what_came_after_a_step(tmp_path: Path) -> None:
    run = Run(tmp_path)
    curves = Curves(run, 0)
    for step in (1, 2, 3):
        curves.add({"step": step, "loss": step / 2})
    curves.close()
    with (tmp_path / "curves.csv").open("a") as file:
        file.write("4,0,0.1,2")  # cut off by a kill
    Curves(run, 2).close()
    assert [(row["step"], row["loss"], row["lr"]) for row in run.curves] == [(1, 0.5, None), (2, 1.0, None)]


def test_mean_similarities_by_hand() -> None:
    x = torch.tensor([[1.0, 0.0], [3.0, 0.0], [0.0, 2.0]])
    s_p, s_n = recorder.mean_similarities(x, torch.tensor([0, 0, 1]))
    assert (s_p, s_n) == (1.0, 0.0)


def test_tensorboard(tmp_path: Path) -> None:
    run = short(tmp_path / "run", max_steps=2, loggers=("tensorboard",))
    assert list((run.folder / "tensorboard").glob("events.out.tfevents.*"))


def test_prepare_counts_steps() -> None:
    config = with_options(TrainConfig(), {**SMALL, "epochs": 3, "loss": "ProxyAnchorLoss", "data.validation": 0})
    prepared = prepare(config, TABLE)
    assert prepared.total_steps == 3 * (12 * 8 // 16)
    assert prepare(with_options(config, {"max_steps": 4}), TABLE).total_steps == 4
