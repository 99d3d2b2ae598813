"""Center loss with its two starts: the numbers behind the figures."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from nearfar.losses import CenterLoss, SoftmaxLoss
from nearfar.studies import centres
from nearfar.studies.centres import VARIANTS, Options, class_means, make_loss, trained, widths
from nearfar.studies.toy import characters
from nearfar.training.options import ConfigError

BY_NAME = {variant.name: variant for variant in VARIANTS}


def test_widths_by_hand() -> None:
    features = torch.tensor([[0.0, 1], [0, -1], [6, 0], [10, 0]])
    labels = torch.tensor([0, 0, 1, 1])
    assert class_means(features, labels).tolist() == [[0, 0], [8, 0]]
    assert widths(features, labels) == (1.5, 8.0)  # (1 + 1 + 2 + 2) / 4


def test_where_centres_start_and_how_they_are_weighed() -> None:
    options = Options(classes=4, weight=0.25, radius=3.0)
    spread = make_loss(BY_NAME["Softmax + Center, spread"], options)
    (center,) = (part for part in spread.modules() if isinstance(part, CenterLoss))
    np.testing.assert_allclose(center.centers, [[3, 0], [0, 3], [-3, 0], [0, -3]], atol=1e-6)
    near = make_loss(BY_NAME["Center, near zero"], options)
    assert isinstance(near, CenterLoss) and 0 < near.centers.abs().max() < 0.01
    x, labels = torch.tensor([[3.0, 4.0]]), torch.tensor([0])
    assert float(near.eval()(x, labels)) == pytest.approx(12.5, abs=0.1)  # |x|²/2
    softmax = next(part for part in spread.modules() if isinstance(part, SoftmaxLoss))
    parts = (spread.eval()(x, labels) - softmax(x, labels)).detach()
    assert float(parts) == pytest.approx(0.25 * 16 / 2, abs=1e-4)


def test_center_loss_alone_collapses_and_beside_a_softmax_does_not() -> None:
    options = Options(classes=3, steps=150)
    toy = characters(3, seed=0)
    alone, beside = (
        trained(BY_NAME[name], toy, 0, options) for name in ("Center, near zero", "Softmax + Center, near zero")
    )
    assert alone["within"] > alone["between"] and alone["between"] < 0.05 * beside["between"]
    assert beside["within"] < 0.3 * beside["between"]
    assert beside["between"] > beside["start between"]
    assert beside["accuracy"] > 0.9
    again = trained(BY_NAME["Center, near zero"], toy, 0, options)
    assert again == alone


def test_the_study(tmp_path) -> None:
    found = centres.run(replace(Options().small(), steps=20), tmp_path, print)
    assert [row["variant"] for row in found.tables["ends"]] == list(BY_NAME)
    assert {"features", "separation"} == set(found.figures)
    assert len(found.tables["curves"]) == len(VARIANTS) * 20
    assert "Collapsed (wider than the distance): " in found.sentences[0]


@pytest.mark.parametrize("wrong", [{"seeds": 0}, {"classes": 2}, {"steps": 0}])
def test_wrong_options(wrong: dict) -> None:
    with pytest.raises(ConfigError, match="at least 1 seed, 3 classes and 1 step"):
        Options(**wrong)
