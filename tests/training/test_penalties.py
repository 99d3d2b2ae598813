"""Penalties of binary codes on the command line: named like a loss, with a head that gives codes, and beside a loss."""

from pathlib import Path

import pytest
import torch

from nearfar.cli import main
from nearfar.compare.spaces import read_contestant
from nearfar.training.build import build_loss
from nearfar.training.options import ConfigError
from nearfar.training.train import train
from tests.training.making import SMALL, patterns

SUM = "ProxyAnchorLoss + 0.5 * QuantizationLoss + 0.25 * BitBalanceLoss"


def test_named_in_the_loss(tmp_path: Path) -> None:
    options = {**SMALL, "head": "hash", "max_steps": 2, "quiet": True}
    run = train(patterns(), loss=SUM, out=str(tmp_path / "run"), **options)
    assert [(loss.name, loss.weight) for loss in run.config.loss] == [
        ("ProxyAnchorLoss", 1.0),
        ("QuantizationLoss", 0.5),
        ("BitBalanceLoss", 0.25),
    ]
    loss = build_loss(run.config.loss, num_classes=3, embedding_size=8)
    x, labels = torch.rand(6, 8), torch.arange(6) // 2
    h = x * 8**0.5
    expected = loss.losses["ProxyAnchorLoss"](x, labels)
    expected = expected + 0.5 * (h.abs() - 1).square().mean() + 0.25 * h.mean(0).square().mean()
    torch.testing.assert_close(loss(x, labels), expected)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"loss": SUM}, "QuantizationLoss is a penalty on binary codes: it needs --head hash, not linear"),
        (
            {"loss": "QuantizationLoss", "head": "hash"},
            r"is a penalty: add it to a loss, such as --loss 'ProxyAnchorLoss \+ 0.1 \* QuantizationLoss'",
        ),
        ({"loss": "QuantisationLoss", "head": "hash"}, "did you mean QuantizationLoss?"),
    ],
)
def test_refusals(options: dict[str, str], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        train(patterns(), out=str(tmp_path / "run"), quiet=True, **{**SMALL, **options})


def test_where_they_are_found(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["losses"]) == 0
    assert "2 penalties on binary codes" in capsys.readouterr().out
    assert main(["losses", "QuantizationLoss"]) == 0
    assert "QuantizationLoss (penalty)" in capsys.readouterr().out
    with pytest.raises(ConfigError, match="QuantizationLoss is a penalty on binary codes, to be added to a loss"):
        read_contestant("QuantizationLoss")
