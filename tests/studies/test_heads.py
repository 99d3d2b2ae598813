"""Heads on cached features: what they are trained on, when they are measured, and that none depends on another."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from nearfar.data import SPLITS, Table
from nearfar.studies import heads as module
from nearfar.studies.heads import DIMENSION, ENDLESS, STEPS, Heads, first_classes, read_rows, study_config
from nearfar.training.config import LossConfig, TrainConfig
from nearfar.training.learner import Learner
from nearfar.training.options import ConfigError, with_options
from tests.studies.naive import cosines, map_at_r, recall_at_1

CIRCLE, PROXIES = LossConfig("CircleLoss"), LossConfig("ProxyAnchorLoss")


def test_what_is_left_open_is_chosen() -> None:
    chosen = study_config(TrainConfig())
    assert (chosen.max_steps, chosen.epochs, chosen.model.dimension) == (STEPS, ENDLESS, DIMENSION)
    assert chosen.model.freeze and chosen.optimiser.lr == 1e-3 and chosen.optimiser.proxies == 10
    given = with_options(TrainConfig(), {"epochs": 3, "lr": 0.5, "dimension": 7, "optimiser.proxies": 0.0})
    chosen = study_config(given)
    assert (chosen.max_steps, chosen.epochs, chosen.model.dimension) == (None, 3, 7)
    assert (chosen.optimiser.lr, chosen.optimiser.proxies) == (0.5, 0.0)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"devices": 2}, "trains on one device"), ({"evaluation.watch_test": True}, "evaluates the test classes once")],
)
def test_refusals(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        study_config(with_options(TrainConfig(), options))


def test_rows(config: TrainConfig, table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    train, test = read_rows(config)
    assert (train.num_classes, test.num_classes, len(train), len(test)) == (12, 12, 96, 96)
    assert not {train.label_names[i] for i in train.classes} & {test.label_names[i] for i in test.classes}
    train, test = read_rows(config, 5)
    assert train.classes.tolist() == [0, 1, 2, 3, 4] and test.classes.tolist() == [12, 13, 14, 15, 16]
    assert (len(train), len(test)) == (40, 40)
    assert first_classes(test, 99) is test
    ids = np.full(len(table), SPLITS.index("train"), np.int8)
    monkeypatch.setattr("nearfar.data.opening.open", lambda path, layout=None: replace(table, split_ids=ids))
    with pytest.raises(ConfigError, match="has no test rows"):
        read_rows(config)


def test_a_head_is_trained_and_measured_once(config: TrainConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The metrics are those that plain loops find in the embeddings as they are after the last step."""
    heads = Heads(config)
    looks: list[tuple[np.ndarray, Table]] = []
    measured = module.measured
    monkeypatch.setattr(module, "measured", lambda x, table, ks: looks.append((x, table)) or measured(x, table, ks))
    steps: list[int] = []
    step = Learner.training_step
    monkeypatch.setattr(Learner, "training_step", lambda self, batch: steps.append(self.done) or step(self, batch))
    found = heads.train(CIRCLE, seed=0)
    assert steps == list(range(6)) and len(looks) == 1
    embeddings, table = looks[0]
    assert table.classes.tolist() == list(range(12, 24))
    similarities = cosines(embeddings)
    assert found["recall@1"] == pytest.approx(recall_at_1(similarities, table.labels))
    assert found["map@r"] == pytest.approx(map_at_r(similarities, table.labels))
    start = heads.start
    similarities = cosines(looks[1][0])
    assert start["map@r"] == pytest.approx(map_at_r(similarities, table.labels))
    assert start != found


def test_none_depends_on_another(config: TrainConfig) -> None:
    wanted = [(CIRCLE, 0), (PROXIES, 0), (CIRCLE, 1), (PROXIES, 1)]
    heads = Heads(config)
    forwards = [heads.train(loss, seed) for loss, seed in wanted]
    torch.manual_seed(17)
    again = Heads(config)
    backwards = [again.train(loss, seed) for loss, seed in reversed(wanted)]
    assert forwards == backwards[::-1]
    assert len({tuple(found.values()) for found in forwards}) > 2  # or it would say nothing


def test_a_training_that_diverges_has_no_metrics(config: TrainConfig) -> None:
    wild = replace(config, optimiser=replace(config.optimiser, lr=1e30))
    assert Heads(wild).train(CIRCLE, seed=0) == {"recall@1": None, "map@r": None}
    assert Heads(wild).train(CIRCLE, seed=0, look=lambda: {"something": 1.0}) == {}
