"""The references against pytorch-metric-learning, where the two define a loss alike; skipped without it."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from . import Case
from .test_reference import evaluate, samples
from .tuples import dynamic_soft_margin_histogram

pml = pytest.importorskip("pytorch_metric_learning.losses")
miners = pytest.importorskip("pytorch_metric_learning.miners")
reducers = pytest.importorskip("pytorch_metric_learning.reducers")
regularizers = pytest.importorskip("pytorch_metric_learning.regularizers")

LABELS = torch.tensor([0, 0, 0, 1, 1, 1, 2, 2, 2])


def random_unit(n: int, seed: int = 0, dimension: int = 4) -> Tensor:
    """Unit vectors, as a few of these losses take unnormalised ones as they are."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, dimension, dtype=torch.float64, generator=generator)
    return normalize(x).requires_grad_()


def assert_same(ours: Tensor, theirs: Tensor, *inputs: Tensor) -> None:
    assert abs(ours.item()) > 1e-4
    torch.testing.assert_close(ours, theirs.double(), rtol=1e-5, atol=1e-9)  # they mix in float32
    gradients = torch.autograd.grad(ours, inputs), torch.autograd.grad(theirs, inputs)
    for x, a, b in zip(inputs, *gradients, strict=True):
        torch.testing.assert_close(tangent(a, x), tangent(b, x), rtol=1e-4, atol=1e-6)


def tangent(gradient: Tensor, x: Tensor) -> Tensor:
    """The part along the sphere: some losses there do not normalise."""
    x = x.detach()
    return gradient - (gradient * x).sum(1, keepdim=True) * x


SIMPLE: list[tuple[str, dict[str, Any], Callable[[], Any]]] = [
    ("TripletMarginLoss", {"mining": "all", "margin": 0.5}, lambda: pml.TripletMarginLoss(margin=0.5)),
    (
        "TripletMarginLoss",
        {"mining": "all", "margin": 0.5, "smooth_loss": True},
        lambda: pml.TripletMarginLoss(margin=0.5, smooth_loss=True),
    ),
    ("GeneralizedLiftedStructureLoss", {}, lambda: pml.GeneralizedLiftedStructureLoss()),
    ("LiftedStructureLoss", {}, lambda: pml.LiftedStructureLoss()),
    ("HistogramLoss", {}, lambda: pml.HistogramLoss()),
    ("AngularLoss", {}, lambda: pml.AngularLoss()),
    ("FastAPLoss", {}, lambda: pml.FastAPLoss()),
    ("NCALoss", {"softmax_scale": 3}, lambda: pml.NCALoss(softmax_scale=3)),
    ("TupletMarginLoss", {"scale": 8}, lambda: pml.TupletMarginLoss(scale=8)),
    ("IntraPairVarianceLoss", {}, lambda: pml.IntraPairVarianceLoss()),
    ("SignalToNoiseRatioContrastiveLoss", {}, lambda: pml.SignalToNoiseRatioContrastiveLoss()),
    ("RankedListLoss", {"margin": 0.4, "Tn": 4, "Tp": 1}, lambda: pml.RankedListLoss(margin=0.4, Tn=4, Tp=1)),
    *(
        ("PNPLoss", {"anneal": 0.1, "variant": v}, lambda v=v: pml.PNPLoss(anneal=0.1, variant=v))
        for v in ("Ds", "Dq", "Iu", "Ib", "O")
    ),
    ("ThresholdConsistentMarginLoss", {}, lambda: pml.ThresholdConsistentMarginLoss()),
]


@pytest.mark.filterwarnings("ignore:Using a non-tuple sequence")  # of their histogram loss
@pytest.mark.parametrize(("name", "arguments", "theirs"), SIMPLE)
def test_samples(name: str, arguments: dict[str, Any], theirs: Callable[[], Any]) -> None:
    x = random_unit(len(LABELS))
    ours = evaluate(name, samples(x, LABELS.tolist()), **arguments)[0]
    assert_same(ours, theirs()(x, LABELS), x)


@pytest.mark.parametrize(
    ("mining", "miner"),
    [
        ("semihard", lambda: miners.TripletMarginMiner(margin=0.3, type_of_triplets="semihard")),
        ("easy_positive", lambda: miners.BatchEasyHardMiner(pos_strategy="easy", neg_strategy="hard")),
        ("batch_hard", lambda: miners.BatchHardMiner()),
    ],
)
def test_mining(mining: str, miner: Callable[[], Any]) -> None:
    x = random_unit(len(LABELS))
    ours = evaluate("TripletMarginLoss", samples(x, LABELS.tolist()), mining=mining, margin=0.3)[0]
    reducer = reducers.AvgNonZeroReducer() if mining == "semihard" else reducers.MeanReducer()
    theirs = pml.TripletMarginLoss(margin=0.3, reducer=reducer)(x, LABELS, miner()(x, LABELS))
    assert_same(ours, theirs, x)


def test_margin() -> None:
    # Their pairs come from triplets: each counts alike where a row has as many positives as negatives.
    x, y = random_unit(4), random_unit(6, seed=1)
    labels, others = torch.tensor([0, 1, 0, 1]), torch.tensor([0, 0, 0, 1, 1, 1])
    positive = labels[:, None] == others
    ours = evaluate("MarginLoss", Case(x, y, positive, ~positive))[0]
    assert_same(ours, pml.MarginLoss()(x, labels, ref_emb=y, ref_labels=others), x, y)


def test_smooth_ap_counts_the_query() -> None:
    # Their classes have to be as many as they have samples, one after the other, and a sample is its own positive.
    x = random_unit(len(LABELS))
    case = samples(x, LABELS.tolist())
    itself = dataclasses.replace(case, positive=~case.negative)
    ours = evaluate("SmoothAPLoss", itself, temperature=0.1)[0]
    theirs = pml.SmoothAPLoss(temperature=0.1)(x, LABELS)
    torch.testing.assert_close(ours, theirs.double(), rtol=1e-5, atol=1e-8)


def test_instance() -> None:
    x = random_unit(len(LABELS))
    positive = LABELS[:, None] == torch.arange(len(LABELS))
    assert_same(
        evaluate("InstanceLoss", Case(x, x, positive, ~positive), gamma=4)[0], pml.InstanceLoss(4)(x, LABELS), x
    )


def test_vic_reg() -> None:
    x, y = random_unit(5), random_unit(5, seed=1)
    masks = torch.zeros(5, 5, dtype=torch.bool)
    assert_same(evaluate("VICRegLoss", Case(x, y, masks, masks))[0], pml.VICRegLoss()(x, ref_emb=y), x, y)


def with_weight(loss: Any, parameter: str, columns: Tensor) -> Any:
    setattr(loss, parameter, torch.nn.Parameter(columns.detach().T.clone()))
    return loss


@pytest.mark.parametrize(
    ("name", "per_class", "arguments", "parameter", "theirs"),
    [
        (
            "SoftTripleLoss",
            2,
            {"centers_per_class": 2},
            "fc",
            lambda: pml.SoftTripleLoss(
                num_classes=3,
                embedding_size=4,
                centers_per_class=2,
                weight_regularizer=regularizers.SparseCentersRegularizer(3, 2),
                weight_reg_weight=0.2,
            ),
        ),
        (
            "SubCenterArcFaceLoss",
            2,
            {"sub_centers": 2, "scale": 8, "margin": math.radians(28.6)},
            "W",
            lambda: pml.SubCenterArcFaceLoss(num_classes=3, embedding_size=4, sub_centers=2, scale=8),
        ),
        ("P2SGradLoss", 1, {}, "weight", lambda: pml.P2SGradLoss(descriptors_dim=4, num_classes=3)),
    ],
)
def test_classes(name: str, per_class: int, arguments: dict[str, Any], parameter: str, theirs: Any) -> None:
    x, columns = random_unit(len(LABELS)), random_unit(3 * per_class, seed=1)
    positive = LABELS[:, None] == torch.arange(3)
    ours = evaluate(name, Case(x, columns, positive, ~positive), **arguments)[0]
    loss = with_weight(theirs(), parameter, columns)
    value = loss(x, LABELS)
    expected = torch.autograd.grad(value, (x, getattr(loss, parameter)))
    gradients = torch.autograd.grad(ours, (x, columns))
    for a, b in (
        (ours, value),
        (gradients[0], expected[0]),
        (gradients[1], tangent(expected[1].T, columns)),
    ):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)  # SoftTriple's root here is of 2 - 2s + 1e-5


def test_dynamic_soft_margin() -> None:
    loss, histogram = pml.DynamicSoftMarginLoss(), None
    for seed in range(2):
        x = random_unit(len(LABELS), seed).detach()
        case = samples(x, LABELS.tolist())
        ours = evaluate("DynamicSoftMarginLoss", case, histogram=histogram)[0]
        torch.testing.assert_close(ours, loss(x, LABELS), rtol=1e-6, atol=1e-9)
        histogram = dynamic_soft_margin_histogram(case, histogram)
        torch.testing.assert_close(histogram, loss.hist_, rtol=1e-6, atol=1e-9)
