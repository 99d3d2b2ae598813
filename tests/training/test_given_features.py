"""Data that are features already, of text or sound or any encoder: heads are trained on them."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional

import nearfar
from nearfar.data import open as open_data
from nearfar.models import Embedder
from nearfar.training.evaluate import evaluate
from nearfar.training.finish import report
from nearfar.training.options import ConfigError

OPTIONS = {"dimension": 8, "batch_size": 32, "epochs": 3, "quiet": True, "accelerator": "cpu"}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Classes differ in four of 24 dimensions, which the others drown."""
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(24), 8)
    features = rng.normal(size=(len(labels), 24)).astype(np.float32)
    features[:, :4] = 2 * rng.normal(size=(24, 4))[labels] + 0.3 * rng.normal(size=(len(labels), 4))
    path = tmp_path_factory.mktemp("data") / "sounds.npz"
    np.savez(path, features=features, labels=labels)
    return path


def test_a_head_learns_what_matters(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = nearfar.train(data, out=tmp_path / "run", loss="CircleLoss", **OPTIONS | {"epochs": 30, "lr": 3e-3})
    before, after = run.metrics["before"]["map@r"], run.metrics["after"]["map@r"]
    assert after > before + 0.05
    assert (run.folder / "report.html").is_file()

    test = open_data(data).split("test")
    model = Embedder.load(run.folder)
    found = model.embed(torch.from_numpy(np.asarray(test.features)))
    assert found.shape == (len(test), 8)
    # By hand: the head is all there is.
    head = {name: value for name, value in model.state_dict().items() if name.startswith("head")}
    weight, bias = (next(value for name, value in head.items() if name.endswith(kind)) for kind in ("weight", "bias"))
    by_hand = functional.normalize(torch.from_numpy(np.asarray(test.features)) @ weight.T + bias)
    torch.testing.assert_close(found, by_hand, atol=1e-5, rtol=1e-4)
    assert evaluate(run.folder)["map@r"] == pytest.approx(after)
    report(run)
    told = capsys.readouterr().out
    classes = len(test.classes)
    assert told.startswith(f"{classes} unseen classes of sounds.npz (test)") and ".embed(features)" in told
    assert "nearfar evaluate" in told and "nearfar serve" not in told  # there are no images to show


def test_features_of_another_encoder_are_refused(data: Path, tmp_path: Path) -> None:
    run = nearfar.train(data, out=tmp_path / "run", **OPTIONS)
    other = tmp_path / "other.npz"
    np.savez(other, features=np.ones((8, 5), np.float32), labels=np.arange(8) // 2)
    with pytest.raises(ConfigError, match="features of 5 dimensions, but the model takes 24"):
        evaluate(run.folder, other)
    with pytest.raises(ValueError, match=r"give features \(N, 24\)"):
        Embedder.load(run.folder).embed(torch.ones(2, 5))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"backbone": "convnet"}, "leave --backbone convnet out"),
        ({"views": 2}, "no images to augment"),
        ({"evaluation.flip": True}, "or to mirror"),
    ],
)
def test_what_needs_images_is_refused(data: Path, tmp_path: Path, options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        nearfar.train(data, out=tmp_path / "run", **OPTIONS | options)


def test_a_row_without_numbers_is_left_out(data: Path, tmp_path: Path) -> None:
    with np.load(data) as content:
        features, labels = content["features"].copy(), content["labels"]
    features[3] = np.nan
    path = tmp_path / "holes.npz"
    np.savez(path, features=features, labels=labels)
    run = nearfar.train(path, out=tmp_path / "run", **OPTIONS)
    assert run.finished
