"""The losses of two towers against their references: values, gradients, every reduction, edge cases, half precision."""

import pytest
import torch
from torch import Tensor

from nearfar import losses
from nearfar.losses.engine.plan import Sizes
from tests.losses.settings import unit
from tests.reference import REFERENCES, Case

SETTINGS = [
    ("InfoNCELoss", {}),
    ("InfoNCELoss", {"temperature": 0.5, "learnable": False}),
    ("SigLIPLoss", {}),
    ("SigLIPLoss", {"temperature": 2.0, "bias": 0.5}),
    ("VICRegLoss", {}),
    ("VICRegLoss", {"invariance_lambda": 1.0, "variance_mu": 3.0, "covariance_v": 2.0, "eps": 0.1}),
]
towers = pytest.mark.parametrize(("name", "arguments"), SETTINGS)


def test_all_are_here() -> None:
    assert {name for name, _ in SETTINGS} == {info.name for info in losses.list_losses() if info.level == "towers"}


def make(name: str, arguments: dict, **options) -> losses.Loss:
    return getattr(losses, name)(**arguments, **options).double()


def reference(
    name: str, loss: losses.Loss, a: Tensor, b: Tensor, weight: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    masks = torch.zeros(len(a), len(a), dtype=torch.bool)
    state: dict = {}
    if isinstance(loss, losses.InfoNCELoss):
        state = {"temperature": torch.exp(-loss.logit_scale)}
    elif isinstance(loss, losses.SigLIPLoss):
        state = {"temperature": torch.exp(loss.logit_scale), "bias": loss.logit_bias}
    elif isinstance(loss, losses.VICRegLoss):
        state = {k: getattr(loss, k) for k in ("invariance_lambda", "variance_mu", "covariance_v", "eps")}
    return REFERENCES[name](Case(a, b, masks, masks, weight), **state)


def pairs_of_towers() -> dict[str, tuple[Tensor, Tensor]]:
    zero = unit(5, 4, seed=3)
    zero[1] = 0
    return {
        "random": (unit(7, 5), unit(7, 5, seed=1)),
        "equal": (unit(6, 4), unit(6, 4)),
        "identical": (unit(1, 4).repeat(5, 1), unit(1, 4, seed=2).repeat(5, 1)),
        "zero": (zero, unit(5, 4, seed=4)),
        "large": (unit(4, 3) * 1e4, unit(4, 3, seed=1) * 1e-4),
        "two": (unit(2, 3), unit(2, 3, seed=1)),
        "one": (unit(1, 3), unit(1, 3, seed=1)),
    }


def compare(name: str, loss: losses.Loss, a: Tensor, b: Tensor, **call: Tensor) -> None:
    mean, rows = reference(name, loss, a, b, call.get("sample_weight"))
    inputs = [a, b, *(p for p in loss.parameters() if p.requires_grad)]
    expected: dict = {"mean": (mean, None)}
    if not loss.whole_batch:
        expected |= {"sum": (rows.sum(), None), "none": (rows, unit(len(rows), seed=11))}
    for reduction, (value, upstream) in expected.items():
        loss.reduction = reduction
        actual = loss(a, b, **call)
        torch.testing.assert_close(actual, value, rtol=1e-9, atol=1e-9)
        ours = torch.autograd.grad(actual, inputs, upstream)
        theirs = torch.autograd.grad(value, inputs, upstream, retain_graph=True)
        for g, h in zip(ours, theirs, strict=True):
            torch.testing.assert_close(g, h, rtol=1e-9, atol=1e-9 * max(1.0, float(h.abs().max())))


@towers
@pytest.mark.parametrize("kind", pairs_of_towers())
@pytest.mark.parametrize("dense", [False, True])
def test_value_and_gradient(name: str, arguments: dict, kind: str, dense: bool) -> None:
    a, b = (t.requires_grad_() for t in pairs_of_towers()[kind])
    loss = make(name, arguments, dense=dense)
    if loss.whole_batch and len(a) < 2:
        with pytest.raises(ValueError, match="needs the variances of a batch"):
            loss(a, b)
    else:
        compare(name, loss, a, b)


@pytest.mark.parametrize(("name", "arguments"), SETTINGS[:4])
def test_sample_weight(name: str, arguments: dict) -> None:
    a, b = (t.requires_grad_() for t in pairs_of_towers()["random"])
    weight = torch.tensor([1.0, 0, 2, 0.5, 0, 3, 1], dtype=torch.float64)
    compare(name, make(name, arguments), a, b, sample_weight=weight)


@towers
def test_gradcheck(name: str, arguments: dict) -> None:
    a, b = (t.requires_grad_() for t in pairs_of_towers()["random"])
    loss = make(name, arguments)
    inputs = [a, b, *(p for p in loss.parameters() if p.requires_grad)]
    assert torch.autograd.gradcheck(lambda *_: loss(a, b), inputs, eps=1e-6, atol=1e-5, rtol=1e-4)


def test_several_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Towers of more than a tile, of which only those across the towers are looked at."""
    monkeypatch.setattr(losses.Loss, "sizes", Sizes(square=5))
    a, b = unit(13, 4).requires_grad_(), unit(13, 4, seed=1).requires_grad_()
    compare("InfoNCELoss", make("InfoNCELoss", {}), a, b)
    frugal = make("InfoNCELoss", {}, memory_budget=0)
    compare("InfoNCELoss", frugal, a, b)


@towers
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(name: str, arguments: dict, dtype: torch.dtype) -> None:
    """The inputs' rounding is the only one: arithmetic is in float32."""
    a, b = (t.to(dtype) for t in pairs_of_towers()["random"])
    loss = getattr(losses, name)(**arguments)
    mean, _ = reference(name, make(name, arguments), a.double(), b.double())
    assert loss(a, b).item() == pytest.approx(mean.item(), rel=1e-5)
    a.requires_grad_()
    loss(a, b).backward()
    assert a.grad is not None and a.grad.dtype == dtype and bool(a.grad.isfinite().all())


def test_the_scale_of_info_nce_is_bounded() -> None:
    loss = losses.InfoNCELoss(temperature=1e-3, max_scale=100)
    assert loss.temperature.item() == pytest.approx(0.01)
    loss(unit(4, 3).float(), unit(4, 3, seed=1).float()).backward()
    assert loss.logit_scale.grad.item() == 0


@towers
def test_bad_input(name: str, arguments: dict) -> None:
    loss = getattr(losses, name)(**arguments)
    with pytest.raises(ValueError, match="3 rows of a for 4 of b"):
        loss(torch.randn(3, 2), torch.randn(4, 2))
    with pytest.raises(ValueError, match="b have 3 dimensions"):
        loss(torch.randn(3, 2), torch.randn(3, 3))
    with pytest.raises(TypeError, match="a must be floating point"):
        loss(torch.ones(3, 2, dtype=torch.long), torch.randn(3, 2))
    with pytest.raises(TypeError, match="has no argument"):
        getattr(losses, name)(tempature=1.0)


def test_vic_reg_is_one_number() -> None:
    with pytest.raises(ValueError, match="one number for the batch"):
        losses.VICRegLoss(reduction="none")
    with pytest.raises(ValueError, match="takes no sample_weight"):
        losses.VICRegLoss()(torch.randn(3, 2), torch.randn(3, 2), sample_weight=torch.ones(3))


@pytest.mark.parametrize("name", ["InfoNCELoss", "SigLIPLoss"])
def test_nothing(name: str) -> None:
    a, b = torch.zeros(0, 3, requires_grad=True), torch.zeros(0, 3)
    loss = getattr(losses, name)()(a, b)
    loss.backward()
    assert loss.item() == 0 and a.grad is not None


def test_which_are_sums_over_rows() -> None:
    """So that ranks divide the work of these; every rank does all of VICReg's, whose covariances are of the whole batch."""
    towers = [info for info in losses.list_losses() if info.level == "towers"]
    assert {info.name for info in towers if info.row_local} == {"InfoNCELoss", "SigLIPLoss"}
    assert {info.name for info in towers if info.whole_batch} == {"VICRegLoss"}
