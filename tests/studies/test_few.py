"""Few samples: exactly so many of every class, and of training rows alone."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nearfar.data import Table
from nearfar.studies import few
from nearfar.studies.few import BEFORE, Options, chosen_rows, smaller_groups
from nearfar.studies.heads import Heads
from nearfar.training.config import SamplerConfig, TrainConfig
from nearfar.training.options import ConfigError


@pytest.mark.parametrize("samples", [1, 2, 3, 5])
def test_exactly_so_many_of_every_class(samples: int) -> None:
    labels = np.random.default_rng(0).permutation(np.repeat([0, 1, 2, 5], [5, 9, 30, 6]))
    for seed in range(20):
        rows = chosen_rows(labels, samples, seed)
        assert len(set(rows.tolist())) == len(rows) == 4 * samples and (np.diff(rows) > 0).all()
        assert np.bincount(labels[rows]).tolist() == [samples, samples, samples, 0, 0, samples]
        assert set(rows) <= set(chosen_rows(labels, 5, seed))  # more samples contain fewer
    drawn = {tuple(chosen_rows(labels, 2, seed)) for seed in range(20)}
    assert len(drawn) > 15


def test_too_many_samples() -> None:
    with pytest.raises(ConfigError, match="classes have only 2 images: --samples must be at most 2, not 3"):
        chosen_rows(np.array([0, 0, 1, 1, 1]), 3, seed=0)


def test_groups_have_no_more_than_there_are() -> None:
    sampler = SamplerConfig("pk", p=32, k=4, batch_size=128)
    found = [smaller_groups(sampler, samples, 600) for samples in (2, 3, 4, 16)]
    assert [(one.p, one.k, one.batch_size) for one in found] == [
        (64, 2, 128), (42, 3, 126), (32, 4, 128), (32, 4, 128),
    ]  # fmt: skip
    assert smaller_groups(sampler, 2, 10).p == 10


def test_run(config: TrainConfig, table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained: list[tuple[Table, Table, SamplerConfig]] = []
    train = Heads.train

    def watch(heads: Heads, loss: Any, seed: int, **options: Any) -> Any:
        trained.append((options["fold"].train, options["fold"].val, options["sampler"]))
        return train(heads, loss, seed, **options)

    monkeypatch.setattr(Heads, "train", watch)
    options = Options(losses=("CircleLoss",), samples=(2, 5), seeds=2, config=config)
    found = few.run(options, tmp_path, print)
    images = table.split("train").images
    known = {images[row].tobytes() for row in range(96)}
    for place, (rows, test, sampler) in enumerate(trained):
        samples = (2, 2, 5, 5)[place]
        assert np.bincount(rows.labels).tolist() == [samples] * 12
        assert {rows.images[row].tobytes() for row in range(len(rows))} <= known
        assert len(test) == 96 and test.classes.tolist() == list(range(12, 24))
        assert (sampler.k, sampler.p) == ((2, 8), (2, 8), (4, 4), (4, 4))[place]
    contents = [[rows.images[row].tobytes() for row in range(len(rows))] for rows, *_ in trained]
    assert contents[0] != contents[1]  # by seed
    assert [row["images"] for row in found.tables["trainings"]] == [24] * 4 + [60] * 4
    assert [(row["loss"], row["samples"]) for row in found.tables["few"]] == [
        ("CircleLoss", 2), (BEFORE, 2), ("CircleLoss", 5), (BEFORE, 5),
    ]  # fmt: skip
    assert found.sentences[0].startswith("CircleLoss: Recall@1 ") and "with 2 images of a class" in found.sentences[0]
    with pytest.raises(ConfigError, match="classes have only 8 images"):
        few.run(replace(options, samples=(9,)), tmp_path / "b", print)


def test_mistakes() -> None:
    with pytest.raises(ConfigError, match="at least 2 images"):
        Options(samples=(1, 2))
    with pytest.raises(ConfigError, match="CircleLoss"):
        Options(losses=("CircelLoss",))
