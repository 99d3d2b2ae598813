"""Parts of batches against whole ones."""

import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from nearfar.studies import subsets
from nearfar.studies.networks import Networks
from nearfar.studies.subsets import METHODS, Options, step_memory, steps_for
from nearfar.training.config import LossConfig, TrainConfig
from nearfar.training.fit import StoppedError
from nearfar.training.learner import Learner, Step
from nearfar.training.options import ConfigError, with_options
from tests.training.making import SMALL, patterns


@pytest.fixture
def options(monkeypatch: pytest.MonkeyPatch) -> Options:
    monkeypatch.setattr("nearfar.data.opening.open", lambda path, layout=None: patterns())
    config = with_options(TrainConfig(), {**SMALL, "path": "patterns", "options": {"width": 4}})
    return replace(Options().small(), config=config, seeds=1, lengths=(0.5, 1.0))


def test_the_study(options: Options, tmp_path: Path) -> None:
    found = subsets.run(options, tmp_path, print)
    rows = found.tables["subsets"]
    assert len(rows) == 2 * len(METHODS) and set(found.figures) == {"subsets"}
    steps = {row["method"]: row["steps"] for row in rows if row["length"] == 1}
    assert steps == {"whole": 6, "hard": 10, "weighted": 10, "random": 10, "small": 24}
    assert all(0 < row["recall@1"] <= 1 for row in rows)
    assert "the hard subset" in found.sentences[1] and "a random subset" in found.sentences[1]


def test_methods_are_compared_seed_by_seed() -> None:
    trainings = [
        {"loss": "A", "method": method, "length": 1.0, "seed": seed, "recall@1": base + more}
        for seed, base in enumerate((0.3, 0.5, 0.7))
        for method, more in (("hard", 0.05 + 0.01 * (seed == 1)), ("random", 0.0), ("small", 0.4 * (seed - 1)))
    ]

    def compared(other: str) -> str:
        return subsets._compared(trainings, "A", other, 1.0, other)

    assert compared("random").startswith("is better than random, by +5.3 ±")
    assert compared("small").startswith("is not clearly different from small")
    trainings[1]["recall@1"] = None
    assert "diverged" in compared("random")


def test_time_is_the_same() -> None:
    """In passes: three for what is backpropagated, one for what is only compared."""
    for keep in (0.125, 0.5):
        assert steps_for("hard", 400, keep) * (1 + 3 * keep) == pytest.approx(1200, rel=0.01)
        assert steps_for("small", 400, keep) * 3 * keep == pytest.approx(1200, rel=0.01)


def test_a_part_takes_the_memory_of_a_small_batch(options: Options) -> None:
    networks = Networks(options.config, 12)
    whole, hard, small = (
        step_memory(networks, method, "MultiSimilarityLoss", options) for method in ("whole", "hard", "small")
    )
    assert hard < 0.4 * whole and small <= hard < 1.2 * small


def test_a_signal_ends_a_study_without_a_result(options: Options) -> None:
    networks = Networks(options.config, 12)

    def after(learner: Learner, step: Step) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(StoppedError):
        networks.train(LossConfig("MultiSimilarityLoss"), 0, 5, after=after)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"keep": 0.0}, "keep=0 must be a share"),
        ({"lengths": ()}, "lengths must be shares of steps"),
        ({"steps": 0}, "steps must be at least 1"),
        ({"losses": ("CircelLoss",)}, "did you mean CircleLoss"),
    ],
)
def test_wrong_options(wrong: dict, message: str) -> None:
    with pytest.raises((ConfigError, ValueError), match=message):
        Options(**wrong)
