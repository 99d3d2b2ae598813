"""Wrong labels: exactly so many, of training images alone."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nearfar.data import Table
from nearfar.studies import noise
from nearfar.studies.heads import Heads
from nearfar.studies.noise import Options, mislabelled, sentences
from nearfar.studies.study import run_study
from nearfar.training.config import TrainConfig
from nearfar.training.options import ConfigError


@pytest.mark.parametrize("share", [0.0, 0.1, 0.25, 0.333, 0.5, 1.0])
def test_exactly_so_many_labels_are_wrong(share: float) -> None:
    labels = np.repeat(np.arange(7), [3, 9, 20, 1, 40, 11, 16])
    before = labels.copy()
    for seed in range(20):
        found = mislabelled(labels, share, seed)
        assert np.count_nonzero(found != labels) == round(share * 100)
        assert set(found.tolist()) <= set(range(7))
    assert (labels == before).all()
    assert (mislabelled(labels, share, 3) == mislabelled(labels, share, 3)).all()
    if share > 0:
        assert (mislabelled(labels, share, 3) != mislabelled(labels, share, 4)).any()


def test_all_rows_and_all_other_labels_are_equally_likely() -> None:
    labels = np.repeat(np.arange(5), 4)
    wrong: Counter[tuple[int, int]] = Counter()
    for seed in range(1000):
        found = mislabelled(labels, 0.5, seed)
        wrong.update((row, int(found[row])) for row in np.flatnonzero(found != labels))
    assert len(wrong) == 20 * 4
    assert sum(wrong.values()) == 10 * 1000
    assert all(75 < count < 175 for count in wrong.values())  # 125 each; a deviation is 10.5


class Watched:
    """Keeps the labels of every training and of every measurement."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.trained: list[tuple[str, np.ndarray, np.ndarray]] = []
        self.dies_after: int | None = None
        train = Heads.train

        def watch(heads: Heads, loss: Any, seed: int, **options: Any) -> Any:
            if len(self.trained) == self.dies_after:
                raise KeyboardInterrupt
            fold = options["fold"]
            self.trained.append((loss.name, fold.train.labels.copy(), fold.val.labels.copy()))
            return train(heads, loss, seed, **options)

        monkeypatch.setattr(Heads, "train", watch)


def test_training_labels_are_wrong_and_test_labels_are_not(
    config: TrainConfig, table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = Watched(monkeypatch)
    options = Options(losses=("ProxyAnchorLoss", "CircleLoss"), shares=(0.0, 0.5), seeds=2, config=config)
    found = noise.run(options, tmp_path, print)
    true_train, true_test = table.split("train").labels, table.split("test").labels
    assert len(watched.trained) == 8
    for place, (loss, trained, tested) in enumerate(watched.trained):
        assert loss == options.losses[place % 2]
        assert np.count_nonzero(trained != true_train) == (0 if place < 4 else 48)
        assert (tested == true_test).all()
    first, other = watched.trained[4], watched.trained[6]
    assert (first[1] == watched.trained[5][1]).all() and (first[1] != other[1]).any()  # by seed, not by loss
    assert [row["wrong labels"] for row in found.tables["trainings"]] == [0] * 4 + [48] * 4
    assert [(row["loss"], row["share"]) for row in found.tables["noise"]] == [
        (loss, share) for share in (0.0, 0.5) for loss in options.losses
    ]


def test_a_killed_sweep_goes_on_to_the_same_files(
    config: TrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = Options(losses=("ProxyAnchorLoss", "CircleLoss"), shares=(0.0, 0.4), seeds=1, config=config)
    run_study("noise", options, out=tmp_path / "whole", progress=print)
    watched = Watched(monkeypatch)
    watched.dies_after = 2
    with pytest.raises(KeyboardInterrupt):
        run_study("noise", options, out=tmp_path / "killed", progress=print)
    watched.dies_after = None
    run_study("noise", options, out=tmp_path / "killed", progress=print)
    assert len(watched.trained) == 4
    contents = [{path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} for name in ("whole", "killed")]
    assert contents[0] == contents[1] and "noise.csv" in contents[0]
    # The same cells in another order are the same cells.
    turned = replace(options, losses=options.losses[::-1], shares=options.shares[::-1])
    other = noise.run(turned, tmp_path / "turned", print).tables["trainings"]
    found = noise.run(options, tmp_path / "whole", print).tables["trainings"]
    assert sorted(map(str, other)) == sorted(map(str, found))


def test_sentences() -> None:
    options = Options(losses=("ProxyAnchorLoss", "CircleLoss"), shares=(0.0, 0.5))
    rows: list[dict[str, Any]] = [
        {"loss": loss, "share": share, "recall@1": value, "recall@1 ±": 0.01}
        for loss, values in (("ProxyAnchorLoss", (0.6, 0.58)), ("CircleLoss", (0.62, 0.5)))
        for share, value in zip((0.0, 0.5), values, strict=True)
    ]
    assert sentences(rows, options) == [
        "ProxyAnchorLoss: Recall@1 60.0 ± 1.0 % with 0 % wrong labels, 58.0 ± 1.0 % with 50 %: 2.0 points lost.",
        "CircleLoss: Recall@1 62.0 ± 1.0 % with 0 % wrong labels, 50.0 ± 1.0 % with 50 %: 12.0 points lost.",
        "On average over these losses, proxies lost 2.0 points and pairs 12.0: proxies were more robust here.",
    ]
    rows[3]["recall@1"] = 0.605
    assert sentences(rows, options)[-1].endswith("pairs lost 1.5 points and proxies 2.0: no relevant difference.")
    rows[3]["recall@1"] = None
    assert sentences(rows, options)[1] == "CircleLoss diverged."


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"shares": (0.5, 1.1)}, "shares must be from 0 to 1"),
        ({"shares": ()}, "at least one"),
        ({"losses": ("CircelLoss",)}, "CircleLoss"),
    ],
)
def test_mistakes(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Options(**changed)
