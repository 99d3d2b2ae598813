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
