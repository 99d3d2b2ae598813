"""Whole comparisons, on a frozen network and made data: the rules of fairness, what is left behind, and going on."""

import csv
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from nearfar.cli import main
from nearfar.compare import comparison as module
from nearfar.compare.comparison import compare
from nearfar.compare.journal import Journal
from nearfar.compare.leaderboard import Leaderboard, read_leaderboard
from nearfar.compare.query_metrics import FEATURES, METRICS, PRINCIPAL
from nearfar.compare.terminal import print_leaderboard
from nearfar.compare.workbench import Workbench, hold_out_test, shared_config
from nearfar.data import FeatureCache, Table
from nearfar.evaluation import retrieval_metrics
from nearfar.evaluation.class_means import class_mean
from nearfar.models import Embedder
from nearfar.training import finish
from nearfar.training.config import TrainConfig
from nearfar.training.learner import Learner
from nearfar.training.options import ConfigError, read_yaml, with_options
from nearfar.training.runs import Run
from nearfar.training.train import StoppedError, train
from tests.compare.making import LOSSES, SHARED, data, small, trunk_file
from tests.training.making import patterns

TIMES = ("step_seconds", "peak_bytes", "search_seconds", "run")


class Killed(BaseException):
    """No one expects it, as no one expects SIGKILL."""


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NEARFAR_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(autouse=True)
def reports(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Run, Table]]:
    """Reports of runs take seconds: they are counted, not written."""
    written: list[tuple[Run, Table]] = []
    monkeypatch.setattr(finish, "write_report", lambda *_: None)
    monkeypatch.setattr(module, "write_report", lambda run, _, table, __: written.append((run, table)))
    return written


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> str:
    return trunk_file(tmp_path_factory.mktemp("trunk"))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, weights: str) -> Iterator[Leaderboard]:
    """A comparison that nothing happened to."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(finish, "write_report", lambda *_: None)
        patch.setattr(module, "write_report", lambda *_: None)
        yield small(tmp_path_factory.mktemp("whole") / "c", weights)


def without_times(folder: Path) -> Any:
    def cleaned(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: cleaned(each) for name, each in value.items() if name not in TIMES}
        return [cleaned(each) for each in value] if isinstance(value, list) else value

    return cleaned(json.loads((folder / "leaderboard.json").read_text()))


def lines(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def assert_same(one: Path, other: Path) -> None:
    """All but the times."""
    assert without_times(one) == without_times(other)
    trials = [[{**line, "seconds": ""} for line in lines(folder / "trials.csv")] for folder in (one, other)]
    assert trials[0] == trials[1]
    with np.load(one / "queries.npz") as first, np.load(other / "queries.npz") as second:
        assert sorted(first) == sorted(second)
        assert all(np.array_equal(first[name], second[name]) for name in first)
    for name in LOSSES:
        assert (one / "settings" / f"{name}.yaml").read_text() == (other / "settings" / f"{name}.yaml").read_text()


# Fairness


def test_the_folds_share_no_class_and_no_test_class(weights: str) -> None:
    table = data()
    config = with_options(TrainConfig(), {**SHARED, "freeze": True, "weights": weights})
    rows = hold_out_test(table, config, 3)
    folds = rows.seen.folds(3, seed=config.seed)
    workbench = Workbench(config, [(fold.split("train"), fold.split("val")) for fold in folds])
    names = [{fold.val.label_name(i) for i in range(len(fold.val))} for fold in workbench.folds]
    for fold, validated in zip(workbench.folds, names, strict=True):
        trained = {fold.train.label_name(i) for i in range(len(fold.train))}
        assert not trained & validated
        assert len(trained | validated) == 12
    assert sum(map(len, names)) == len(set.union(*names)) == 12
    tested = {rows.test.label_name(i) for i in range(len(rows.test))}
    assert len(tested) == 12 and not tested & set.union(*names)


def test_the_rules_are_kept_in_every_step(
    whole: Leaderboard, tmp_path: Path, weights: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All losses have the same batches and the same start, and no test image is seen before all runs are finished."""
    steps: list[tuple[str, int, bytes, bytes]] = []
    train_step = Learner.training_step

    def watch_step(self: Learner, batch: Any) -> Any:
        head = (
            b"".join(p.detach().numpy().tobytes() for p in self.embedder.head_parameters()) if self.done == 0 else b""
        )
        steps.append((self.config.loss[0].name, self.done, batch.images.numpy().tobytes(), head))
        return train_step(self, batch)

    test = data().split("test")
    images: Any = test.images
    tested = {np.asarray(images[i]).tobytes() for i in range(len(test))}
    looks: list[tuple[bool, int]] = []
    compute = FeatureCache.compute

    def watch_images(self: FeatureCache, images: Any, *args: Any, **options: Any) -> Any:
        some = any(np.asarray(images[i]).tobytes() in tested for i in range(len(images)))
        looks.append((some, sum(Run(run).finished for run in (tmp_path / "c" / "runs").glob("*"))))
        return compute(self, images, *args, **options)

    monkeypatch.setattr(Learner, "training_step", watch_step)
    monkeypatch.setattr(FeatureCache, "compute", watch_images)
    board = small(tmp_path / "c", weights)
    first, second = ([step[1:] for step in steps if step[0] == name] for name in LOSSES)
    assert len(first) > 40
    assert first == second
    assert sum(some for some, _ in looks) >= 4  # runs and baselines
    assert {finished for some, finished in looks if some} == {4}
    assert {finished for some, finished in looks if not some} >= {0, 1, 2, 3}
    assert_same(board.folder, whole.folder)  # the same again is the same


def test_equal_trials_and_seeds(whole: Leaderboard) -> None:
    trials = lines(whole.folder / "trials.csv")
    assert {name: sum(line["loss"] == name for line in trials) for name in LOSSES} == dict.fromkeys(LOSSES, 3)
    runs = {name: [Run(whole.folder / "runs" / f"{name}-{seed}") for seed in (0, 1)] for name in LOSSES}
    for name, own in runs.items():
        assert [run.config.seed for run in own] == [0, 1]
        assert own[0].config.loss == own[1].config.loss and own[0].config.loss[0].name == name
    steps = {run.metrics["steps"] for own in runs.values() for run in own}
    assert len(steps) == 1
    assert whole.facts["trials"] == 3 and whole.facts["seeds"] == 2


# Results


def test_baselines_are_what_they_are_called(whole: Leaderboard, weights: str) -> None:
    """By numpy: features as they are, and their principal components divided by sqrt(variance + mean variance)."""
    table = data()
    model = Embedder("convnet", head=None, trunk_options={"width": 8}, weights=weights)
    model.preprocess = model.transform = Run(whole.run).model().preprocess
    test, seen = table.split("test"), table.split("train")
    features, training = (model.embed(rows.images, output="features").numpy() for rows in (test, seen))
    centred = training.astype(np.float64) - training.mean(0)
    _, singular, axes = np.linalg.svd(centred, full_matrices=False)
    variances = singular**2 / (len(training) - 1)
    whitened = (features - training.mean(0)) @ axes[:8].T / np.sqrt(variances[:8] + variances.sum() / training.shape[1])
    rows = {row.name: row for row in whole.rows}
    for name, vectors in ((FEATURES, features), (PRINCIPAL, whitened)):
        expected = retrieval_metrics(vectors.astype(np.float32), test.labels, metrics=METRICS)
        for metric in METRICS:
            assert rows[name].metrics[metric].value == pytest.approx(expected[metric], abs=1e-3)


def test_settings_train_the_same_models_again(whole: Leaderboard, tmp_path: Path) -> None:
    """What `nearfar train --config` makes of them, test rows and all, is what the leaderboard says."""
    for name in LOSSES:
        config = read_yaml(whole.folder / "settings" / f"{name}.yaml")
        run = train(data(), config=config, quiet=True, out=str(tmp_path / name))
        with np.load(whole.folder / "queries.npz") as queries:
            for metric in METRICS:
                assert run.metrics["after"][metric] == pytest.approx(queries[f"{name} {metric}"][0].mean(), abs=1e-6)
        assert run.metrics["best"] == Run(whole.folder / "runs" / f"{name}-0").metrics["best"]


def test_the_winner_is_a_normal_run(whole: Leaderboard, tmp_path: Path, reports: list[tuple[Run, Table]]) -> None:
    run = Run(whole.run)
    config = read_yaml(run.folder / "config.yaml")
    again = train(data(), config=config, quiet=True, out=str(tmp_path / "again"))
    assert again.metrics["after"] == run.metrics["after"] and again.metrics["before"] == run.metrics["before"]
    assert run.metrics["measured_on"] == "test" and run.metrics["open_set"]
    assert torch.equal(*(model.embed(data().images[:4]) for model in (run.model(), again.model())))
    models = sorted(path.parent.name for path in (whole.folder / "runs").glob("*/model.safetensors"))
    assert models == [run.folder.name]
    assert not list(whole.folder.glob("runs/*/checkpoints"))


def test_the_leaderboard_is_in_order_and_can_be_read_again(whole: Leaderboard) -> None:
    values = [row.metrics["map@r"].value for row in whole.rows]
    assert values == sorted(values, reverse=True)
    assert {row.name for row in whole.rows} == {*LOSSES, FEATURES, PRINCIPAL}
    assert len(whole.pairs) == 6
    again = read_leaderboard(whole.folder)
    assert (again.winner, again.run, again.pairs, again.facts) == (whole.winner, whole.run, whole.pairs, whole.facts)
    assert [row.name for row in again.rows] == [row.name for row in whole.rows]
    assert again.rows[0].metrics["map@r"].low == whole.rows[0].metrics["map@r"].low
    assert not again.outdated
    table = lines(whole.folder / "leaderboard.csv")
    assert [line["name"] for line in table] == [row.name for row in whole.rows]
    assert [float(line["map@r"]) for line in table] == values
    page = (whole.folder / "report.html").read_text()
    assert all(row.name in page for row in whole.rows) and "Differences" in page


def test_what_is_told_rests_on_classes_and_seeds(whole: Leaderboard) -> None:
    """All pairs anew, from what is kept of every query."""
    with np.load(whole.folder / "queries.npz") as queries:
        labels = queries["labels"]
        test = data().split("test")
        assert [test.label_name(int(row)) for row in queries["ids"]] == list(labels)
        for pair in whole.pairs:
            values = queries[f"{pair.second} map@r"] - queries[f"{pair.first} map@r"]
            assert class_mean(values.astype(np.float64), labels).p_value == pytest.approx(pair.p, rel=1e-3)
    for name in LOSSES:
        said = whole.against(name)
        assert all(row.name in said for row in whole.rows)
    page = (whole.folder / "report.html").read_text()
    assert "Verdicts rest on 12 classes and 2 runs" in page


def test_an_early_comparison_is_read_and_its_claims_are_not_repeated(
    whole: Leaderboard, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = json.loads((whole.folder / "leaderboard.json").read_text())
    content["format"] = 1
    for pair in content["pairs"]:
        del pair["seeds"], pair["classes"]
    del content["facts"]["settings"]
    (tmp_path / "leaderboard.json").write_text(json.dumps(content))
    early = read_leaderboard(tmp_path)
    assert early.winner == whole.winner and "treat queries as independent" in early.outdated
    print_leaderboard(early)
    shown = " ".join(capsys.readouterr().out.split())
    assert early.outdated in shown and "Verdicts rest" not in shown and "3 settings of each loss" in shown


def test_the_result_is_printed(whole: Leaderboard, capsys: pytest.CaptureFixture[str]) -> None:
    print_leaderboard(whole)
    shown = capsys.readouterr().out
    assert all(row.name in shown and f"{100 * row.metrics['map@r'].value:.2f}" in shown for row in whole.rows)
    assert max(map(len, shown.splitlines()[:-2])) <= 80


# Going on


def kill_at_the_fifth_training(patch: pytest.MonkeyPatch) -> None:
    original = Journal.add

    def killed(self: Journal, key: str, **values: Any) -> Any:
        entry = original(self, key, **values)
        if len(self) == 6:  # with that of the workbench
            raise Killed
        return entry

    patch.setattr(Journal, "add", killed)


def kill_in_the_third_run(patch: pytest.MonkeyPatch) -> None:
    original, steps = Learner.on_train_batch_end, [0]

    def killed(self: Learner, *args: Any, **options: Any) -> None:
        original(self, *args, **options)
        if hasattr(self.observer, "run") and self.observer.run.folder.name == f"{LOSSES[1]}-0":
            steps[0] += 1
            if steps[0] == 5:
                raise Killed

    patch.setattr(Learner, "on_train_batch_end", killed)


def kill_at_the_look(patch: pytest.MonkeyPatch) -> None:
    def killed(*_: Any) -> None:
        raise Killed

    patch.setattr(module, "write_page", killed)


@pytest.mark.parametrize("kill", [kill_at_the_fifth_training, kill_in_the_third_run, kill_at_the_look])
def test_after_a_kill_it_ends_as_if_never_killed(
    kill: Any, whole: Leaderboard, tmp_path: Path, weights: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "c"
    with monkeypatch.context() as patch:
        kill(patch)
        with pytest.raises(Killed):
            small(folder, weights)
    assert not (folder / "leaderboard.json").exists()
    board = compare(data(), resume=folder, quiet=True)
    assert_same(folder, whole.folder)
    assert compare(resume=folder).winner == board.winner  # finished: only read
    with pytest.raises(ConfigError, match="already contains a comparison"):
        small(folder, weights)


def test_who_is_stopped_is_told_how_to_go_on(
    whole: Leaderboard, tmp_path: Path, weights: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, calls = Workbench.halves, [0]

    def interrupting(self: Workbench, fold: Any) -> tuple[float, float]:
        calls[0] += 1
        if calls[0] == 6:
            os.kill(os.getpid(), signal.SIGINT)
        return original(self, fold)

    with monkeypatch.context() as patch:
        patch.setattr(Workbench, "halves", interrupting)
        with pytest.raises(StoppedError, match=r"To resume: nearfar compare --resume .*c$"):
            small(tmp_path / "c", weights)
    compare(data(), resume=tmp_path / "c", quiet=True)
    assert_same(tmp_path / "c", whole.folder)


# The whole network, refusals, the command line


def test_the_whole_network_can_be_trained(tmp_path: Path) -> None:
    options = {**SHARED, "batch_size": 16, "epochs": 1, "trials": 1, "seeds": 1, "folds": 2}
    losses = ["TripletMarginLoss", "CircleLoss/class"]
    board = compare(data(), losses=losses, finetune=True, quiet=True, out=str(tmp_path / "c"), **options)
    assert {row.name for row in board.rows} == {*losses, FEATURES, PRINCIPAL}
    configs = {name: read_yaml(tmp_path / "c" / "settings" / f"{name.replace('/', '-')}.yaml") for name in losses}
    assert not any(config.model.freeze for config in configs.values())
    assert configs["CircleLoss/class"].loss[0].class_level
    assert all(np.isnan(row.metrics["map@r"].seeds) for row in board.rows)  # one seed has no interval


def test_what_is_shared_is_chosen_for_the_smallest_fold() -> None:
    folds = [fold.split("train") for fold in patterns(classes=20, each=30).folds(4)]
    options = {"freeze": True, "backbone": "efficientnet-lite0", "dimension": 64}
    config = shared_config(with_options(TrainConfig(), options), folds)
    smallest = min(fold.num_classes for fold in folds)
    assert smallest == 7
    assert (config.sampler.kind, config.sampler.p, config.sampler.k, config.sampler.batch_size) == ("pk", 7, 4, 28)
    steps = config.epochs * (7 * 30 // 28)
    assert 300 <= steps < 310  # about as many steps, however large the data
    assert config.evaluation.every == round(config.epochs / 10)
    assert config.loss == () and config.model.head_start == "pca"


@pytest.mark.parametrize(
    ("table", "options", "message"),
    [
        (patterns(classes=6, each=4), {}, "3 training classes, but 2 folds need 4"),
        (
            patterns(classes=24, each=4),
            {"split": "images"},
            "the split of patterns tests the training classes",
        ),
        (patterns(classes=24, each=4).split("train"), {}, "has no test rows"),
        (patterns(classes=24, each=4), {"losses": ["Circle"]}, "did you mean CircleLoss"),
        (patterns(classes=24, each=4), {"trials": 0}, "trials must be at least 1"),
        (patterns(classes=24, each=4), {"budget": "soon"}, "is not a duration"),
        (patterns(classes=24, each=4), {"budget": "10"}, "budget 10: write 10min or 10s"),
    ],
)
def test_refusals(table: Table, options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        compare(table, **{"folds": 2, "quiet": True, "out": str(tmp_path / "c"), **SHARED, **options})
    assert not (tmp_path / "c").exists()


def test_resuming_takes_no_options(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is resumed with its own settings"):
        compare(resume=tmp_path, trials=3)
    with pytest.raises(ConfigError, match="is not a comparison"):
        compare(resume=tmp_path)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["a", "b"], "takes one data set"),
        (["--lr", "1e-3"], "--lr is searched for every loss"),
        (["--optimiser.classes", "1e-3"], "--optimiser.classes is searched for every loss"),
        (["--loss", "CircleLoss"], "with --losses"),
        (["--losses", "Circle"], "did you mean CircleLoss"),
        (["--trails", "3"], "did you mean --trials"),
        (["--trials", "many"], "trials must be a whole number"),
        (["--budget", "soon"], "is not a duration"),
        (["--budget", "10"], "--budget 10: write 10min or 10s"),
        (["--resume", "x", "--trials", "3"], "takes no other options"),
        (["--resume", "no/such"], "is not a comparison"),
        (["no/such/folder"], "there is no"),
    ],
)
def test_mistakes_on_the_command_line(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", *words]) == 2
    assert message in capsys.readouterr().err


def test_the_command_line_compares(tmp_path: Path, weights: str, capsys: pytest.CaptureFixture[str]) -> None:
    table = data()
    np.savez(
        tmp_path / "photos.npz", images=np.stack([table.images[i] for i in range(len(table))]), labels=table.labels
    )  # type: ignore[index]
    words = [f"--{name}={value}" for name, value in SHARED.items() if name != "options"]
    words += ["--options", "{width: 8}", "--weights", weights, "--epochs", "1", "--out", str(tmp_path / "c")]
    words += ["--losses", "CircleLoss", "NormFaceLoss", "--trials", "1", "--seeds", "1", "--folds", "2", "--quiet"]
    assert main(["compare", str(tmp_path / "photos.npz"), *words]) == 0
    shown = capsys.readouterr()
    assert "CircleLoss" in shown.out and "PCA-whitened head" in shown.out and str(tmp_path / "c") in shown.out
    assert shown.err == ""
    assert main(["compare", "--resume", str(tmp_path / "c")]) == 0
    assert "NormFaceLoss" in capsys.readouterr().out
