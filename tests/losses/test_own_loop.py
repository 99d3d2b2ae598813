"""The losses in loops that people write themselves: mixed precision, schedules, growing classes, odd labels."""

import dataclasses
import inspect
import os
import pydoc
import re
from collections.abc import Callable

import pytest
import torch
import torch.utils.checkpoint
from torch import Tensor

from nearfar import losses
from nearfar.data import PKSampler
from nearfar.evaluation import retrieval_metrics
from tests.losses.settings import DEFAULTS, PAIRED, SETTINGS, SIZE, Setting, unit

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
    if (setting.info.level == "proxy" and setting.name != "ProxyNCALoss") or setting.name in (
        "P2SGradLoss",
        "CenterLoss",
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


# Labels


X = unit(12, SIZE, seed=4)
IDS = torch.arange(12) % 4


@pytest.mark.parametrize("setting", DEFAULTS, ids=str)
def test_labels_in_a_column_are_class_ids(setting: Setting) -> None:
    loss = setting.make().eval()
    torch.testing.assert_close(loss(X, IDS[:, None]), loss(X, IDS), rtol=0, atol=0)
    if setting.takes_references:
        columns = loss(X, IDS[:, None], ref_emb=X.flip(0), ref_labels=IDS.flip(0)[:, None])
        torch.testing.assert_close(columns, loss(X, IDS, ref_emb=X.flip(0), ref_labels=IDS.flip(0)), rtol=0, atol=0)


@pytest.mark.parametrize(("setting", "reduction"), [(s, r) for s in DEFAULTS for r in s.reductions], ids=str)
def test_samples_without_a_class_are_left_out(setting: Setting, reduction: str) -> None:
    loss = setting.make(reduction=reduction).eval()
    labels = IDS.clone()
    labels[[2, 7]] = -1
    kept = labels >= 0
    x = X.clone().requires_grad_()
    values, expected = loss(x, labels), loss(X[kept], IDS[kept])
    if values.shape == (len(X),) and len(expected) == kept.sum():
        assert values[~kept].eq(0).all()
        values = values[kept]
    torch.testing.assert_close(values, expected)
    gradient = torch.autograd.grad(values.sum(), x)[0]
    assert gradient[~kept].eq(0).all() and gradient[kept].ne(0).any()
    if setting.takes_references:
        ours = loss(X, IDS, ref_emb=X.flip(0), ref_labels=labels.flip(0))
        torch.testing.assert_close(
            ours, loss(X, IDS, ref_emb=X.flip(0)[kept.flip(0)], ref_labels=IDS.flip(0)[kept.flip(0)])
        )


def test_the_ignored_label_is_a_choice() -> None:
    ids = IDS - 1
    assert losses.CircleLoss(ignore_index=None)(X, ids) == losses.CircleLoss()(X, IDS)
    assert losses.CircleLoss(ignore_index=-100)(X, ids) == losses.CircleLoss()(X, IDS)
    loss = losses.SoftmaxLoss(4, SIZE, ignore_index=-100).double()
    with pytest.raises(ValueError, match="labels run from -1 to 2"):
        loss(X, ids)
    labels = torch.where(IDS == 1, -100, IDS)
    torch.testing.assert_close(loss(X, labels), torch.nn.functional.cross_entropy(loss.logits(X), labels))


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_the_memory_ignores_samples_without_a_class(reduction: str) -> None:
    memory, other = (
        losses.CrossBatchMemory(losses.ContrastiveLoss(reduction=reduction), SIZE, memory_size=24).double()
        for _ in range(2)
    )
    labels = IDS.clone()
    labels[3] = -1
    kept = labels >= 0
    mask = torch.arange(12) > 6
    for enqueue_mask in (None, mask, None):
        x = X.clone().requires_grad_()
        ours = memory(x, labels, enqueue_mask=enqueue_mask)
        theirs = other(x[kept], labels[kept], enqueue_mask=None if enqueue_mask is None else mask[kept])
        if reduction == "none":
            assert ours[3] == 0
            ours = torch.cat([ours[:3], ours[4:]])
        torch.testing.assert_close(ours, theirs)
    assert memory.num_enqueued == other.num_enqueued and not memory.label_memory.eq(-1).any()
    memory.enqueue(X, labels)
    assert not memory.label_memory.eq(-1).any()


SOFT = [s for s in WITH_CLASSES if s.make().takes_soft_labels]


def mixed(seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Two class ids of every sample, and the probability of the first."""
    generator = torch.Generator().manual_seed(seed)
    a, b = torch.randint(0, 5, (2, 12), generator=generator)
    return a, b, torch.rand(12, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("setting", SOFT, ids=str)
def test_soft_labels_weigh_the_losses_of_the_classes(setting: Setting, reduction: str) -> None:
    a, b, share = mixed()
    one_hot = [torch.nn.functional.one_hot(ids, 5) for ids in (a, b)]
    soft = share[:, None] * one_hot[0] + (1 - share)[:, None] * one_hot[1]
    weight = torch.linspace(0.5, 2, 12, dtype=torch.float64)
    loss, rows = setting.make(reduction=reduction).eval(), setting.make(reduction="none").eval()
    x, again = (X.clone().requires_grad_() for _ in range(2))
    values = share * rows(again, a) + (1 - share) * rows(again, b)
    weighted = (values * weight).sum() / weight.sum()
    expected = {"mean": weighted, "sum": (values * weight).sum(), "none": values * weight}[reduction]
    ours = loss(x, soft, sample_weight=weight)
    torch.testing.assert_close(ours, expected)
    for gradients in zip(*(torch.autograd.grad(v.sum(), t) for v, t in ((ours, x), (expected, again))), strict=True):
        torch.testing.assert_close(*gradients)


def test_soft_labels_of_a_softmax_are_those_of_cross_entropy() -> None:
    loss = losses.SoftmaxLoss(5, SIZE).double()
    soft = torch.softmax(unit(12, 5), 1)
    torch.testing.assert_close(loss(X, soft), torch.nn.functional.cross_entropy(loss.logits(X), soft))


FLOATS = torch.nn.functional.one_hot(IDS, 5).double()
MIXED = (FLOATS + FLOATS.flip(0)) / 2


@pytest.mark.parametrize(
    ("loss", "labels", "message"),
    [
        (losses.CircleLoss(), IDS.double(), r"integers \(labels.long\(\)\)"),
        (losses.CircleLoss(), IDS[:, None].float(), r"integers \(labels\[:, 0\].long\(\)\)"),
        (losses.CircleLoss(), IDS + 0.5, "whole numbers"),
        (losses.CircleLoss(), FLOATS, r"labels.argmax\(1\)\), or multi-hot labels as booleans \(labels.bool\(\)\)"),
        (losses.CircleLoss(), MIXED, r"lam \* loss\(x, a\) \+ \(1 - lam\) \* loss\(x, b\)"),
        (losses.ProxyAnchorLoss(5, SIZE), MIXED, "softmax family"),
        (losses.CircleLoss(), FLOATS.long() * 3, "of zeros and ones: for class ids give one column"),
        (losses.CosFaceLoss(5, SIZE), MIXED[:, :4], r"soft labels must be \(12, 5\)"),
        (losses.CosFaceLoss(5, SIZE), 2 * MIXED, "row 0 adds up to 2"),
        (losses.CosFaceLoss(5, SIZE), MIXED - 0.1, "must be probabilities"),
        (losses.CosFaceLoss(5, SIZE), MIXED.clone().requires_grad_(), "no gradient by soft labels"),
    ],
)  # fmt: skip
def test_other_labels_are_refused_with_what_to_do(loss: losses.Loss, labels: Tensor, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        loss(X.float(), labels)


def test_weights_have_a_gradient_or_an_error() -> None:
    weight = torch.ones(12, dtype=torch.float64, requires_grad=True)
    with pytest.raises(ValueError, match=r"no gradient by sample_weight: detach it, or make the loss with dense=True"):
        losses.CircleLoss()(X, IDS, sample_weight=weight)
    gradient = torch.autograd.grad(losses.CircleLoss(dense=True)(X, IDS, sample_weight=weight), weight)[0]
    values = losses.CircleLoss(reduction="none")(X, IDS)
    torch.testing.assert_close(gradient, (values - values.mean()) / 12)
    with torch.no_grad():
        losses.CircleLoss()(X, IDS, sample_weight=weight)


# Settings that are assigned while training


@pytest.mark.parametrize(
    ("loss", "name", "value", "message"),
    [
        (losses.CircleLoss(), "gama", 3.0, "CircleLoss has no setting 'gama': did you mean gamma?"),
        (losses.ArcFaceLoss(3, SIZE), "marign", 0.1, "did you mean margin?"),
        (losses.ArcFaceLoss(3, SIZE), "margin", 28.6, r"math.radians\(28.6\) is 0.4992"),
        (losses.ArcFaceLoss(3, SIZE), "num_classes", 6, r"cannot be assigned: extend_classes\(n\) adds classes"),
        (losses.ArcFaceLoss(3, SIZE), "embedding_size", 6, "fixed when it is made"),
        (losses.NTXentLoss(), "learnable", True, "fixed when it is made"),
        (losses.CircleLoss(), "gamma", torch.ones(2), r"must be a number, not a tensor of shape \(2,\)"),
        (losses.CircleLoss(), "gamma", "80", "must be a number, not str"),
        (losses.CircleLoss(), "gamma", torch.nn.Parameter(torch.tensor(3.0)), "not learned as a tensor"),
        (losses.SmoothAPLoss(), "temperature", torch.nn.Parameter(torch.tensor(3.0)), "not learned as a tensor"),
        (losses.CrossBatchMemory(losses.CircleLoss(), SIZE), "memory_sise", 3, "did you mean memory_size?"),
        (losses.CircleLoss() + losses.SupConLoss(), "weight", [1, 0], "SumLoss has no setting 'weight'"),
        (losses.CircleLoss() + losses.SupConLoss(), "weights", [1, -1], "not negative, not by -1"),
        (losses.CircleLoss() + losses.SupConLoss(), "weights", {"Circle": 1}, "weights are of Circle, but must be of CircleLoss"),
        (losses.MultiSimilarityLoss(learn_base=True), "bases", 1.0, "did you mean base?"),
    ],
)  # fmt: skip
def test_names_and_values_that_mean_nothing_are_refused(
    loss: torch.nn.Module, name: str, value: object, message: str
) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        setattr(loss, name, value)


@pytest.mark.parametrize(
    "make",
    [
        lambda scale: losses.CosFaceLoss(4, SIZE, scale=scale),
        lambda scale: losses.NTXentLoss(temperature=scale),
        lambda scale: losses.InfoNCELoss(temperature=scale),
        lambda scale: losses.SigLIPLoss(temperature=scale),
        lambda scale: losses.L2SoftmaxLoss(4, SIZE, scale=scale),
    ],
)
def test_a_scale_that_is_a_parameter_is_refused_not_ignored(make: Callable[[object], losses.Loss]) -> None:
    make(0.5)
    with pytest.raises(ValueError, match="give a number, and learnable=True where the loss has that"):
        make(torch.nn.Parameter(torch.tensor(0.5)))


TOWERS = unit(8, SIZE, seed=5), unit(8, SIZE, seed=6)


@pytest.mark.parametrize(
    ("make", "name", "value"),
    [
        (lambda **s: losses.CircleLoss(**s), "m", 0.2),
        (lambda **s: losses.RankedListLoss(**s), "margin", 0.7),
        (lambda **s: losses.ArcFaceLoss(4, SIZE, **s), "margin", 0.1),
        (lambda **s: losses.CosFaceLoss(4, SIZE, **s, learnable=True), "scale", 16.0),
        (lambda **s: losses.SupConLoss(**s, learnable=True), "temperature", 0.5),
        (lambda **s: losses.SupConLoss(**s), "temperature", torch.tensor(0.5, dtype=torch.float64)),
        (lambda **s: losses.L2SoftmaxLoss(4, SIZE, **s), "scale", 3.0),
        (lambda **s: losses.L2SoftmaxLoss(4, SIZE, **s, learnable=True), "scale", 3.0),
        (lambda **s: losses.MarginLoss(**s, learn_beta=True), "beta", 1.0),
        (lambda **s: losses.MultiSimilarityLoss(**s, learn_base=True), "base", 0.25),
        (lambda **s: losses.InfoNCELoss(**s), "temperature", 0.5),
    ],
)  # fmt: skip
def test_schedules_take_effect(make: Callable[..., losses.Loss], name: str, value: float) -> None:
    torch.manual_seed(0)
    assigned = make().double()
    torch.manual_seed(0)
    made = make(**{name: value}).double()
    setattr(assigned, name, value)
    assert torch.as_tensor(getattr(assigned, name)).item() == pytest.approx(float(value))
    inputs = TOWERS if isinstance(made, losses.InfoNCELoss) else (X, IDS)
    torch.testing.assert_close(assigned(*inputs), made(*inputs), rtol=1e-6, atol=0)  # the parameters were float32
    learned = [parameter for key, parameter in assigned.named_parameters() if key != "weight"]
    assert all(g.abs().sum() > 0 for g in torch.autograd.grad(assigned(*inputs), learned)) if learned else True


def test_learned_settings_show_their_value() -> None:
    loss = losses.InfoNCELoss(0.5, max_scale=4.0)
    with torch.no_grad():
        loss.logit_scale += 100
    assert loss.temperature == 0.25
    nt_xent = losses.NTXentLoss(0.5, learnable=True)
    nt_xent.logit_scale.data.zero_()
    assert nt_xent.temperature == 1
    loss = losses.CircleLoss() + losses.SupConLoss()
    loss.weights = [1, 0]
    assert loss.weights == {"CircleLoss": 1, "SupConLoss": 0} and loss(X, IDS) == losses.CircleLoss()(X, IDS)
    matryoshka = losses.MatryoshkaLoss(losses.CircleLoss(), [2, SIZE])
    matryoshka.weights = {SIZE: 1.0, 2: 0.0}
    assert matryoshka(X, IDS) == losses.CircleLoss()(X, IDS)


def test_names_of_ones_own_begin_with_an_underscore() -> None:
    loss = losses.CircleLoss()
    loss._epoch = 3
    loss.register_buffer("seen", torch.zeros(()))
    loss.seen = 2.0
    assert loss._epoch == 3 and loss.seen == 2


# What torch transforms, and calls that other libraries have


def penalty(loss: losses.Loss, x: Tensor) -> Tensor:
    """The gradient of a gradient penalty."""
    gradient = torch.autograd.grad(loss(x, IDS), x, create_graph=True)[0]
    return torch.autograd.grad(gradient.square().sum(), x)[0]


def test_second_derivatives_are_those_of_the_dense_form() -> None:
    x = X.clone().requires_grad_()
    with pytest.raises(RuntimeError, match="make the loss with dense=True for second derivatives"):
        penalty(losses.NTXentLoss(0.5), x)
    dense = losses.NTXentLoss(0.5, dense=True)
    step = 1e-6 * unit(12, SIZE, seed=9)

    def squared(x: Tensor) -> Tensor:
        x = x.detach().requires_grad_()
        return torch.autograd.grad(losses.NTXentLoss(0.5)(x, IDS), x)[0].square().sum()

    torch.testing.assert_close(
        (penalty(dense, x) * step).sum(), (squared(X + step) - squared(X - step)) / 2, rtol=1e-4, atol=0
    )


def test_torch_func_takes_the_dense_form() -> None:
    with pytest.raises(
        RuntimeError, match=r"torch.func needs a loss that is made with dense=True: CircleLoss\(dense=True\)"
    ):
        torch.func.grad(lambda x: losses.CircleLoss()(x, IDS))(X)
    x = X.clone().requires_grad_()
    expected = torch.autograd.grad(losses.CircleLoss()(x, IDS), x)[0]
    torch.testing.assert_close(torch.func.grad(lambda x: losses.CircleLoss(dense=True)(x, IDS))(X), expected)


NOT_TRACED = (  # they look at values: how many positive pairs there are, or where similarities lie
    "AngularLoss",
    "DynamicSoftMarginLoss",
    "HistogramLoss",
    "IntraPairVarianceLoss",
    "LiftedStructureLoss",
)


SOME_TRACED = ("ArcFaceLoss", "CenterLoss", "CircleLoss", "MultiSimilarityLoss", "ProxyAnchorLoss", "SmoothAPLoss")
TRACED = [  # NEARFAR_LONG=1 tries all of them
    s for s in DEFAULTS if s.name not in NOT_TRACED and (s.name in SOME_TRACED or os.environ.get("NEARFAR_LONG"))
]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("setting", TRACED, ids=str)
def test_the_dense_form_is_one_graph(setting: Setting) -> None:
    torch._dynamo.reset()
    loss = setting.make(dense=True).eval()
    compiled = torch.compile(loss, fullgraph=True, backend="eager")
    with pytest.raises(RuntimeError, match="no sample can be left out"):
        compiled(X, IDS - 1)
    for given in (IDS, torch.nn.functional.one_hot(IDS, 5).bool()):
        if given.ndim == 2 and setting.needs_class_ids:
            continue
        x, again = (X.clone().requires_grad_() for _ in range(2))
        values = compiled(x, given), loss(again, given)
        torch.testing.assert_close(*values)
        torch.testing.assert_close(*(torch.autograd.grad(v, t)[0] for v, t in zip(values, (x, again), strict=True)))


@pytest.mark.parametrize("name", ["InfoNCELoss", "SigLIPLoss", "VICRegLoss"])
def test_the_dense_form_of_towers_is_one_graph(name: str) -> None:
    torch._dynamo.reset()
    loss = getattr(losses, name)(dense=True)
    compiled = torch.compile(loss, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(*TOWERS), loss(*TOWERS))


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_the_compilers_error_names_the_way_out() -> None:
    torch._dynamo.reset()
    with pytest.raises(Exception, match=r"for fullgraph=True make the loss with dense=True"):
        torch.compile(losses.CircleLoss(), fullgraph=True, backend="eager")(X, IDS)
    x, again = (X.clone().requires_grad_() for _ in range(2))
    compiled = torch.compile(lambda x: losses.CircleLoss()(2 * x, IDS), backend="eager")
    gradients = [
        torch.autograd.grad(v, t)[0] for v, t in ((compiled(x), x), (losses.CircleLoss()(2 * again, IDS), again))
    ]
    torch.testing.assert_close(*gradients)


def test_triplets_of_rows_and_what_the_error_says() -> None:
    anchor, positive, negative = (unit(6, SIZE, seed=s) for s in (1, 2, 3))
    for loss in (losses.TripletMarginLoss(), losses.CircleLoss()):
        with pytest.raises(ValueError, match="is labels, not embeddings") as error:
            loss(anchor, positive, negative)
    loss = losses.TripletMarginLoss(margin=4.0)  # all are active
    told = str(error.value).partition("make them one batch: ")[2]
    first, _, call = told.partition("; ")
    names = {"torch": torch, "anchor": anchor, "positive": positive, "negative": negative, "loss": loss}
    exec(first, names)
    a, p, n = (torch.nn.functional.normalize(t) for t in (anchor, positive, negative))
    expected = torch.nn.functional.triplet_margin_loss(a, p, n, margin=4.0, eps=0)
    torch.testing.assert_close(eval(call, names), expected)


def test_pairs_of_rows_and_what_the_error_says() -> None:
    a, b, target = unit(8, SIZE), unit(8, SIZE, seed=1), torch.tensor([1, 0, 1, 0, 0, 1, 1, 1])
    loss = losses.ContrastiveLoss(neg_margin=2.0)
    with pytest.raises(ValueError, match="is labels, not embeddings") as error:
        loss(a, b, target)
    *before, call = str(error.value).partition("as ref_emb: ")[2].split("; ")
    names = {"torch": torch, "a": a, "b": b, "target": target, "loss": loss}
    exec("\n".join(before), names)
    distance = (torch.nn.functional.normalize(a) - torch.nn.functional.normalize(b)).norm(dim=1)
    expected = distance[target == 1].square().mean() + (2 - distance[target == 0]).square().mean()
    torch.testing.assert_close(eval(call, names), expected)


def test_negatives_of_towers_and_what_the_error_says() -> None:
    (a, b), negatives = TOWERS, unit(5, SIZE, seed=8)
    with pytest.raises(ValueError, match="takes its negatives from the batch") as error:
        losses.InfoNCELoss()(a, b, negatives)
    first, call = str(error.value).partition("others, too: ")[2].split("; ")
    names = {
        "torch": torch,
        "a": a,
        "b": b,
        "negatives": negatives,
        "temperature": 0.5,
        "NTXentLoss": losses.NTXentLoss,
    }
    exec(first, names)
    x, y = (torch.nn.functional.normalize(t) for t in (a, torch.cat([b, negatives])))
    torch.testing.assert_close(eval(call, names), torch.nn.functional.cross_entropy(x @ y.t() / 0.5, torch.arange(8)))


# State


def test_tensors_without_values_are_refused() -> None:
    with pytest.raises(ValueError, match="embeddings have no values"):
        losses.CircleLoss()(X.to("meta"), IDS.to("meta"))
    with torch.device("meta"):
        loss = losses.AdaFaceLoss(4, SIZE)
    with pytest.raises(RuntimeError, match=r"have no values \(device meta\): call loss.to_empty"):
        loss(X.float(), IDS)
    loss.to_empty(device="cpu")
    with pytest.raises(RuntimeError, match=r"loss.reset_parameters\(\) or loss.load_state_dict"):
        loss(X.float(), IDS)
    loss.weight.data.normal_()
    assert loss(X.float(), IDS).isfinite()
    torch.manual_seed(0)
    loss.reset_parameters()
    torch.manual_seed(0)
    expected = losses.AdaFaceLoss(4, SIZE)
    assert all(torch.equal(tensor, expected.state_dict()[name]) for name, tensor in loss.state_dict().items())
    assert loss.eval()(X.float(), IDS) == expected.eval()(X.float(), IDS)
    sharded = losses.CosFaceLoss(4, SIZE, sharded=True)
    sharded.to_empty(device="cpu")
    sharded.reset_parameters()
    assert sharded(X.float(), IDS).isfinite()


@pytest.mark.parametrize("setting", DEFAULTS, ids=str)
def test_parameters_can_be_reset(setting: Setting) -> None:
    loss = setting.make()
    state = {name: tensor.clone() for name, tensor in loss.state_dict().items()}
    with torch.no_grad():
        for tensor in loss.state_dict().values():
            tensor.fill_(1)
    if loss.num_classes:
        loss.extend_classes(2)
    loss.reset_parameters()
    for name, tensor in loss.state_dict().items():
        if name in ("weight", "centers"):
            assert tensor.std() > 0 and len(tensor) == len(state[name]) // 5 * 7
        elif (
            name not in ("bias", "m") and setting.name != "L2SoftmaxLoss"
        ):  # one is drawn by the test, one follows from C
            assert torch.equal(tensor, state[name].to(tensor.dtype))


def test_the_state_of_a_linear_layer() -> None:
    layer = torch.nn.Linear(SIZE, 4)
    loss = losses.SoftmaxLoss(4, SIZE)
    loss.load_state_dict(layer.state_dict())
    torch.testing.assert_close(loss.logits(X.float()), layer(X.float()))
    with pytest.raises(RuntimeError, match=r'Unexpected key\(s\) in state_dict: "bias"'):
        losses.CosFaceLoss(4, SIZE).load_state_dict(layer.state_dict())
    losses.CosFaceLoss(4, SIZE).load_state_dict(layer.state_dict(), strict=False)


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_a_checkpointed_memory_takes_a_batch_once(use_reentrant: bool) -> None:
    plain, checkpointed = (
        losses.CrossBatchMemory(losses.CircleLoss(), SIZE, memory_size=30).double() for _ in range(2)
    )
    for step in range(4):
        x, again = (unit(12, SIZE, seed=step).requires_grad_() for _ in range(2))
        plain(x, IDS).backward()
        torch.utils.checkpoint.checkpoint(checkpointed, again, IDS, use_reentrant=use_reentrant).backward()
        torch.testing.assert_close(again.grad, x.grad)
        for name, buffer in checkpointed.named_buffers():
            assert torch.equal(buffer, plain.get_buffer(name)), name


@pytest.mark.parametrize("setting", DEFAULTS, ids=str)
@pytest.mark.filterwarnings("ignore:.*the loss and its gradient are zero")
def test_an_empty_batch_is_a_differentiable_zero(setting: Setting) -> None:
    x = X[:0].clone().requires_grad_()
    value = setting.make().eval()(x, IDS[:0])
    value.backward()
    assert x.grad is not None and (value == 0 or setting.name in ("SoftTripleLoss", "ProxyAnchorLoss"))


@pytest.mark.parametrize("setting", DEFAULTS, ids=str)
def test_members_can_be_listed_and_show_what_is_public(setting: Setting) -> None:
    loss = setting.make()
    members = dict(inspect.getmembers(loss))
    public = {name for name in dir(loss) if not name.startswith("_")} - set(dir(torch.nn.Module))
    attributes = {name for name, s in loss.settings.items() if s.attribute}
    assert attributes <= public <= members.keys() and {"logits", "predict", "extend_classes"} <= public
    assert not public & {"spare", "spec", "sizes", "pairs_of", "row_local", "distribution"}


def test_the_package_shows_what_is_public() -> None:
    assert set(dir(losses)) == {*losses.__all__, "distributed"}


# Statistics of the last step


@pytest.mark.parametrize("setting", PAIRED, ids=str)
def test_statistics_of_the_last_step(setting: Setting) -> None:
    loss = setting.make().eval()
    plain = loss(X.clone().requires_grad_(), IDS)
    assert loss.last == {}
    loss.keep_statistics = True
    x = X.clone().requires_grad_()
    for scale in (1, 2):  # of the last step only
        x.grad = None
        value = loss(scale * x, IDS)
        value.backward()
    case = setting.case(loss, X, IDS)
    cosines = torch.nn.functional.normalize(case.x) @ torch.nn.functional.normalize(case.columns).t()
    cosines = cosines.view(len(X), -1, loss.vectors_per_class).amax(2)
    torch.testing.assert_close(loss.last["s_p"], cosines[case.positive].mean())
    torch.testing.assert_close(loss.last["s_n"], cosines[case.negative].mean())
    norms = (x.grad / 2).norm(dim=1)
    torch.testing.assert_close(loss.last["gradient_norm"], norms.mean())
    assert loss.last["active_rows"] == (norms > 0).sum()
    loss.keep_statistics = False
    torch.testing.assert_close(loss(X, IDS), plain.detach())
    assert loss.last == {}


HINGES = ("ContrastiveLoss", "MarginLoss", "RankedListLoss", "ThresholdConsistentMarginLoss", "TripletMarginLoss")


@pytest.mark.parametrize("setting", [s for s in SETTINGS if s.name in HINGES], ids=str)
@pytest.mark.parametrize("small", [False, True], ids=["one tile", "tiles"])
def test_active_pairs_are_those_of_the_gradient(setting: Setting, small: bool) -> None:
    """Against the dense form, differentiated by its matrix of similarities."""
    loss = setting.make(keep_statistics=True).eval()
    if small:
        loss.sizes = dataclasses.replace(loss.sizes, tile=16, square=4, widest=4, fewest_rows=2)
    loss(X.clone().requires_grad_(), IDS)
    matrices: list[Tensor] = []
    product = torch.Tensor.__matmul__

    def observed(a: Tensor, b: Tensor) -> Tensor:
        matrices.append(product(a, b))
        return matrices[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.Tensor, "__matmul__", observed)
        value = setting.make(dense=True).eval()(X.clone().requires_grad_(), IDS)
    slopes = torch.autograd.grad(value, matrices[0])[0]
    assert loss.last["pulled"] == (slopes < 0).sum() and loss.last["pushed"] == (slopes > 0).sum()
    assert loss.last["pulled"] + loss.last["pushed"] < slopes.numel()


def test_statistics_of_towers() -> None:
    loss = losses.InfoNCELoss(keep_statistics=True)
    a = TOWERS[0].clone().requires_grad_()
    loss(a, TOWERS[1]).backward()
    cosines = torch.nn.functional.normalize(TOWERS[0]) @ torch.nn.functional.normalize(TOWERS[1]).t()
    torch.testing.assert_close(loss.last["s_p"], cosines.diagonal().mean())
    torch.testing.assert_close(loss.last["s_n"], cosines[~torch.eye(8, dtype=torch.bool)].mean())
    torch.testing.assert_close(loss.last["gradient_norm"], a.grad.norm(dim=1).mean())


# Help


@pytest.mark.parametrize("info", [*losses.list_losses(), *losses.list_penalties()], ids=lambda info: info.name)
def test_help_is_short_and_complete(info: losses.LossInfo) -> None:
    """Formula, arguments with their ranges, an example (which runs as a doctest) and the paper; two screens."""
    text = pydoc.plain(pydoc.render_doc(info.loss))
    assert len(text.splitlines()) <= 140
    assert "Annotated" not in text and "Method resolution order" in text
    assert info.paper and ">>> " in text and text.index("Example:") < text.index("References:")
    described = text[: text.index("Example:")]
    own = [s for s in getattr(info.loss, "settings", {}).values() if not s.common]
    for setting in own:
        if info.level != "penalty":
            assert re.search(rf"\b{setting.name}\b.*:", described), setting.name
    if any(setting.range for setting in own):
        ranges = text[text.index("Ranges:") : text.index("References:")]
        assert all(setting.name in ranges for setting in own if setting.range)
    assert re.search(r"\n \|      +\S.*[=:] ", described), "a formula"


# Around the loss


def test_pk_sampler_finds_its_rank_and_is_a_batch_sampler(monkeypatch: pytest.MonkeyPatch) -> None:
    labels = torch.arange(64) // 4
    for rank in (0, 1):
        for name, value in {"is_initialized": True, "get_rank": rank, "get_world_size": 2}.items():
            monkeypatch.setattr(torch.distributed, name, lambda *_, value=value: value)
        sampler = PKSampler(labels, p=4, k=2)
        assert isinstance(sampler, torch.utils.data.BatchSampler)
        batch = next(iter(sampler))
        if rank == 0:
            first = batch
    assert len(batch) == len(first) == 8 and not set(batch) & set(first)
    monkeypatch.undo()
    with pytest.warns(UserWarning, match="every class has one row"):
        list(PKSampler(torch.arange(8), p=2, k=2))


def test_a_gallery_that_is_the_queries_is_warned_of() -> None:
    x, y = X.float().numpy(), IDS.numpy()
    with pytest.warns(UserWarning, match="the gallery is the"):
        retrieval_metrics(x, y, gallery=x, gallery_labels=y)


def test_euclidean_triplets_without_normalisation() -> None:
    """As re-identification has them: batch-hard distances of vectors as they are."""
    distance = torch.cdist(3 * X, 3 * X)
    alike = IDS[:, None] == IDS
    furthest = distance.masked_fill(~alike, 0).amax(1)
    nearest = distance.masked_fill(alike, torch.inf).amin(1)
    expected = torch.relu(furthest - nearest + 0.3).mean()
    torch.testing.assert_close(losses.TripletMarginLoss(0.3, normalize=False)(3 * X, IDS), expected)


def test_label_smoothing_is_that_of_cross_entropy() -> None:
    loss = losses.NormFaceLoss(4, SIZE, label_smoothing=0.1).double()
    expected = torch.nn.functional.cross_entropy(loss.logits(X), IDS, label_smoothing=0.1)
    torch.testing.assert_close(loss(X, IDS), expected)
