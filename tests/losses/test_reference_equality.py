"""Every registered loss equals its naive float64 reference: values and gradients, on ordinary and on adversarial inputs."""

import pytest
import torch
from torch import Tensor

from nearfar import losses
from tests.losses.settings import ANY_PAIRS, CLASSES, SETTINGS, SIZE, Setting, as_if_many, inputs, parameters, unit
from tests.reference import REFERENCES, Case

pytestmark = pytest.mark.filterwarnings("ignore:.*the loss and its gradient are zero")

settings = pytest.mark.parametrize("setting", SETTINGS, ids=str)
any_pairs = pytest.mark.parametrize("setting", ANY_PAIRS, ids=str)

# Angles and Euclidean distances have no slope, or an arbitrary one, at s = ±1: there rounding decides.
SINGULAR = (
    "DynamicSoftMarginLoss",
    "GeneralizedLiftedStructureLoss",
    "LiftedStructureLoss",
    "TupletMarginLoss",
    "RankedListLoss",
    "MarginLoss",
    "SubCenterArcFaceLoss",
    "AdaFaceLoss",
    "MagFaceLoss",
    "CurricularFaceLoss",
    "ArcFaceLoss",
    "CombinedMarginLoss",
    "ContrastiveLoss",
    "LargeMarginSoftmaxLoss",
    "SphereFaceLoss",
    "TripletMarginLoss",
)


# Parts of these are constants in the gradient: AdaFace's quality, the weights of the dynamic margin and of Circle (which
# has a gradcheck of its own).
STOPPED = ("AdaFaceLoss", "CircleLoss", "DynamicSoftMarginLoss")


def assert_equal(actual: Tensor, expected: Tensor, what: str, tolerance: float = 1e-9) -> None:
    scale = max(1.0, float(expected.abs().max()) if expected.numel() else 0.0)
    assert actual.shape == expected.shape, what
    assert bool(actual.isfinite().all()), what
    assert float((actual - expected).abs().max() if expected.numel() else 0) <= tolerance * scale, what


def compare(
    setting: Setting,
    loss: losses.Loss,
    x: Tensor,
    case: Case,
    tolerance: float = 1e-9,
    gradients: bool = True,
    kind: str = "",
    **call: Tensor,
) -> None:
    """Value and gradients, for every reduction."""
    mean, rows = setting.reference(loss, call.get("labels"))(case)
    upstream = unit(len(rows), seed=11)
    expected = {"mean": (mean, None), "sum": (rows.sum(), None), "none": (rows, upstream)}
    if setting.one_number:
        del expected["sum"], expected["none"]
    inputs = parameters(loss, x)
    for reduction, (value, weight) in expected.items():
        loss.reduction = reduction  # type: ignore[assignment]
        actual = loss(x, **call)
        assert_equal(actual.detach(), value.detach(), f"{kind} {reduction} value", tolerance)
        if gradients:
            ours = torch.autograd.grad(actual, inputs, weight, materialize_grads=True, allow_unused=True)
            theirs = torch.autograd.grad(
                value, inputs, weight, materialize_grads=True, allow_unused=True, retain_graph=True
            )
            for tensor, g, h in zip(inputs, ours, theirs, strict=True):
                assert_equal(g, h, f"{kind} {reduction} gradient of {tuple(tensor.shape)}", tolerance)


def test_every_loss_has_a_reference() -> None:
    assert {info.name for info in losses.list_losses()} == set(REFERENCES)


@settings
@pytest.mark.parametrize("many", [False, True], ids=["few", "as if many"])
def test_value_and_gradient(setting: Setting, many: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if many:
        as_if_many(monkeypatch)
    for kind, (x, labels) in inputs().items():
        if kind == "identical" and setting.arguments.get("mining") == "semihard":
            continue  # whether equal distances are in order is up to rounding
        x.requires_grad_()
        loss = setting.make().eval()
        singular = kind in ("identical", "opposite") and setting.name in SINGULAR
        undefined = kind == "zero" and setting.name in ("SphereFaceLoss", "LargeMarginSoftmaxLoss")
        compare(
            setting,
            loss,
            x,
            setting.case(loss, x, labels),
            1e-6 if singular else 1e-9,
            not (singular or undefined),
            kind,
            labels=labels,
        )
        # Where the gradient is arbitrary, it is at least a number.
        gradients = torch.autograd.grad(
            loss(x, labels).sum(), parameters(loss, x), allow_unused=True, materialize_grads=True
        )
        assert all(bool(g.isfinite().all()) for g in gradients), kind


@pytest.mark.parametrize("setting", [s for s in SETTINGS if not s.one_number], ids=str)
def test_sample_weight(setting: Setting) -> None:
    x, labels = inputs()["ragged"]
    x.requires_grad_()
    weight = torch.rand(len(x), dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    weight[[0, 4]] = 0
    loss = setting.make().eval()
    compare(setting, loss, x, setting.case(loss, x, labels, weight), labels=labels, sample_weight=weight)


@pytest.mark.parametrize("setting", [s for s in ANY_PAIRS if not s.class_level], ids=str)
@pytest.mark.parametrize("bits", [32, 62])
def test_labels_are_any_integers(setting: Setting, bits: int) -> None:
    x, labels = inputs()["ragged"]
    x.requires_grad_()
    far = torch.tensor([-(2**bits), 2**bits, 2**bits - 1, 7, 2**24 + 1])[labels]
    loss = setting.make().eval()
    compare(setting, loss, x, setting.case(loss, x, labels), labels=far)


@pytest.mark.parametrize("setting", [s for s in SETTINGS if s.takes_references], ids=str)
def test_another_set_of_columns(setting: Setting) -> None:
    x, labels = inputs()["ragged"]
    x.requires_grad_()
    ref, ref_labels = unit(7, SIZE, seed=9).requires_grad_(), torch.tensor([0, 9, 1, 0, 2, 2, 4])
    positive = labels[:, None] == ref_labels
    loss = setting.make()
    mean, _ = setting.reference(loss, labels)(Case(x, ref, positive, ~positive))
    actual = loss(x, labels, ref_emb=ref, ref_labels=ref_labels)
    assert_equal(actual.detach(), mean.detach(), "value")
    for g, h in zip(torch.autograd.grad(actual, [x, ref]), torch.autograd.grad(mean, [x, ref]), strict=True):
        assert_equal(g, h, "gradient")


@any_pairs
def test_multi_hot_labels(setting: Setting) -> None:
    """Samples that share a label are positive; class-level, every label of a sample is a positive class."""
    x = unit(9, SIZE, seed=8).requires_grad_()
    labels = torch.rand(9, CLASSES, generator=torch.Generator().manual_seed(5)) < 0.3
    labels[0] = False
    loss = setting.make().eval()
    if setting.class_level:
        assert loss.weight is not None
        case = Case(x, loss.weight, labels, ~labels, bias=loss.bias)
    else:
        shares = torch.tensor([[bool((a & b).any()) for b in labels] for a in labels])
        other = ~torch.eye(9, dtype=torch.bool)
        case = Case(x, x, shares & other, ~shares & other)
    compare(setting, loss, x, case, labels=labels)


@any_pairs
@pytest.mark.parametrize("with_negatives", [True, False])
def test_masks(setting: Setting, with_negatives: bool) -> None:
    """Pairs in neither mask are ignored; without negatives, all the others are."""
    x = unit(9, SIZE, seed=8).requires_grad_()
    loss = setting.make().eval()
    columns = x if loss.weight is None else loss.weight
    number = len(columns) // loss.vectors_per_class
    kind = torch.randint(0, 3, (9, number), generator=torch.Generator().manual_seed(6))
    kind[0], kind[1] = 1, 2
    positives, negatives = kind == 0, kind == 1 if with_negatives else kind != 0
    other = torch.ones_like(positives) if loss.weight is not None else ~torch.eye(9, dtype=torch.bool)
    case = Case(x, columns, positives & other, negatives & other, bias=loss.bias)
    call = {"positives": positives, "negatives": negatives} if with_negatives else {"positives": positives}
    compare(setting, loss, x, case, **call)


@pytest.mark.parametrize("setting", [s for s in SETTINGS if s.name not in STOPPED], ids=str)
def test_gradcheck(setting: Setting) -> None:
    """The gradient is the derivative."""
    x, labels = inputs()["random"]
    x.requires_grad_()
    loss = setting.make(seed=1).eval()
    tensors = parameters(loss, x)

    def function(*_: Tensor) -> Tensor:
        return loss(x, labels)

    assert torch.autograd.gradcheck(function, tensors, eps=1e-6, atol=1e-5, rtol=1e-4, nondet_tol=1e-12)


@pytest.mark.parametrize("setting", [s for s in SETTINGS if s.name == "CircleLoss" and not s.needs_class_ids], ids=str)
def test_gradcheck_of_circle(setting: Setting) -> None:
    """Its weights are constants in the gradient: it is the derivative, by finite differences, of the loss with the weights held as they are here."""
    x, labels = inputs()["random"]
    loss = setting.make(seed=1)
    assert isinstance(loss, losses.CircleLoss)
    positive, negative = (mask := setting.case(loss, x, labels)).positive, mask.negative

    def similarities(x: Tensor, columns: Tensor) -> Tensor:
        return torch.nn.functional.normalize(x) @ torch.nn.functional.normalize(columns).t()

    pace = similarities(x, x if loss.weight is None else loss.weight.detach())
    O_p, O_n, delta_p, delta_n = loss.optima_and_margins
    pace_p = loss.slope_p * torch.relu(O_p - pace)
    pace_n = loss.slope_n * torch.relu(pace - O_n)

    def held(x: Tensor, columns: Tensor) -> Tensor:
        s = similarities(x, columns)
        u = torch.logsumexp((-loss.gamma * pace_p * (s - delta_p)).masked_fill(~positive, -torch.inf), 1)
        v = torch.logsumexp((loss.gamma * pace_n * (s - delta_n)).masked_fill(~negative, -torch.inf), 1)
        return torch.log1p(torch.exp(-(u + v).abs())).add(torch.relu(u + v)).mean()

    x.requires_grad_()
    tensors = parameters(loss, x)
    ours = torch.autograd.grad(loss(x, labels), tensors)
    step = 1e-6
    for tensor, gradient in zip(tensors, ours, strict=True):
        numeric = torch.zeros_like(gradient)
        with torch.no_grad():
            for index in range(tensor.numel()):
                values = []
                for sign in (1, -1):
                    moved = [t.detach().clone() for t in tensors]
                    moved[[t is tensor for t in tensors].index(True)].view(-1)[index] += sign * step
                    values.append(held(moved[0], moved[-1]))
                numeric.view(-1)[index] = (values[0] - values[1]) / (2 * step)
        torch.testing.assert_close(gradient, numeric, rtol=1e-4, atol=1e-4)
