"""Several proxies for a class: how many there are, and what classes are joined."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nearfar.compare import trial
from nearfar.data import Table
from nearfar.studies import proxies
from nearfar.studies.proxies import ARGUMENTS, Options, fewer_classes, joined_labels
from nearfar.training.config import SamplerConfig, TrainConfig
from nearfar.training.options import ConfigError


def test_joined_classes() -> None:
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 3))
    assert (joined_labels(labels, 1, seed=5) == labels).all()
    seen = set()
    for seed in range(30):
        found = joined_labels(labels, 4, seed)
        assert np.bincount(found).tolist() == [12, 12, 6]  # so many images: no class is cut in two
        groups = [frozenset(labels[found == number].tolist()) for number in range(3)]
        assert sorted(map(len, groups)) == [2, 4, 4] and len(frozenset.union(*groups)) == 10
        seen.add(frozenset(groups))
    assert len(seen) > 25


def test_batches_of_fewer_classes() -> None:
    sampler = SamplerConfig("pk", p=32, k=4, batch_size=128)
    assert fewer_classes(sampler, 100) == sampler
    found = fewer_classes(sampler, 25)
    assert (found.p, found.k, found.batch_size) == (25, 5, 125)


def test_run(config: TrainConfig, table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The losses that are built have so many vectors, and test classes are never joined."""
    built: list[tuple[str, tuple[int, ...]]] = []
    build = trial.build_loss

    def watch(losses: Any, num_classes: int, embedding_size: int) -> Any:
        made: Any = build(losses, num_classes, embedding_size)
        built.append((losses[0].name, tuple(made.weight.shape)))
        return made

    monkeypatch.setattr(trial, "build_loss", watch)
    tested = []
    measured = proxies.Heads.train

    def test_labels(heads: Any, loss: Any, seed: int, **options: Any) -> Any:
        tested.append(options["fold"].val.labels)
        return measured(heads, loss, seed, **options)

    monkeypatch.setattr(proxies.Heads, "train", test_labels)
    options = Options(losses=tuple(ARGUMENTS), proxies=(1, 3), joined=(1, 4), seeds=1, config=config)
    found = proxies.run(options, tmp_path, print)
    assert built == [(loss, (classes * number, 8)) for classes in (12, 3) for loss in ARGUMENTS for number in (1, 3)]
    assert all((labels == table.split("test").labels).all() for labels in tested) and len(tested) == 12
    assert [(row["joined"], row["loss"], row["proxies"]) for row in found.tables["proxies"]] == [
        (joined, loss, number) for joined in (1, 4) for loss in ARGUMENTS for number in (1, 3)
    ]
    assert found.sentences[0].startswith("ProxyAnchorLoss, original classes: best with ")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"losses": ("CircleLoss",)}, "CircleLoss has only one vector per class"),
        ({"proxies": (0, 1)}, "proxies must be whole numbers from 1"),
        ({"joined": ()}, "joined must be whole numbers from 1"),
    ],
)
def test_mistakes(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Options(**changed)
