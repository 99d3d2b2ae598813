"""What the constructors of losses take: declared once, seen by signatures, checked whenever it is assigned."""

import copy
import inspect
import math
import pickle
from dataclasses import KW_ONLY, InitVar

import pytest
import torch
from torch import Tensor

from nearfar import losses
from nearfar.losses.engine.maps import Linear
from nearfar.losses.engine.spec import LossSpec
from nearfar.losses.loss import Loss
from nearfar.losses.settings import Positive
from tests.losses.settings import DEFAULTS, SIZE, Setting, unit

X, LABELS = unit(8, SIZE), torch.arange(8) // 2
defaults = pytest.mark.parametrize("setting", DEFAULTS, ids=str)


class Scaled(Loss):
    """A loss of one's own, by the fields of its class."""

    scale: Positive = 8.0
    _: KW_ONLY
    power: float
    learnable: InitVar[bool] = False

    def set_up(self, learnable: bool) -> None:
        if learnable:
            self.learn_scale(self.scale)

    def spec(self) -> LossSpec:
        scale, negative = self.scales(self.scale)
        return LossSpec(positive=Linear(negative), negative=Linear(scale))


class Constructed(Loss):
    """A loss of one's own with a constructor, and an annotated attribute that is no argument."""

    centre: Tensor

    def __init__(self, scale: float, **options: object):
        super().__init__(**options)
        self.scale = scale
        self.register_buffer("centre", torch.zeros(3))

    def spec(self) -> LossSpec:
        return LossSpec(positive=Linear(-self.scale), negative=Linear(self.scale))


def test_fields_are_the_signature() -> None:
    assert (
        str(inspect.signature(Scaled))
        == "(scale: float = 8.0, *, power: float, learnable: bool = False, **options: Any)"
    )
    assert list(inspect.signature(Constructed).parameters) == ["scale", "options"]
    assert list(inspect.signature(Scaled(power=2)).parameters) != list(
        inspect.signature(Scaled).parameters
    )  # the call's
    assert list(inspect.signature(losses.CosFaceLoss).parameters)[:4] == [
        "num_classes",
        "embedding_size",
        "margin",
        "scale",
    ]


def test_fields_are_arguments_and_attributes() -> None:
    loss = Scaled(4.0, power=2, reduction="sum")
    assert (loss.scale, loss.power, loss.reduction) == (4.0, 2, "sum")
    assert Scaled(power=1).scale == 8.0 and not hasattr(loss, "learnable") and not hasattr(Scaled, "scale")
    assert Scaled(power=1, learnable=True).logit_scale.item() == pytest.approx(math.log(8))
    same = pickle.loads(pickle.dumps(copy.deepcopy(loss)))
    assert torch.equal(same(X, LABELS), loss(X, LABELS))
    own = Constructed(4.0, reduction="sum")
    assert own.centre.shape == (3,) and torch.equal(own(X, LABELS), loss(X, LABELS))
    for wrong, message in [
        ({}, "Scaled: missing a required argument: 'power'"),
        ({"power": 1, "pover": 2}, "Scaled has no argument 'pover': did you mean power"),
        ({"power": 1, "args": (1, 2, 3)}, "has no argument 'args'"),
    ]:
        with pytest.raises(TypeError, match=message):
            Scaled(**wrong)
    with pytest.raises(TypeError, match="too many positional arguments"):
        Scaled(1.0, 2)
    with pytest.raises(TypeError, match="has no argument 'scaled': did you mean scale"):
        Constructed(1.0, scaled=2)


@defaults
def test_assigned_numbers_take_effect(setting: Setting) -> None:
    """A loss whose numbers are assigned is one that is made with them."""
    made = setting.make()
    for name, number in vars(made).items():
        if name not in made.settings or not isinstance(number, float):
            continue
        value = number * 1.25 if number else 0.125
        assigned = setting.make().eval()
        setattr(assigned, name, value)
        again = Setting(setting.name, {**setting.arguments, name: value}).make().eval()
        again.load_state_dict(assigned.state_dict())
        torch.testing.assert_close(assigned(X, LABELS), again(X, LABELS), rtol=0, atol=0)


def test_assigned_numbers_are_checked() -> None:
    for loss, name, value, message in [
        (losses.CircleLoss(), "gamma", -1.0, "gamma must be a positive number, not -1.0"),
        (losses.ArcFaceLoss(3, SIZE), "margin", 28.6, r"radians.*math.radians\(28.6\) is 0.4992"),
        (losses.ArcFaceLoss(3, SIZE), "margin", torch.tensor([0.1, 4.0, 0.2]), "margin must be an angle"),
        (losses.TripletMarginLoss(), "mining", "hard", "mining must be one of 'batch_hard'"),
        (losses.CosFaceLoss(3, SIZE), "label_smoothing", 1.0, "at least 0 and below 1"),
        (losses.RankedListLoss(), "reduction", "mena", "reduction must be one of"),
        (losses.CrossBatchMemory(losses.CircleLoss(), SIZE), "memory_size", 0, "memory_size must be a positive number"),
    ]:
        before = getattr(loss, name)
        with pytest.raises(ValueError, match=message):
            setattr(loss, name, value)
        assert getattr(loss, name) is before


@defaults
def test_repr_shows_the_settings(setting: Setting) -> None:
    loss = setting.make()
    for name in loss.settings:
        value = vars(loss).get(name)
        if isinstance(value, float) or (name in setting.arguments and isinstance(value, str)):
            assert f"{name}={value}" in repr(loss)
    assert "memory_budget" not in repr(loss)
