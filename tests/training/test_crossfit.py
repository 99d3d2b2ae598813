"""Where there are few classes, each is judged by a model that has not seen it; what is best is kept."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from nearfar.data import SPLITS, Table
from nearfar.data.survey import survey
from nearfar.evaluation import retrieval_metrics
from nearfar.models import Embedder
from nearfar.training import candidates, crossfit, finish, fit
from nearfar.training.candidates import Measured, best_of, verdict
from nearfar.training.config import DataConfig, TrainConfig
from nearfar.training.held_out import held_out_of
from nearfar.training.kept_split import KeptSplit
from nearfar.training.options import ConfigError
from nearfar.training.runs import Run
from nearfar.training.splits import split
from nearfar.training.train import StoppedError, train
from tests.training.making import SMALL, patterns

FOLDS = {**SMALL, "folds": 3, "epochs": 4, "quiet": True, "keep": "best"}


def features(classes: int = 12, each: int = 8, dimension: int = 16, seed: int = 0) -> Table:
    """Features in which the first half of the dimensions tells classes apart, and the rest is noise."""
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(classes), each)
    x = rng.normal(size=(classes, dimension))[labels] + rng.normal(size=(len(labels), dimension))
    ids = np.where(labels < classes // 2, SPLITS.index("train"), SPLITS.index("test")).astype(np.int8)
    names = tuple(f"class {i}" for i in range(classes))
    return Table("features", labels, names, ids, columns={"features": x.astype(np.float32)})


# Which rows are held out when


def test_every_training_class_is_held_out_once_and_whole() -> None:
    parts = split(patterns(20, 6), DataConfig(), 0)
    assert parts.folds == 3 and parts.val is None and parts.fold is not None
    assert (parts.fold[parts.is_test] == -1).all() and (parts.fold[~parts.is_test] >= 0).all()
    held = []
    for number in range(3):
        own = parts.holding_out(number)
        assert own.val is not None and own.test is None
        assert not np.intersect1d(own.table.labels[own.table.split_ids == 0], own.val.labels).size
        assert own.train.num_classes + own.val.num_classes == 10 and len(own.train) + len(own.val) == 60
        held += own.val.classes.tolist()
    assert sorted(held) == list(range(10))


def test_folds_are_the_seed_s() -> None:
    found = [split(patterns(20, 6), DataConfig(), seed).fold for seed in (0, 0, 1)]
    assert all(fold is not None for fold in found)
    assert np.array_equal(found[0], found[1]) and not np.array_equal(found[0], found[2])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("table", "options", "frozen", "folds"),
    [
        (patterns(20, 6), {}, False, 3),
        (patterns(20, 6), {"validation": 0.2}, False, 0),
        (patterns(20, 6), {"folds": 1}, False, 0),
        (patterns(20, 6), {"folds": 5}, False, 5),
        (patterns(400, 3), {}, True, 0),  # 20 of 200 classes are enough to choose by
        (patterns(30, 160), {}, False, 0),  # too many images to train a whole network three times more
        (patterns(30, 160), {}, True, 3),
        (patterns(8, 4), {}, False, 2),  # four classes, two in each fold
    ],
)
def test_when_folds_are_made(table: Table, options: dict[str, Any], frozen: bool, folds: int) -> None:
    assert split(table, DataConfig(**options), 0, frozen=frozen).folds == folds


def test_images_are_held_out_where_classes_are_known() -> None:
    table = patterns(4, 20)
    parts = split(Table(**{**vars(table), "notes": ()}), DataConfig(split="images"), 0)
    assert not parts.open_set and parts.folds == 3
    own = parts.holding_out(0)
    assert own.val is not None and own.train.num_classes == own.val.num_classes == 4


def test_more_folds_than_classes_allow_are_refused() -> None:
    with pytest.raises(ConfigError, match="enough for 5 folds"):
        split(patterns(20, 6), DataConfig(folds=6), 0)


# What is kept


def test_held_out_rows_are_those_of_the_models_that_did_not_see_them(tmp_path: Path) -> None:
    run = train(patterns(), out=str(tmp_path / "run"), **FOLDS)
    held, parts = held_out_of(run), parts_of_table(run)
    assert held is not None and held.open_set and set(held.fold.tolist()) == {0, 1, 2}
    assert len(held.labels) == len(parts.train)
    assert not (run.folder / "folds").exists()
    choice = run.metrics["choice"]
    values = []
    for number in range(3):
        own = held.fold == number
        values.append(retrieval_metrics(held.embeddings[own], held.labels[own], per_query=True)["per_query"]["map@r"])
    assert np.mean(np.concatenate(values)) == pytest.approx(choice["values"][choice["kept"]])
    assert run.metrics["kept"] == best_of(choice["values"]) == choice["kept"]


def parts_of_table(run: Run) -> Any:
    kept = KeptSplit.load(run)
    assert kept is not None
    return kept.match(patterns(), survey(patterns())).parts()


@pytest.mark.parametrize("kept", ["features", "start", "trained"])
def test_the_kept_model_is_the_one_that_was_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: str) -> None:
    monkeypatch.setattr(crossfit, "chosen", lambda measured, metric: kept)
    table = features()
    run = train(table, out=str(tmp_path / "run"), epochs=3, quiet=True, batch_size=16, accelerator="cpu")
    test, model = table.split("test"), Embedder.load(run.folder)
    found = retrieval_metrics(model.embed(torch.from_numpy(test.features)), test.labels)  # type: ignore[arg-type]
    assert run.metrics["kept"] == kept
    assert run.metrics["after"]["map@r"] == pytest.approx(found["map@r"])
    assert run.metrics["candidates"][kept]["metrics"]["map@r"] == pytest.approx(found["map@r"])
    raw = retrieval_metrics(test.features, test.labels)["map@r"]
    assert run.metrics["candidates"]["features"]["metrics"]["map@r"] == pytest.approx(raw)
    assert (model.settings.head is None) == (kept == "features")
    low, high = run.metrics["candidates"][kept]["intervals"]["map@r"]
    assert low <= found["map@r"] <= high


def test_features_that_are_kept_are_calibrated_on_all_training_classes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were trained on none of them."""
    monkeypatch.setattr(finish, "chosen", lambda measured, metric: "features")
    table = features(classes=24)
    run = train(table, out=str(tmp_path / "run"), epochs=2, folds=1, quiet=True, batch_size=16, accelerator="cpu")
    held = held_out_of(run)
    assert run.metrics["kept"] == "features" and held is not None
    assert np.unique(held.labels).tolist() == list(range(12)) and held.embeddings.shape == (96, 16)


def test_a_wished_dimension_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crossfit, "chosen", lambda measured, metric: "features")
    run = train(features(), out=str(tmp_path / "run"), epochs=2, dimension=4, quiet=True, accelerator="cpu")
    assert run.metrics["kept"] == "trained" and Embedder.load(run.folder).dimension == 4


def test_few_images_start_as_good_as_their_features(tmp_path: Path) -> None:
    """Twenty-seven rows vary in 26 directions, and the head keeps all 64 that the features have."""
    table = features(classes=18, each=3, dimension=64)
    run = train(table, out=str(tmp_path / "run"), epochs=1, quiet=True, accelerator="cpu")
    assert run.config.model.dimension == 64 and run.config.model.head_start == "pca"
    start, base = (run.metrics["candidates"][name]["metrics"]["map@r"] for name in ("start", "features"))
    assert start == pytest.approx(base, abs=0.02)


# Stopped and gone on with


@pytest.mark.parametrize("fold", [0, 2, "the last"])
def test_a_stop_in_any_fold_leads_to_the_same_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fold: int | str
) -> None:
    table, options = patterns(), {**FOLDS, "epochs": 2, "checkpoints.steps": 1}
    whole = train(table, out=str(tmp_path / "whole"), **options)
    trained = []

    class Stopping(fit.Recorder):
        def __init__(self, run: Run, *args: Any, **others: Any):
            super().__init__(run, *args, **others)
            trained.append(run.folder)
            self.ends = (fold == "the last") == (run.folder.name == "run") and run.folder.name in ("run", str(fold))

        def after_step(self, learner: Any, step: Any) -> None:
            self.stopping = self.ends and learner.done == 3
            super().after_step(learner, step)

    monkeypatch.setattr(fit, "Recorder", Stopping)
    with pytest.raises(StoppedError, match=r"--resume .*run"):
        train(table, out=str(tmp_path / "run"), **options)
    monkeypatch.undo()
    assert len(trained) == (4 if fold == "the last" else int(fold) + 1)
    again = train(table, resume=tmp_path / "run", quiet=True)
    assert again.metrics["choice"] == whole.metrics["choice"] and again.metrics["after"] == whole.metrics["after"]
    ours, theirs = (Embedder.load(run.folder).state_dict() for run in (again, whole))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


# In words


def measured(values: list[float], labels: list[int]) -> Measured:
    x = np.array(values)
    return Measured({"map@r": float(x.mean())}, {"map@r": x}, np.array(labels))


def test_the_verdict() -> None:
    labels = np.repeat(np.arange(20), 2).tolist()
    rng = np.random.default_rng(0)
    base = rng.uniform(0.2, 0.4, 40)
    better, same, worse = (measured((base + d + rng.normal(0, 0.02, 40)).tolist(), labels) for d in (0.2, 0.0, -0.2))
    features = measured(base.tolist(), labels)
    for trained, begins in ((better, "Training helped: map@r"), (same, "These classes do not show whether training helped"),
                            (worse, "Training made it worse than the pretrained features")):  # fmt: skip
        said = verdict("trained", {"features": features, "trained": trained}, {}, "map@r", "20 unseen classes")
        assert said.startswith(begins) and "20 unseen classes" in said and "95% interval" in said
    against = {"features": features, "trained": worse}
    for values, preferred in (({"features": 0.3, "trained": 0.4}, True), ({"features": 0.4, "trained": 0.3}, False)):
        said = verdict("trained", against, values, "map@r", "20 unseen classes")
        assert ("though held-out classes preferred it" in said) is preferred
    said = verdict("features", {"features": features, "trained": worse}, {"features": 0.5, "trained": 0.4}, "map@r", "")
    assert said.startswith("Training did not help: the pretrained features are kept")
    assert "the pretrained features 50.0%, the trained model 40.0%" in said
    said = verdict("features", {"features": features, "trained": same}, {"features": 0.5, "trained": 0.6}, "map@r", "")
    assert said.startswith("Held-out classes do not show whether training helped: the pretrained features are kept")


def test_the_features_are_left_for_what_is_surely_better_alone() -> None:
    rng = np.random.default_rng(0)
    labels, base = np.repeat(np.arange(20), 2).tolist(), rng.uniform(0.2, 0.4, 40)
    features = measured(base.tolist(), labels)
    better, luckier = (measured((base + d + rng.normal(0, 0.05, 40)).tolist(), labels) for d in (0.1, 0.005))
    assert candidates.chosen({"features": features, "trained": better}, "map@r") == "trained"
    assert luckier.metrics["map@r"] > features.metrics["map@r"]
    assert candidates.chosen({"features": features, "trained": luckier}, "map@r") == "features"
    assert candidates.chosen({"start": features, "trained": luckier}, "map@r") == "trained"  # there are no features


def test_a_handful_of_classes_that_all_gain_a_little_decides_nothing() -> None:
    labels = [0, 0, 1, 1, 2, 2, 3, 3]
    features, luckier = measured([0.3] * 8, labels), measured([0.31, 0.31, 0.31, 0.31, 0.32, 0.32, 0.4, 0.4], labels)
    assert (np.array(luckier.queries["map@r"]) > features.queries["map@r"]).all()
    assert candidates.chosen({"features": features, "trained": luckier}, "map@r") == "features"
    surely = measured([0.37, 0.37, 0.38, 0.38, 0.39, 0.39, 0.4, 0.4], labels)
    assert candidates.chosen({"features": features, "trained": surely}, "map@r") == "trained"


def test_intervals_are_over_classes() -> None:
    """Queries that repeat each other say no more than one of them."""
    few = measured([0.1, 0.5, 0.9, 0.3], [0, 1, 2, 3]).intervals()["map@r"]
    many = measured(np.repeat([0.1, 0.5, 0.9, 0.3], 50).tolist(), np.repeat(range(4), 50).tolist()).intervals()["map@r"]
    assert many == pytest.approx(few) and many[1] - many[0] > 0.3


def test_metrics_are_written_whole(tmp_path: Path) -> None:
    run = train(features(), out=str(tmp_path / "run"), epochs=2, quiet=True, accelerator="cpu")
    found = json.loads((run.folder / "metrics.json").read_text())
    assert set(found["candidates"]) == {"features", "start", "trained"} and found["verdict"]
    assert found["classes"] == 6 and set(found["held_out"]) == {"features", "start", "trained"}
    assert candidates.features_only(TrainConfig(model=run.config.model)) is not None
