"""The losses in loops that people write themselves: mixed precision, schedules, growing classes, odd labels."""

import pytest
import torch
from torch import Tensor

from nearfar import losses
from tests.losses.settings import SETTINGS, SIZE, Setting, unit

CLASSES = 16
LABELS = torch.arange(64) % CLASSES


# Mixed precision


def around_centres(noise: float) -> Tensor:
    """Samples of tight classes, whose gradients are small, or of loose ones."""
    return unit(CLASSES, SIZE, seed=1)[LABELS] + noise * unit(len(LABELS), SIZE, seed=2)


def scaled_gradient(loss: losses.Loss, inputs: tuple[Tensor, ...], scale: float) -> Tensor:
    """The gradient by the first input as an optimiser sees it, after a backward pass of the scaled loss."""
    x = inputs[0].clone().requires_grad_()
    (loss(x, *inputs[1:]) * scale).backward()
    assert x.grad is not None
    return x.grad.double() / scale


def assert_loss_scaling_works(exact: Tensor, dense: Tensor, ours: Tensor) -> None:
    size = exact.norm().clamp_min(1e-6)  # of tight classes some have nothing to learn
    reference, actual = (float((gradient - exact).norm() / size) for gradient in (dense, ours))
    assert actual <= reference + torch.finfo(torch.float16).eps, (reference, actual)
    assert actual <= 0.005 or reference >= 0.005


TIGHT_AND_LOOSE = pytest.mark.parametrize("noise", [0.01, 1.0], ids=["tight", "loose"])


@TIGHT_AND_LOOSE
@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_float16_gradients_survive_a_loss_scale(setting: Setting, noise: float) -> None:
    """Against float64, of the same rounded embeddings: no error beyond that of dense=True, but for a rounding."""
    x = around_centres(noise).half()

    def gradient(dense: bool, dtype: torch.dtype, scale: float) -> Tensor:
        loss = setting.make(num_classes=CLASSES, dense=dense).eval()
        loss.to(torch.float64 if dtype == torch.float64 else torch.float32)
        return scaled_gradient(
            loss, (x.to(dtype), LABELS % 5 if setting.arguments.get("num_classes") == 5 else LABELS), scale
        )

    exact = gradient(True, torch.float64, 1.0)
    # A scaler halves its scale until nothing overflows.
    for scale in (2.0**power for power in range(16, -16, -1)):
        dense, ours = (gradient(dense, torch.float16, scale) for dense in (True, False))
        if bool(dense.isfinite().all()):
            break
    assert_loss_scaling_works(exact, dense, ours)


@TIGHT_AND_LOOSE
@pytest.mark.parametrize("name", [info.name for info in losses.list_losses() if info.level == "towers"])
def test_float16_towers_survive_a_loss_scale(name: str, noise: float) -> None:
    a = unit(64, SIZE)
    towers = a.half(), (a + noise * unit(64, SIZE, seed=1)).half()

    def gradient(dense: bool, dtype: torch.dtype, scale: float) -> Tensor:
        return scaled_gradient(getattr(losses, name)(dense=dense).to(dtype), tuple(t.to(dtype) for t in towers), scale)

    exact = gradient(True, torch.float64, 1.0)
    dense, ours = (scaled_gradient(getattr(losses, name)(dense=d), towers, 2.0**12) for d in (True, False))
    assert_loss_scaling_works(exact, dense, ours)


@pytest.mark.parametrize(
    ("loss", "noise"), [(losses.NTXentLoss(), 0.02), (losses.CircleLoss(), 0.1)], ids=["NTXent", "Circle"]
)
def test_small_float16_gradients_are_not_lost(loss: losses.Loss, noise: float) -> None:
    """Gradients below the smallest number of float16, which only the scale makes representable."""
    x, scale = around_centres(noise).half(), 2.0**16
    gradient = scaled_gradient(loss, (x, LABELS), scale)
    exact = scaled_gradient(loss, (x.double(), LABELS), 1.0)
    lost = exact.abs() < torch.finfo(torch.float16).smallest_normal
    assert lost.sum() >= 20
    torch.testing.assert_close(gradient[lost], exact[lost], rtol=2e-2, atol=1e-12)


# Classes that come


WITH_CLASSES = [s for s in SETTINGS if s.class_level]
with_classes = pytest.mark.parametrize("setting", WITH_CLASSES, ids=str)


@with_classes
def test_extended_classes_keep_the_old_ones(setting: Setting) -> None:
    loss = setting.make().eval()
    before = {name: tensor.clone() for name, tensor in loss.state_dict().items()}
    x = unit(20, SIZE)
    logits = loss.logits(x)
    loss.extend_classes(3)
    assert loss.num_classes == 8 and loss.class_vectors().shape[:-1].numel() == 8 * loss.vectors_per_class
    torch.testing.assert_close(loss.logits(x)[:, :5], logits)
    for name, tensor in loss.state_dict().items():
        torch.testing.assert_close(tensor[: len(before[name])] if tensor.ndim else tensor, before[name], rtol=0, atol=0)
    value = loss(x, torch.arange(20) % 8)
    if loss.weight is not None:
        assert bool((torch.autograd.grad(value, loss.weight)[0][-3:] != 0).any())
    with pytest.raises(ValueError, match="labels run from 0 to 8, but num_classes=8"):
        loss(x, torch.arange(20) % 9)


@pytest.mark.parametrize(
    "optimizer", [torch.optim.SGD, torch.optim.AdamW, torch.optim.Adagrad], ids=lambda o: o.__name__
)
def test_extended_classes_are_trained_on(optimizer: type[torch.optim.Optimizer]) -> None:
    """The optimiser's state of the old rows stays, as if the new rows had been there without any gradient."""
    options = {"lr": 0.1, "momentum": 0.9} if optimizer is torch.optim.SGD else {"lr": 0.1}

    def train(loss: losses.Loss, sgd: torch.optim.Optimizer, classes: int, steps: int) -> Tensor:
        for step in range(steps):
            sgd.zero_grad()
            value = loss(unit(12, SIZE, seed=step), torch.arange(12) % classes)
            value.backward()
            sgd.step()
        return value  # the graph is alive while the classes are extended

    loss = losses.SoftmaxLoss(3, SIZE).double()
    whole = losses.SoftmaxLoss(5, SIZE).double()
    sgd, reference = (optimizer(each.parameters(), **options) for each in (loss, whole))  # type: ignore[call-arg]
    with torch.no_grad():
        whole.weight[:3], whole.bias[3:] = loss.weight, -1e9  # the last two have no probability, and no gradient
    alive = [train(loss, sgd, 3, 3), train(whole, reference, 3, 3)]
    loss.extend_classes(2, sgd)
    with torch.no_grad():
        loss.weight[3:], loss.bias[3:] = whole.weight[3:], 0
        whole.bias[3:] = 0
    alive += [train(loss, sgd, 5, 3), train(whole, reference, 5, 3)]
    torch.testing.assert_close(loss.weight, whole.weight)
    torch.testing.assert_close(loss.bias, whole.bias)
    assert sgd.param_groups[0]["params"][0] is loss.weight


def test_classes_are_only_extended_by_what_keeps_them() -> None:
    loss = losses.CosFaceLoss(4, SIZE)
    with pytest.raises(ValueError, match=r"has vectors of 4 classes: extend_classes\(n\) adds n to them"):
        loss.add_classes(6, SIZE)
    adam = torch.optim.Adam(loss.parameters())
    loss(unit(4, SIZE).float(), torch.arange(4)).backward()
    adam.step()
    with pytest.raises(ValueError, match="the optimizer does not have the loss's weight"):
        loss.extend_classes(2, torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))]))
    loss.extend_classes(2)
    loss(unit(4, SIZE).float(), torch.arange(4)).backward()
    with pytest.raises(RuntimeError, match="size"):  # without its state an optimiser does not go on silently
        adam.step()
    for wrong in (0, -1, 2.0, True):
        with pytest.raises(ValueError, match="a positive number of classes"):
            loss.extend_classes(wrong)
    with pytest.raises(ValueError, match="CircleLoss has no classes: make it with num_classes"):
        losses.CircleLoss().extend_classes(2)
    with pytest.raises(ValueError, match="TripletMarginLoss has no class vectors"):
        losses.TripletMarginLoss().predict(unit(2, SIZE))


def test_margins_and_boundaries_by_class_are_extended() -> None:
    margin = torch.nn.Parameter(torch.tensor([0.1, 0.2, 0.6]))
    loss = losses.ArcFaceLoss(3, SIZE, margin=margin)
    loss.extend_classes(2)
    assert loss.margin is margin
    torch.testing.assert_close(margin.detach(), torch.tensor([0.1, 0.2, 0.6, 0.3, 0.3]))
    boundaries = losses.MarginLoss(num_classes=3, learn_beta=True)
    boundaries.extend_classes(1)
    torch.testing.assert_close(boundaries.beta.detach(), torch.full((4,), 1.2))


@with_classes
def test_logits_are_those_of_the_loss_without_its_margin(setting: Setting) -> None:
    """The loss is the cross-entropy of its logits, where it has no margin; several vectors a class are pooled."""
    if (
        (setting.info.level == "proxy"
        and setting.name != "ProxyNCALoss")
        or setting.name in ("P2SGradLoss", "CenterLoss")
    ):
        return
    margins = {
        "margin": 0.0,
        "m2": 0.0,
        "m3": 0.0,
        "l_margin": 0.0,
        "u_margin": 0.0,
        "m1": 1.0,
        "tau": 0.0,
        "lambda_g": 0.0,
    }
    if setting.name in ("SphereFaceLoss", "LargeMarginSoftmaxLoss"):
        margins["margin"] = 1.0
    if setting.name in ("CircleLoss", "UnifiedLoss"):
        margins = {"m": 0.0}
    loss = setting.make()
    arguments = {name: value for name, value in margins.items() if name in loss.settings}
    plain = {"label_smoothing": 0.0, "exclude_positive": False}
    arguments |= {name: value for name, value in plain.items() if name in loss.settings}
    loss = Setting(setting.name, setting.arguments | arguments).make().eval()
    x, labels = unit(20, SIZE), torch.arange(20) % 5
    logits = loss.logits(x)
    assert torch.equal(loss.predict(x), logits.argmax(1))
    if setting.name == "CurricularFaceLoss":
        return  # its negatives are weighed
    if setting.name == "CircleLoss":
        cosines = logits / loss.gamma
        expected = cosines.clamp_min(0) * cosines * loss.gamma
        own = torch.nn.functional.one_hot(labels) > 0
        logits = torch.where(own, (1 - cosines) * (cosines - 1) * loss.gamma, expected)
    torch.testing.assert_close(loss(x, labels), torch.nn.functional.cross_entropy(logits, labels))
