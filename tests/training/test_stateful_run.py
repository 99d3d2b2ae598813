"""A run that is stopped, crashes, goes on, is damaged and mended, in any order: what its folder holds can always be
read, and its end is that of a run that nothing happened to. `NEARFAR_LONG=1` tries many orders.
"""

import atexit
import functools
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from nearfar.foundation.run_folder import RunError
from nearfar.training.learner import Learner
from nearfar.training.options import ConfigError
from nearfar.training.runs import Run
from nearfar.training.train import StoppedError, train
from tests.training.making import SMALL, patterns
from tests.training.test_train import same_end

LONG = bool(os.environ.get("NEARFAR_LONG"))
TABLE = patterns(classes=12, each=6)
OPTIONS = {**SMALL, "batch_size": 8, "k": 2, "epochs": 3, "ema": 0.9, "checkpoints.steps": 2, "loss": "ProxyAnchorLoss",
           "schedule.warmup_steps": 2}  # fmt: skip
EPOCH, TOTAL = 3, 9  # steps
ends = st.tuples(st.sampled_from(["stop", "crash"]), st.integers(1, TOTAL - 1)) | st.none()
bytes_of = {
    "rubbish": lambda old: bytes(range(256)) * 4,
    "cut": lambda old: old[: len(old) // 2],
    "empty": lambda old: b"",
}


class CrashError(Exception):
    """Stands for a kill in the middle of a step: nothing is saved any more."""


@functools.cache
def whole() -> Run:
    """A run that nothing happened to."""
    folder = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, folder)
    run = train(TABLE, quiet=True, out=folder, **OPTIONS)
    assert run.load_checkpoint("last")["step"] == TOTAL
    return run


class RunMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.temporary = tempfile.TemporaryDirectory()
        self.run = Run(Path(self.temporary.name) / "run")
        self.damaged: str | None = None  # the file that is
        self.saved = 0  # the step of the last checkpoint

    @initialize(end=ends)
    def begin(self, end: tuple[str, int] | None) -> None:
        self._train(end, out=str(self.run.folder), **OPTIONS)

    def _train(self, end: tuple[str, int] | None, **options: Any) -> None:
        """Train, to the end or to a step at which it is stopped or crashes."""
        how, at = end or ("end", TOTAL)
        original = Learner.on_train_batch_end

        def interrupted(learner: Learner, *args: Any) -> None:
            if learner.done + 1 == at and how == "crash":
                raise CrashError
            if learner.done + 1 == at and how == "stop":
                learner.observer.stopping = True  # type: ignore[attr-defined]
            original(learner, *args)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Learner, "on_train_batch_end", interrupted)
            if at <= self.saved or how == "end":
                train(TABLE, quiet=True, **options)
                self.saved = TOTAL
            elif how == "stop":
                with pytest.raises(StoppedError, match=rf"saved at step {at}\. To resume"):
                    train(TABLE, quiet=True, **options)
                self.saved = at
            else:
                with pytest.raises(CrashError):
                    train(TABLE, quiet=True, **options)
                self.saved = max(
                    self.saved, (at - 1) // EPOCH * EPOCH, (at - 1) // 2 * 2
                )  # ends of epochs; every 2 steps

    @rule(end=ends)
    def go_on(self, end: tuple[str, int] | None) -> None:
        if self.damaged != "metrics.json" and self.run.finished:
            with pytest.raises(ConfigError, match="is already finished"):
                train(TABLE, resume=self.run.folder, quiet=True)
        elif self.damaged is not None:
            with pytest.raises(RunError, match=f"{self.damaged} is damaged .*remove"):
                train(TABLE, resume=self.run.folder, quiet=True)
        else:
            self._train(end, resume=self.run.folder)

    @rule(other=st.sampled_from([{"seed": 1}, {"epochs": 5}, {"loss": "CircleLoss"}]))
    def begin_again(self, other: dict[str, Any]) -> None:
        """With other options: refused, and nothing is touched."""
        before = self._files()
        with pytest.raises(ConfigError, match="already contains a run"):
            train(TABLE, quiet=True, out=str(self.run.folder), **{**OPTIONS, **other})
        with pytest.raises(ConfigError, match="takes no options but"):
            train(TABLE, quiet=True, resume=self.run.folder, **other)
        assert self._files() == before

    @rule(how=st.sampled_from(sorted(bytes_of)), name=st.sampled_from(["checkpoints/last.pt", "metrics.json"]))
    @precondition(lambda self: self.damaged is None and self.saved)
    def damage(self, how: str, name: str) -> None:
        path = self.run.folder / name
        if path.exists() and not self.run.finished:  # of a finished run, the checkpoints are not needed any more
            path.write_bytes(bytes_of[how](path.read_bytes()))
            self.damaged = path.name

    @rule()
    @precondition(lambda self: self.damaged is not None)
    def mend(self) -> None:
        """As the error says."""
        if self.damaged == "metrics.json":
            (self.run.folder / "metrics.json").unlink()
        else:
            shutil.rmtree(self.run.folder / "checkpoints")
            self.saved = 0
        self.damaged = None

    @invariant()
    def can_be_read(self) -> None:
        run = self.run
        assert run.config.seed == 0
        assert not list(run.folder.rglob(".*"))  # nothing half-written is left lying
        steps = [int(row["step"] or 0) for row in run.curves]
        assert steps == sorted(steps)
        if self.damaged is None:
            assert run.has_checkpoint("last") == bool(self.saved)
            if self.saved:
                assert run.load_checkpoint("last")["step"] == self.saved
            if self.saved >= EPOCH:
                assert all(bool(torch.isfinite(x).all()) for x in run.load_checkpoint("best")["embedder"].values())
            assert run.finished == (self.saved == TOTAL)
            if run.finished:
                run.model()

    def _files(self) -> dict[str, bytes]:
        return {str(path): path.read_bytes() for path in self.run.folder.rglob("*") if path.is_file()}

    def teardown(self) -> None:
        if self.run.folder.exists():
            if self.damaged is not None:
                self.mend()
            if not self.run.finished:
                train(TABLE, resume=self.run.folder, quiet=True)
            same_end(whole(), self.run)
        self.temporary.cleanup()


TestRun = RunMachine.TestCase
TestRun.settings = settings(
    max_examples=60 if LONG else 2,
    stateful_step_count=10 if LONG else 4,
    derandomize=not LONG,
    database=None,
)
