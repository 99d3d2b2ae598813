"""float32, bfloat16 and float16: finite everywhere, and no worse than the plain dense form."""

import itertools

import pytest
import torch

from nearfar import losses
from tests.losses.settings import CLASSES, SETTINGS, SIZE, Setting, inputs, parameters, unit

settings = pytest.mark.parametrize("setting", SETTINGS, ids=str)
DTYPES = (torch.float32, torch.bfloat16, torch.float16)

dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=str)


@settings
@pytest.mark.filterwarnings("ignore:.*the loss and its gradient are zero")
def test_no_nan_or_infinity(setting: Setting) -> None:
    reductions = ("mean",) if setting.one_number else ("mean", "none")
    for dtype, kind, reduction in itertools.product(DTYPES, inputs(), reductions):
        x, labels = inputs()[kind]
        if kind == "large norms" and dtype == torch.float16 and setting.name == "NPairsLoss":
            x = x / 10  # dot products of such vectors are beyond what float16 gradients hold
        x = x.to(dtype).requires_grad_()
        loss = setting.make(reduction=reduction).to(dtype).eval()
        tensors = parameters(loss, x)
        value = loss(x, labels)
        gradients = torch.autograd.grad(value.sum(), tensors, allow_unused=True, materialize_grads=True)
        case = f"{dtype}, {kind}, {reduction}"
        assert all(bool(t.isfinite().all()) for t in (value, *gradients)), case
        assert all(g.dtype == p.dtype for g, p in zip(gradients, tensors, strict=True)), case


@settings
@dtypes
def test_error_is_no_worse_than_the_dense_forms(setting: Setting, dtype: torch.dtype) -> None:
    """Against float64 on the same (rounded) inputs: our root-mean-square error is at most the plain form's, plus a few units in the last place."""
    labels = torch.arange(40) // 4 % CLASSES
    x = unit(40, SIZE, seed=3).to(dtype)

    def run(dense: bool, precision: torch.dtype) -> list[torch.Tensor]:
        loss = setting.make(dense=dense).to(dtype).to(precision).eval()
        tensor = x.to(precision).requires_grad_()
        value = loss(tensor, labels)
        return [t.detach().double() for t in (value, *torch.autograd.grad(value, parameters(loss, tensor)))]

    truth, plain, ours = run(True, torch.float64), run(True, dtype), run(False, dtype)
    for exact, reference, actual in zip(truth, plain, ours, strict=True):
        # In float32 both compute alike, in another order: which is luckier is chance, magnified by the scales.
        slack = (32 if dtype == torch.float32 else 2) * torch.finfo(dtype).eps * max(rms(exact), 1e-3)
        assert rms(actual - exact) <= rms(reference - exact) + slack


def rms(t: torch.Tensor) -> float:
    return float(t.square().mean().sqrt())


def test_circle_at_the_papers_scale_does_not_overflow() -> None:
    """gamma = 256, m = 0.25: exponents reach 240 and 1008, beyond exp in float32."""
    x = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [1.0, 0.0], [1.0, 1e-3]], requires_grad=True)
    value = losses.CircleLoss(m=0.25, gamma=256)(x, torch.tensor([0, 0, 1, 1]))
    value.backward()
    assert value.item() > 1000 / 2
    assert x.grad is not None and bool(x.grad.isfinite().all())


def test_half_precision_class_weights() -> None:
    """A bfloat16 W is used block by block, and takes a bfloat16 gradient."""
    loss = losses.ArcFaceLoss(CLASSES, SIZE).bfloat16()
    x = unit(4, SIZE).bfloat16().requires_grad_()
    loss(x, torch.arange(4)).backward()
    assert loss.weight is not None and loss.weight.grad is not None
    assert loss.weight.grad.dtype == torch.bfloat16
