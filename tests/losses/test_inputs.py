"""Bad input gets an error that says what to do; a batch with nothing to learn from gives zero and says why."""

import math
import warnings
from typing import Any

import pytest
import torch

from nearfar import losses
from tests.losses.settings import CLASSES, DEFAULTS, PAIRED, SIZE, Setting, inputs, parameters, unit

defaults = pytest.mark.parametrize("setting", DEFAULTS, ids=str)
# Of these a pair counts, whatever else its row has.
PAIRS_BY_THEMSELVES = (
    "ContrastiveLoss",
    "IntraPairVarianceLoss",
    "MarginLoss",
    "RankedListLoss",
    "SignalToNoiseRatioContrastiveLoss",
    "ThresholdConsistentMarginLoss",
)
X, LABELS = unit(8, SIZE), torch.arange(8) // 2


@defaults
@pytest.mark.parametrize(
    ("embeddings", "labels", "error", "message"),
    [
        (unit(8), LABELS, ValueError, r"must be \(batch, dimension\)"),
        (unit(8, 2, SIZE), LABELS, ValueError, "flatten or pool"),
        (X.long(), LABELS, TypeError, "floating point"),
        (X.numpy(), LABELS, TypeError, "torch.Tensor"),
        (X, LABELS.float(), TypeError, r"labels.long\(\)"),
        (X, LABELS[:7], ValueError, "7 labels for 8 embeddings"),
        (X, LABELS[:, None, None], ValueError, "multi-hot"),
        (X, LABELS.tolist(), TypeError, "as_tensor"),
        (X, LABELS > 1, TypeError, "boolean"),
        (X, None, ValueError, "either labels, or positives"),
    ],
)
def test_wrong_inputs(setting: Setting, embeddings: Any, labels: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        setting.make()(embeddings, labels)


@pytest.mark.parametrize("setting", [s for s in PAIRED if s.class_level], ids=str)
def test_wrong_classes(setting: Setting) -> None:
    loss = setting.make()
    with pytest.raises(ValueError, match="labels run from 0 to 5, but num_classes=5 takes 0 to 4"):
        loss(X, torch.tensor([0, 1, 2, 3, 4, 5, 0, 0]))
    with pytest.raises(ValueError, match="labels run from -2"):
        loss(X, LABELS - 2)
    with pytest.raises(ValueError, match="3 dimensions, but the loss was made with 6"):
        loss(X[:, :3], LABELS)
    with pytest.raises(ValueError, match="multi-hot labels have 7 columns, but num_classes=5"):
        loss(X, torch.ones(8, 7, dtype=torch.bool))
    with pytest.raises(ValueError, match="ref_emb goes with pair-level"):
        loss(X, LABELS, ref_emb=X, ref_labels=LABELS)
    with pytest.raises(ValueError, match="must be a positive number"):
        setting.make(num_classes=0)


def test_wrong_masks_and_references() -> None:
    loss = losses.CircleLoss()
    mask = torch.ones(8, 8, dtype=torch.bool)
    with pytest.raises(ValueError, match="boolean mask"):
        loss(X, positives=mask.float())
    with pytest.raises(ValueError, match=r"of shape \(8, 8\)"):
        loss(X, positives=mask[:, :5])
    with pytest.raises(ValueError, match="in both"):
        loss(X, positives=mask, negatives=mask)
    with pytest.raises(ValueError, match="negatives= goes with positives="):
        loss(X, LABELS, negatives=mask)
    with pytest.raises(ValueError, match="go together"):
        loss(X, LABELS, ref_emb=X)
    with pytest.raises(ValueError, match="ref_emb have 5 dimensions"):
        loss(X, LABELS, ref_emb=X[:, :5], ref_labels=LABELS)
    with pytest.raises(ValueError, match="3 ref_labels for 8 ref_emb"):
        loss(X, LABELS, ref_emb=X, ref_labels=LABELS[:3])
    with pytest.raises(ValueError, match="of one kind and width"):
        loss(X, LABELS, ref_emb=X, ref_labels=torch.ones(8, 2, dtype=torch.long))
    with pytest.raises(ValueError, match="both num_classes and embedding_size"):
        losses.CircleLoss(num_classes=5)


@defaults
def test_wrong_sample_weight(setting: Setting) -> None:
    loss = setting.make()
    for weight in (torch.ones(3), -torch.ones(8), torch.full((8,), math.nan), [1.0] * 8):
        with pytest.raises(ValueError, match="sample_weight must"):
            loss(X, LABELS, sample_weight=weight)


@defaults
def test_check_finite(setting: Setting) -> None:
    bad = X.clone()
    bad[3, 1] = math.nan
    bad[5, 0] = math.inf
    with pytest.raises(ValueError, match=r"2 of 8 embeddings hold NaN or infinity \(first: row 3\)"):
        setting.make(check_finite=True)(bad, LABELS)
    setting.make(check_finite=True)(X, LABELS)


@defaults
def test_misspelt_arguments(setting: Setting) -> None:
    for argument in setting.info.arguments:
        with pytest.raises(TypeError, match=f"has no argument '{argument}x': did you mean {argument}"):
            setting.make(**{argument + "x": 1})
    with pytest.raises(TypeError, match="did you mean reduction"):
        setting.make(reducton="mean")
    with pytest.raises(TypeError, match="it takes"):
        setting.make(qqqqqqqq=1)
    with pytest.raises(ValueError, match="reduction must be"):
        setting.make(reduction="average")
    with pytest.raises(ValueError, match="memory_budget"):
        setting.make(memory_budget=-1)


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("ArcFaceLoss", {"margin": 28.6}, r"radians.*math.radians\(28.6\) is 0.4992"),
        ("CombinedMarginLoss", {"m2": 28.6}, "radians"),
        ("CombinedMarginLoss", {"m1": 0.5}, "at least 1"),
        ("SphereFaceLoss", {"margin": 0.5}, "at least 1"),
        ("LargeMarginSoftmaxLoss", {"margin": 0.0}, "at least 1"),
        ("CosFaceLoss", {"scale": 0.0}, "scale must be a positive number"),
        ("NormFaceLoss", {"scale": math.inf}, "scale must be a positive number"),
        ("L2SoftmaxLoss", {"scale": -1.0}, "scale must be a positive number"),
        ("NormalizedSoftmaxLoss", {"temperature": 0.0}, "temperature must be a positive number"),
        ("NTXentLoss", {"temperature": -0.1}, "temperature must be a positive number"),
        ("SupConLoss", {"temperature": 0.0}, "temperature must be a positive number"),
        ("CircleLoss", {"gamma": 0.0}, "gamma must be a positive number"),
        ("UnifiedLoss", {"gamma": math.nan}, "gamma must be a positive number"),
        ("MultiSimilarityLoss", {"alpha": 0.0}, "alpha must be a positive number"),
        ("MultiSimilarityLoss", {"beta": 0.0}, "beta must be a positive number"),
        ("ProxyAnchorLoss", {"alpha": 0.0}, "alpha must be a positive number"),
        ("ProxyNCALoss", {"softmax_scale": 0.0}, "softmax_scale must be a positive number"),
        ("ContrastiveLoss", {"power": 3}, "power must be one of 1, 2"),
        ("ContrastiveLoss", {"distance": "euclid"}, "distance must be one of 'l2'"),
        ("TripletMarginLoss", {"mining": "hard"}, "mining must be one of 'batch_hard'"),
        ("TripletMarginLoss", {"distance": "L2"}, "distance must be one of"),
    ],
)
def test_wrong_hyperparameters(name: str, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Setting(name, {}).make(**arguments)


@pytest.mark.parametrize("setting", PAIRED, ids=str)
@pytest.mark.parametrize("kind", ["one class", "all single", "one"])
def test_nothing_to_learn_from(setting: Setting, kind: str) -> None:
    """Zero loss, zero gradient, one warning that says why; and never a warning where there is something."""
    x, labels = inputs()[kind]
    if setting.class_level:
        labels = labels * 0
    x.requires_grad_()
    for reduction in setting.reductions:
        loss = setting.make(num_classes=1, reduction=reduction)
        if isinstance(loss, losses.NPairsLoss):
            loss.l2_weight = 0
        elif isinstance(loss, losses.MagFaceLoss):
            loss.lambda_g = 0
        elif isinstance(loss, losses.SoftTripleLoss):
            loss.tau = 0
        empty = not (setting.name == "SupConLoss" and kind == "one class")
        empty &= not (setting.name in PAIRS_BY_THEMSELVES and kind != "one")
        empty &= not loss.proxies_are_rows
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            value = loss(x, labels)
        assert value.shape == ((1 if loss.proxies_are_rows else len(x),) if reduction == "none" else ())
        gradients = torch.autograd.grad(value.sum(), parameters(loss, x), allow_unused=True, materialize_grads=True)
        if empty:
            assert [str(w.message) for w in caught] and len(caught) == 1
            assert "so the loss and its gradient are zero" in str(caught[0].message)
            assert caught[0].filename == __file__
            assert not value.any() and not any(g.any() for g in gradients)
        else:
            assert not caught


def test_the_warning_says_what_to_do() -> None:
    with pytest.warns(
        UserWarning, match=r"CircleLoss.*8 rows.*no two samples share a label.*several samples of each class"
    ):
        losses.CircleLoss()(X, torch.arange(8))
    with pytest.warns(UserWarning, match="all samples share one label: draw several classes"):
        losses.CircleLoss()(X, torch.zeros(8, dtype=torch.long))


@defaults
@pytest.mark.filterwarnings("ignore:.*the loss and its gradient are zero")
def test_empty_batch(setting: Setting) -> None:
    x = torch.zeros(0, SIZE, dtype=torch.float64, requires_grad=True)
    loss = setting.make()
    if isinstance(loss, losses.SoftTripleLoss):
        loss.tau = 0  # the regulariser is of the centres alone
    value = loss(x, torch.zeros(0, dtype=torch.long))
    value.backward()
    assert value.item() == 0
    assert x.grad is not None and x.grad.shape == (0, SIZE)


def test_list_losses() -> None:
    for info in losses.list_losses():
        assert getattr(losses, info.name) is info.loss
        assert info.name in losses.__all__
        assert info.paper and info.formula and info.summary.endswith(".")
        assert "Args:" in info.loss.__doc__ and "References:" in info.loss.__doc__
        documented = info.loss.__doc__
        for argument in info.arguments:
            assert argument in documented, f"{info.name} does not document {argument}"
    assert CLASSES > 2
