"""Angular margins that rise from zero in the first steps."""

import pytest
import torch
from torch import Tensor

from nearfar.losses import ArcFaceLoss, CombinedMarginLoss, CosFaceLoss, SumLoss
from nearfar.training.margins import RisingMargins
from nearfar.training.train import train
from tests.training.making import SMALL, patterns


def test_margins_rise_in_proportion_to_the_step() -> None:
    loss = SumLoss([ArcFaceLoss(3, 2, margin=0.4), CombinedMarginLoss(3, 2, m2=0.2), CosFaceLoss(3, 2, margin=0.3)])
    margins = RisingMargins(loss, steps=4)
    arc, combined, cosine = loss.losses.values()
    for step, expected in ((0, 0.0), (1, 0.1), (3, 0.3), (4, 0.4), (100, 0.4)):
        margins.set(step)
        assert (arc.margin, combined.m2, cosine.margin) == pytest.approx((expected, expected / 2, 0.3))


def test_without_a_warm_up_and_by_class_they_stay() -> None:
    whole, by_class = ArcFaceLoss(3, 2), ArcFaceLoss(3, 2, margin=torch.tensor([0.1, 0.2, 0.3]))
    RisingMargins(whole, steps=0).set(0)
    assert whole.margin == 0.5
    RisingMargins(by_class, steps=4).set(0)
    assert isinstance(by_class.margin, Tensor) and by_class.margin.tolist() == torch.tensor([0.1, 0.2, 0.3]).tolist()


def test_a_training_starts_without_its_margin(tmp_path: object) -> None:
    options = {**SMALL, "max_steps": 3, "log_every": 1, "loss": "ArcFaceLoss", "loss.scale": 8.0}
    first = {}
    for margin, steps in ((0.5, 2), (0.0, 0)):
        folder = f"{tmp_path}/{margin}"
        own = {"loss.margin": margin, "schedule.margin_warmup_steps": steps, "out": folder}
        run = train(patterns(), quiet=True, **{**options, **own})
        first[margin] = [float(row["loss"]) for row in run.curves if row.get("loss")]
    assert first[0.5][0] == first[0.0][0]
    assert first[0.5][1] > first[0.0][1]
