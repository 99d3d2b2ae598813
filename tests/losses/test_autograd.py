"""The losses inside real training code: autograd, autocast, torch.compile, kept graphs, states."""

import copy

import pytest
import torch
from torch import nn

from nearfar import losses
from tests.losses.settings import CLASSES, DEFAULTS, PAIRED, REDUCED, SETTINGS, SIZE, Setting, inputs, parameters, unit

settings = pytest.mark.parametrize("setting", SETTINGS, ids=str)
defaults = pytest.mark.parametrize("setting", DEFAULTS, ids=str)


@pytest.mark.parametrize(("setting", "reduction"), [(s, r) for s, r in REDUCED if s in DEFAULTS], ids=str)
def test_upstream_gradients_and_kept_graphs(setting: Setting, reduction: str) -> None:
    x, labels = inputs()["random"]
    x.requires_grad_()
    loss = setting.make(reduction=reduction).eval()
    tensors = parameters(loss, x)
    value = loss(x, labels).sum()
    once = torch.autograd.grad(value, tensors, retain_graph=True)
    for factor in (1.0, 3.0, 0.0, -2.0, 1.0):
        scaled = torch.autograd.grad(value * factor, tensors, retain_graph=True)
        for g, h in zip(scaled, once, strict=True):
            torch.testing.assert_close(g, h * factor)
    (value * 2).backward()
    for tensor, g in zip(tensors, once, strict=True):
        torch.testing.assert_close(tensor.grad, g * 2)


@pytest.mark.parametrize("setting", PAIRED, ids=str)
def test_a_second_backward_raises(setting: Setting) -> None:
    x, labels = inputs()["random"]
    x.requires_grad_()
    loss = setting.make()
    loss(x, labels).backward()
    value = loss(x, labels)
    value.backward()
    with pytest.raises(RuntimeError, match="second time"):
        value.backward()
    with pytest.raises(RuntimeError, match="differentiable once"):
        torch.autograd.grad(loss(x, labels), x, create_graph=True)


def test_the_weights_gradient_is_not_copied() -> None:
    """Backward hands over the very memory that forward filled; a second copy of a large W's gradient would be felt."""
    loss = losses.CosFaceLoss(1000, 64)
    x = torch.randn(8, 64, requires_grad=True)
    value = loss(x, torch.arange(8)) * 0.5
    saved = value.grad_fn.next_functions[0][0].saved_tensors[1]  # type: ignore[union-attr]
    address = saved.data_ptr()
    del saved
    value.backward()
    assert loss.weight is not None and loss.weight.grad is not None
    assert loss.weight.grad.data_ptr() == address


@defaults
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(setting: Setting, dtype: torch.dtype) -> None:
    """Under autocast the embeddings come in half precision; the loss is still computed in float32."""
    _, labels = inputs()["random"]
    net = nn.Linear(9, SIZE)
    images = torch.randn(12, 9)
    loss = setting.make().float().eval()
    with torch.autocast("cpu", dtype=dtype):
        embeddings = net(images)
        assert embeddings.dtype == dtype
        value = loss(embeddings, labels)
    assert value.dtype == torch.float32
    torch.testing.assert_close(value, loss(embeddings.float(), labels), rtol=1e-5, atol=1e-6)
    value.backward()
    assert net.weight.grad is not None and bool(net.weight.grad.isfinite().all())


@pytest.mark.parametrize("name", ["CircleLoss", "ProxyAnchorLoss"])
@pytest.mark.filterwarnings("ignore")
def test_compiled_model(name: str) -> None:
    """torch.compile of a step that holds both the network and the loss."""
    setting = next(s for s in SETTINGS if s.name == name)
    _, labels = inputs()["random"]
    images = torch.randn(12, 9)
    net, loss = nn.Linear(9, SIZE), setting.make().float()

    def step(images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return loss(torch.relu(net(images)) * 2, labels) * 3

    plain = torch.autograd.grad(step(images, labels), [net.weight, *loss.parameters()])
    compiled = torch.autograd.grad(
        torch.compile(step, backend="aot_eager")(images, labels), [net.weight, *loss.parameters()]
    )
    for g, h in zip(compiled, plain, strict=True):
        torch.testing.assert_close(g, h)


@settings
def test_state_dict_is_complete(setting: Setting) -> None:
    """A loss reloaded after some steps goes on as if nothing had happened."""
    x, labels = inputs()["random"]
    loss = setting.make(seed=1).train()
    for _ in range(3):
        loss(x.requires_grad_(), labels)
    state = copy.deepcopy(loss.state_dict())
    other = setting.make(seed=2).train()
    other.load_state_dict(state)
    torch.testing.assert_close(other(x, labels), loss(x, labels), rtol=0, atol=0)
    torch.testing.assert_close(other.state_dict(), loss.state_dict())


@settings
def test_moves_and_casts_like_a_module(setting: Setting) -> None:
    x, labels = inputs()["random"]
    loss = setting.make().float()
    assert loss(x.float(), labels).dtype == torch.float32
    assert loss.double()(x, labels).dtype == torch.float64
    meta = setting.make().to("meta")
    assert all(p.device.type == "meta" for p in meta.parameters())


def test_training_pulls_classes_together() -> None:
    """A sanity check of signs: a few steps of every loss raise same-class similarity against the rest."""
    labels = torch.arange(24) // 4 % CLASSES
    for setting in DEFAULTS:
        if setting.name in ("IntraPairVarianceLoss", "SoftTripleLoss", "SubCenterArcFaceLoss"):
            continue  # pairs come nearer to their mean; several centres a class: its samples need not come together
        loss = setting.make().train()
        x = unit(24, SIZE, seed=4).requires_grad_()
        optimizer = torch.optim.Adam(parameters(loss, x), lr=0.05)

        def gap(x: torch.Tensor) -> float:
            s = torch.nn.functional.normalize(x.detach()) @ torch.nn.functional.normalize(x.detach()).t()
            same = labels[:, None] == labels
            return float(s[same].mean() - s[~same].mean())

        before = gap(x)
        for _ in range(150):
            optimizer.zero_grad()
            loss(x, labels).backward()
            optimizer.step()
        assert gap(x) > before + 0.3, setting
