"""The size of batches: what really goes into a step, and how many steps there are."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from nearfar.studies import batch_size
from nearfar.studies.batch_size import SAME_IMAGES, SAME_STEPS, Options, steps_for
from nearfar.training.config import TrainConfig
from nearfar.training.learner import Learner
from nearfar.training.options import ConfigError


def test_steps() -> None:
    sizes = (30, 60, 90, 120, 150, 180)
    assert [steps_for(size, sizes, 100, SAME_STEPS) for size in sizes] == [100] * 6
    found = [steps_for(size, sizes, 100, SAME_IMAGES) for size in sizes]
    assert found == [300, 150, 100, 75, 60, 50]
    assert {size * steps for size, steps in zip(sizes, found, strict=True)} == {9000}


def test_batches_are_what_they_are_called(config: TrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    batches: list[list[int]] = []
    step = Learner.training_step

    def watch(learner: Learner, batch: Any) -> Any:
        if learner.done == 0:
            batches.append([])
        batches[-1].append(len(batch.labels))
        groups = Counter(batch.labels.tolist()).values()
        assert learner.config.loss[0].name == "ProxyAnchorLoss" or set(groups) == {4}
        return step(learner, batch)

    monkeypatch.setattr(Learner, "training_step", watch)
    options = Options(losses=("ProxyAnchorLoss", "CircleLoss"), sizes=(8, 16, 32), seeds=1, config=config)
    found = batch_size.run(options, tmp_path, print)
    expected = [(size, 6) for _ in options.losses for size in (8, 16, 32)]
    expected += [(size, steps) for _ in options.losses for size, steps in ((8, 12), (16, 6), (32, 3))]
    assert [(set(sizes), len(sizes)) for sizes in batches] == [({size}, steps) for size, steps in expected]
    rows = found.tables["trainings"]
    assert [(row["size"], row["steps"]) for row in rows] == expected
    assert [row["budget"] for row in rows] == [SAME_STEPS] * 6 + [SAME_IMAGES] * 6
    assert len(found.sentences) == 4 and found.sentences[0].startswith("With as many steps, ProxyAnchorLoss is best")


def test_mistakes(config: TrainConfig, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"batches of CircleLoss have 5 images of each class .* 32 is not a multiple"):
        Options(sizes=(30, 32))
    assert Options(losses=("ProxyAnchorLoss",), sizes=(30, 32)).sizes == (30, 32)
    with pytest.raises(ConfigError, match="at least 2 images"):
        Options(sizes=())
    with pytest.raises(ConfigError, match="batches of 200 are too large for 96 training images of 12 classes"):
        batch_size.run(Options(sizes=(200,), config=config), tmp_path, print)
