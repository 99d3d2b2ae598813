"""Batches, types and settings that nobody thought of, for every registered loss.

`NEARFAR_LONG=1` tries a hundred times as many.
"""

import inspect
import os
from typing import Any

import hypothesis
import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor

from nearfar import losses
from tests.losses.settings import CLASSES, DEFAULTS, SETTINGS, SIZE, Setting, unit

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*the loss and its gradient are zero"),
    pytest.mark.filterwarnings("ignore:.*cannot be above 2"),
]
EXAMPLES = 300 if os.environ.get("NEARFAR_LONG") else 3
fuzzed = hypothesis.settings(
    max_examples=EXAMPLES,
    derandomize=not os.environ.get("NEARFAR_LONG"),
    database=None,
    suppress_health_check=list(hypothesis.HealthCheck),
)


@st.composite
def batches(draw: st.DrawFn, most: int = 12) -> tuple[Tensor, Tensor]:
    """Embeddings (N, SIZE) of any length, and class ids, in any mixture of frequent, rare and absent classes."""
    labels = draw(st.lists(st.integers(0, CLASSES - 1), min_size=1, max_size=most))
    x = unit(len(labels), SIZE, seed=draw(st.integers(0, 2**31)))
    spread = draw(st.sampled_from([0.05, 1.0]))
    # Other seeds than those of x: c_0 + c_1 of class 0 and c_1 + c_0 of class 1 would be equally near to every sample.
    centre = unit(CLASSES, SIZE, seed=2**31 + draw(st.integers(1, 10)))[labels]
    return (centre + spread * x) * 10.0 ** draw(st.integers(-3, 1)), torch.tensor(labels)


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
@fuzzed
@hypothesis.given(batch=batches(), seed=st.integers(0, 5))
def test_any_batch_equals_the_reference(setting: Setting, batch: tuple[Tensor, Tensor], seed: int) -> None:
    x, labels = batch
    loss = setting.make(seed).eval()  # its state is that of the reference
    x = x.requires_grad_()
    inputs = [x, *loss.parameters()]
    expected = setting.reference(loss, labels)(setting.case(loss, x, labels))[0]
    wanted = torch.autograd.grad(expected, inputs, materialize_grads=True, allow_unused=True)
    value = loss(x, labels)
    found = torch.autograd.grad(value, inputs, materialize_grads=True, allow_unused=True)
    torch.testing.assert_close(value, expected, rtol=1e-9, atol=1e-9)
    for ours, theirs in zip(found, wanted, strict=True):
        assert float((ours - theirs).abs().max()) <= 1e-7 * max(1.0, float(theirs.abs().max()))


def _varied(draw: st.DrawFn, loss: type[losses.Loss]) -> dict[str, Any]:
    """Every number that the loss takes, halved to doubled."""
    found = {}
    for name, parameter in inspect.signature(loss.__init__).parameters.items():
        if isinstance(parameter.default, float) and parameter.default != 0:
            found[name] = parameter.default * 2 ** draw(st.floats(-1, 1), label=name)
    return found


@pytest.mark.parametrize("setting", DEFAULTS, ids=str)
@fuzzed
@hypothesis.given(
    batch=batches(most=40),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.float16]),
    budget=st.sampled_from([1, 1_000, 10**9]),
    data=st.data(),
)
def test_any_setting_is_finite_and_equals_its_plain_form(
    setting: Setting, batch: tuple[Tensor, Tensor], dtype: torch.dtype, budget: int, data: st.DataObject
) -> None:
    varied = _varied(data.draw, setting.info.loss)
    setting = Setting(setting.name, setting.arguments | varied)
    try:
        loss = setting.make(memory_budget=budget)
    except ValueError:  # two numbers that do not go together
        hypothesis.reject()
    plain = setting.make(dense=True)
    x, labels = batch[0].to(dtype), batch[1]
    exact = x.double().clone().requires_grad_()
    setting.make(dense=True).double()(exact, labels).backward()
    assert exact.grad is not None
    fits = exact.grad.abs() < 0.99 * torch.finfo(dtype).max  # that of a short vector may be too large for float16
    results = []
    for form in (loss, plain):
        form = form.to(torch.float64 if dtype == torch.float64 else torch.float32)
        leaf = x.clone().requires_grad_()
        value = form(leaf, labels)
        value.backward()
        assert leaf.grad is not None
        assert leaf.grad.dtype == dtype
        assert bool(value.isfinite())
        assert bool(leaf.grad[fits].isfinite().all())
        assert bool((leaf.grad.sign() == exact.grad.sign())[~fits].all())  # infinite, of the right sign
        results.append((value.detach().double(), leaf.grad.double()))
    (value, gradient), (plain_value, plain_gradient) = results
    close = 1e-8 if dtype == torch.float64 else 2e-3
    torch.testing.assert_close(value, plain_value, rtol=close, atol=close)
    if dtype == torch.float64:
        assert float((gradient - plain_gradient).abs().max()) <= 1e-6 * max(1.0, float(plain_gradient.abs().max()))
