"""docs/migrate.md against pytorch-metric-learning itself: every row of its table, and every difference it states."""

import copy
import inspect
import math
import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from nearfar import losses

pml: Any = pytest.importorskip("pytorch_metric_learning.losses")
distances: Any = pytest.importorskip("pytorch_metric_learning.distances")
miners: Any = pytest.importorskip("pytorch_metric_learning.miners")
reducers: Any = pytest.importorskip("pytorch_metric_learning.reducers")
regularizers: Any = pytest.importorskip("pytorch_metric_learning.regularizers")

# Of their softmax losses under NumPy 2, and of their histogram loss.
pytestmark = [
    pytest.mark.filterwarnings(f"ignore:{text}") for text in ("__array_wrap__ must", "Using a non-tuple sequence")
]

PAGE = (Path(__file__).parents[2] / "docs" / "migrate.md").read_text(encoding="utf-8")
C, D = 5, 6
BALANCED, RAGGED = torch.arange(12) // 3, torch.tensor([0, 3, 0, 1, 2, 2, 1, 2, 0, 2, 4, 4])


class Row(NamedTuple):
    theirs: str
    ours: str | None
    differs: str

    @property
    def name(self) -> str:
        return self.theirs.partition("(")[0]

    def make(self) -> tuple[Any, Any]:
        """Ours and theirs, as the page spells them, with the same state, in float64."""
        assert self.ours is not None
        torch.manual_seed(0)
        arguments = {"C": C, "D": D, "radians": math.radians}
        theirs = eval(self.theirs, {**vars(pml), **arguments, "DotProductSimilarity": distances.DotProductSimilarity})
        ours = eval(self.ours, {**vars(losses), **arguments}).double()
        theirs = theirs.double()
        if self.name != "InstanceLoss":  # which has no state there
            ours.load_state_dict(theirs.state_dict())
        return ours, theirs


def table(heading: str) -> list[list[str]]:
    lines = PAGE.split(f"## {heading}\n", 1)[1].split("\n## ", 1)[0].splitlines()
    rows = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines if line.startswith("|")]
    return rows[2:]


def code(cell: str) -> str:
    match = re.fullmatch("`(.*)`", cell)
    assert match, cell
    return match[1]


ROWS = [Row(code(a), None if b == "—" else code(b), c) for a, b, c in table("Every loss")]
PRESENT = {row.name: row for row in ROWS if row.ours is not None}

# What the page says of these is checked by tests of their own, below.
APART = {
    "AngularLoss",
    "CrossBatchMemory",
    "DynamicSoftMarginLoss",
    "InstanceLoss",
    "MarginLoss",
    "SelfSupervisedLoss",
    "SmoothAPLoss",
    "VICRegLoss",
}
SINGLE_PRECISION = {"HistogramLoss": 1e-5, "P2SGradLoss": 1e-6, "SmoothAPLoss": 1e-5}  # inside theirs


def embeddings(n: int = 12, seed: int = 0, size: int = D) -> Tensor:
    x = torch.randn(n, size, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return x.requires_grad_()


def along_the_sphere(gradient: Tensor, x: Tensor) -> Tensor:
    """Without the part that changes a norm."""
    unit = normalize(x.detach())
    return gradient - (gradient * unit).sum(1, keepdim=True) * unit


def agree(ours: Tensor, theirs: Tensor, *inputs: Tensor, tolerance: float = 1e-9, sphere: bool = False) -> None:
    """One value, which is not zero, and one gradient."""
    assert abs(theirs.item()) > 1e-3
    torch.testing.assert_close(ours, theirs.double().reshape(()), rtol=tolerance, atol=0)
    gradients = (torch.autograd.grad(value, inputs, retain_graph=True) for value in (ours, theirs))
    for x, g, h in zip(inputs, *gradients, strict=True):
        if sphere:
            g, h = along_the_sphere(g, x), along_the_sphere(h, x)
        assert g.abs().max() > 1e-5
        torch.testing.assert_close(g, h, rtol=10 * tolerance, atol=10 * tolerance * h.abs().max().item())


def test_the_table_lists_what_there_is() -> None:
    exported = {name for name, value in vars(pml).items() if inspect.isclass(value)}
    assert [row.name for row in ROWS] == sorted(exported)
    for name, row in PRESENT.items():
        assert row.ours is not None
        assert inspect.isclass(getattr(losses, name if name != "MultipleLosses" else "SumLoss"))
        assert name in row.ours or name == "MultipleLosses"
    missing = {row.name for row in ROWS if row.ours is None}
    assert not any(hasattr(losses, name) for name in missing)
    assert all(row.differs for row in ROWS if row.ours is None)


@pytest.mark.parametrize("kind", ["balanced", "ragged"])
@pytest.mark.parametrize("name", sorted(PRESENT.keys() - APART))
def test_same_value(name: str, kind: str) -> None:
    # What lone samples are in this loss has a test of its own.
    labels = BALANCED if kind == "balanced" or name == "GeneralizedLiftedStructureLoss" else RAGGED
    ours, theirs = PRESENT[name].make()
    x = embeddings()
    tolerance = SINGLE_PRECISION.get(name, 1e-9)
    value, expected = ours(x, labels), theirs(x, labels)
    agree(value, expected, x, tolerance=tolerance)
    if isinstance(ours, losses.Loss) and ours.weight is not None:
        (weight,) = theirs.parameters()
        (g,), (h,) = torch.autograd.grad(value, ours.weight), torch.autograd.grad(expected, weight)
        h = h if weight.shape == ours.weight.shape else h.t()
        if name == "P2SGradLoss":
            h = along_the_sphere(h, ours.weight)
        torch.testing.assert_close(g, h, rtol=10 * tolerance, atol=10 * tolerance)


ARGUMENTS: list[tuple[Any, Any]] = [
    (losses.CircleLoss(0.25, 10), pml.CircleLoss(0.25, 10)),
    (
        losses.ContrastiveLoss(0.2, 0.9, power=1, distance="squared_l2"),
        pml.ContrastiveLoss(0.2, 0.9, distance=distances.LpDistance(power=2)),
    ),
    (
        losses.ContrastiveLoss(0.2, 0.9, power=1, distance="cosine"),
        pml.ContrastiveLoss(0.8, 0.1, distance=distances.CosineSimilarity()),  # margins are similarities there
    ),
    (losses.HistogramLoss(n_bins=20), pml.HistogramLoss(delta=0.1)),
    (losses.NCALoss(9), pml.NCALoss(9)),
    (losses.TupletMarginLoss(math.radians(20), 8), pml.TupletMarginLoss(20, 8)),
    (
        losses.TripletMarginLoss(0.1, mining="all", distance="squared_l2", smooth_loss=True),
        pml.TripletMarginLoss(0.1, smooth_loss=True, distance=distances.LpDistance(power=2)),
    ),
    *((losses.PNPLoss(3, 2, 0.1, v), pml.PNPLoss(3, 2, 0.1, v)) for v in pml.PNPLoss.VARIANTS),
]


@pytest.mark.parametrize(("ours", "theirs"), ARGUMENTS, ids=lambda value: type(value).__name__)
def test_arguments_mean_the_same(ours: Any, theirs: Any) -> None:
    x = embeddings()
    tolerance = SINGLE_PRECISION.get(type(ours).__name__, 1e-9)
    agree(ours(x, RAGGED), theirs(x, RAGGED), x, tolerance=tolerance)


# What differs, as the page says


def test_angular_normalises_negatives() -> None:
    ours, theirs = PRESENT["AngularLoss"].make()
    x = embeddings()
    on_sphere = normalize(x.detach()).requires_grad_()
    agree(ours(on_sphere, RAGGED), theirs(on_sphere, RAGGED), on_sphere, sphere=True)
    assert not torch.isclose(ours(x, RAGGED), theirs(x, RAGGED), rtol=0.1)


@pytest.mark.parametrize(
    ("name", "arguments"), [("CircleLoss", {"gamma": 8192}), ("SupConLoss", {"temperature": 2e-4})]
)
def test_rows_whose_loss_is_zero_count(name: str, arguments: dict[str, Any]) -> None:
    labels, x = torch.tensor([0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3, 3]), embeddings().detach()
    x[:2, 0], x[2:, 0] = 1000, 0  # a class so tight, and so far from the others, that its exponentials vanish
    x.requires_grad_()
    ours = getattr(losses, name)(**arguments, reduction="none").double()(x, labels)
    zero = ours < 1e-9
    assert zero.tolist() == [True] * 2 + [False] * 10
    agree(ours.mean() * 12 / 10, getattr(pml, name)(**arguments)(x, labels), x, tolerance=1e-8)


def test_rows_that_lack_a_side() -> None:
    ours, theirs = PRESENT["GeneralizedLiftedStructureLoss"].make()
    x = embeddings()
    lone = int((RAGGED == 3).nonzero())
    distance = torch.cdist(normalize(x), normalize(x))
    alone = torch.relu(torch.logsumexp(1 - torch.cat([distance[lone, :lone], distance[lone, lone + 1 :]]), 0))
    agree((ours(x, RAGGED) * 11 + alone) / 12, theirs(x, RAGGED), x)


def test_dynamic_soft_margin_weighs_by_constants() -> None:
    """The same value; a weight that hardly moves has hardly a gradient there either."""
    ours, theirs = PRESENT["DynamicSoftMarginLoss"].make()
    x = embeddings()
    torch.testing.assert_close(ours(x, RAGGED), theirs(x, RAGGED))
    torch.testing.assert_close(ours.histogram, theirs.hist_)
    theirs.hist_ = theirs.hist_.detach()
    again = embeddings(seed=1)
    ours.momentum = theirs.momentum = 1e-9
    agree(ours(again, RAGGED), theirs(again, RAGGED), again, tolerance=1e-6)
    theirs(x, RAGGED).backward()
    with pytest.raises(RuntimeError, match="second time"):
        theirs(x, RAGGED).backward()


def test_instance_has_weights() -> None:
    x, theirs = embeddings(), pml.InstanceLoss(gamma=4)
    ours = losses.InstanceLoss(12, D, gamma=4).double()
    ours.weight = nn.Parameter(x.detach().clone())  # the batch itself
    value, expected = ours(x, RAGGED), theirs(x, RAGGED)
    torch.testing.assert_close(value, expected)
    assert expected > 1e-3
    by_x, by_weight = torch.autograd.grad(value, (x, ours.weight))
    torch.testing.assert_close(by_x + by_weight, torch.autograd.grad(expected, x)[0])


def test_margin_counts_pairs() -> None:
    # Where rows have as many positives as negatives, there is no difference.
    x, y = embeddings(4), embeddings(6, seed=1)
    labels, others = torch.tensor([0, 1, 0, 1]), torch.tensor([0, 0, 0, 1, 1, 1])
    ours, theirs = losses.MarginLoss(nu=0.1, learn_beta=True).double(), pml.MarginLoss(nu=0.1, learn_beta=True).double()
    ours.load_state_dict(theirs.state_dict())
    value, expected = (loss(x, labels, ref_emb=y, ref_labels=others) for loss in (ours, theirs))
    agree(value, expected, x, y)
    agree_beta = [torch.autograd.grad(v, loss.beta)[0] for v, loss in ((value, ours), (expected, theirs))]
    torch.testing.assert_close(*(g.reshape(()) for g in agree_beta))
    # Else theirs weighs 2 positives of a row by its 9 negatives, and 9 negatives by its 2 positives.
    x, alike = embeddings(), BALANCED[:, None] == BALANCED
    distance = torch.cdist(normalize(x), normalize(x))
    pull = torch.relu(distance - 1.2 + 0.2)[alike & ~torch.eye(12, dtype=torch.bool)]
    push = torch.relu(1.2 - distance + 0.2)[~alike]
    terms = 9 * pull.sum() + 2 * push.sum(), 9 * (pull > 0).sum() + 2 * (push > 0).sum()
    agree(terms[0] / terms[1], pml.MarginLoss()(x, BALANCED), x, tolerance=1e-6)  # 1.2 is in float32
    once = (pull.sum() + push.sum()) / ((pull > 0).sum() + (push > 0).sum())
    agree(losses.MarginLoss()(x, BALANCED), once, x, tolerance=1e-6)


def test_smooth_ap_counts_the_query() -> None:
    ours, theirs = losses.SmoothAPLoss(0.1), pml.SmoothAPLoss(0.1)
    x, labels = embeddings(9), torch.arange(9) // 3
    agree(ours(x, labels, ref_emb=x, ref_labels=labels), theirs(x, labels), x, tolerance=1e-5)
    right, wrong = (
        ours(embeddings(), BALANCED, ref_emb=embeddings(), ref_labels=BALANCED),
        theirs(embeddings(), BALANCED),
    )
    assert not torch.isclose(right, wrong.double(), rtol=0.05)  # four classes of three samples


@pytest.mark.parametrize("name", ["VICRegLoss", "SelfSupervisedLoss"])
def test_two_views(name: str) -> None:
    ours, theirs = PRESENT[name].make()
    a, b = embeddings(), embeddings(seed=1)
    agree(ours(a, b), theirs(a, ref_emb=b), a, b)
    if name == "SelfSupervisedLoss":
        one_way = losses.SelfSupervisedLoss(losses.NTXentLoss(), symmetric=False)
        agree(one_way(a, b), pml.SelfSupervisedLoss(pml.NTXentLoss(), symmetric=False)(a, b), a, b)


def test_default_values() -> None:
    """What the page says of defaults that differ."""
    x = embeddings()
    reducer = reducers.MeanReducer()
    hardest = pml.TripletMarginLoss(0.2, reducer=reducer)(x, RAGGED, miners.BatchHardMiner()(x, RAGGED))
    agree(losses.TripletMarginLoss()(x, RAGGED), hardest, x)
    mined = pml.MultiSimilarityLoss()(x, RAGGED, miners.MultiSimilarityMiner()(x, RAGGED))
    agree(losses.MultiSimilarityLoss()(x, RAGGED), mined, x)
    centers = regularizers.SparseCentersRegularizer(C, 10)
    theirs = pml.SoftTripleLoss(C, D, weight_regularizer=centers, weight_reg_weight=0.2).double()
    ours = losses.SoftTripleLoss(C, D).double()
    ours.load_state_dict(theirs.state_dict())
    agree(ours(x, RAGGED), theirs(x, RAGGED), x, tolerance=1e-6)  # 1e-5 under the root here


# Miners

REPEATED = ["ContrastiveLoss", "IntraPairVarianceLoss", "LiftedStructureLoss", "NTXentLoss", "TupletMarginLoss"]
REPEATED += ["SignalToNoiseRatioContrastiveLoss", "ThresholdConsistentMarginLoss"]
ONCE = ["CircleLoss", "MultiSimilarityLoss", "SupConLoss"]


def pairs_of(listed: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Each pair once."""
    a1, p, a2, n = listed if len(listed) == 4 else (listed[0], listed[1], listed[0], listed[2])
    return *torch.stack([a1, p]).unique(dim=1), *torch.stack([a2, n]).unique(dim=1)


@pytest.mark.parametrize("name", REPEATED + ONCE)
def test_mined_pairs(name: str) -> None:
    """The same for pairs that are all different; PML counts some of those that triplets repeat once more."""
    ours, theirs = PRESENT[name].make()
    x = embeddings()
    listed = miners.MultiSimilarityMiner()(x, RAGGED)
    assert len(listed) == 4 and len(listed[0]) < 22  # something is left out
    agree(ours(x, RAGGED, listed), theirs(x, RAGGED, listed), x)
    triplets = miners.TripletMarginMiner()(x, RAGGED)
    once = theirs(x, RAGGED, pairs_of(triplets))
    agree(ours(x, None, triplets), once, x)
    assert torch.isclose(theirs(x, RAGGED, triplets), once) == (name in ONCE)


@pytest.mark.parametrize(
    "miner",
    [
        miners.BatchHardMiner(),
        miners.TripletMarginMiner(),
        miners.TripletMarginMiner(type_of_triplets="semihard"),
        miners.AngularMiner(),
        miners.DistanceWeightedMiner(),
    ],
    ids=lambda miner: type(miner).__name__,
)
def test_mined_triplets(miner: Any) -> None:
    ours, theirs = losses.TripletMarginLoss(0.3), pml.TripletMarginLoss(0.3)
    x, y, others = embeddings(), embeddings(8, seed=1), torch.arange(8) % 4
    torch.manual_seed(0)
    listed = miner(x, RAGGED)
    assert len(listed) == 3
    agree(ours(x, RAGGED, listed), theirs(x, RAGGED, listed), x)
    listed = miner(x, RAGGED, y, others)
    agree(ours(x, None, listed, y), theirs(x, RAGGED, listed, y, others), x, y)


@pytest.mark.parametrize("name", ["TripletMarginLoss", "DynamicSoftMarginLoss"])
def test_triplets_of_mined_pairs(name: str) -> None:
    ours, theirs = PRESENT[name].make()
    x = embeddings()
    listed = miners.MultiSimilarityMiner(epsilon=0.3)(x, RAGGED)
    with torch.no_grad():
        torch.testing.assert_close(ours(x, RAGGED, listed), theirs(x, RAGGED, listed))


def test_mined_anchors_without_negatives() -> None:
    """Theirs count as zero, or in SupCon do not count."""
    x, labels = embeddings(6), torch.tensor([0, 0, 0, 1, 1, 1])
    listed = tuple(torch.tensor(t) for t in ([0, 0, 3, 3], [1, 2, 4, 5], [0, 0], [3, 4]))
    for name in ("NTXentLoss", "TupletMarginLoss"):
        ours, theirs = PRESENT[name].make()
        agree(ours(x, labels, listed) / 2, theirs(x, labels, listed), x)
    d = torch.cdist(normalize(x), normalize(x))
    ours, theirs = PRESENT["LiftedStructureLoss"].make()
    by_distance = d[3, 4].square() / 2 + d[3, 5].square() / 2
    agree((ours(x, labels, listed) * 2 + by_distance) / 4, theirs(x, labels, listed), x)
    lone = tuple(torch.tensor(t) for t in ([0, 0, 3], [1, 2, 4], [0, 0], [3, 4]))  # 3 has one positive and nothing else
    agree(losses.SupConLoss()(x, labels, lone) * 2, pml.SupConLoss()(x, labels, lone), x)


def occurrences(listed: tuple[Tensor, ...], n: int = 12) -> Tensor:
    number = torch.zeros(n, dtype=torch.float64)
    for part in listed:
        for index in part.tolist():
            number[index] += 1
    return number / number.max()


@pytest.mark.parametrize("name", ["NCALoss", "FastAPLoss"])
def test_losses_that_weigh_samples_there(name: str) -> None:
    x = embeddings()
    listed = miners.TripletMarginMiner()(x, RAGGED)
    each = getattr(losses, name)(reduction="none").double()(x, RAGGED)
    counted = RAGGED != 3  # the lone sample
    agree((each * occurrences(listed))[counted].mean(), getattr(pml, name)()(x, RAGGED, listed), x)


@pytest.mark.parametrize(
    "name",
    ["ArcFaceLoss", "CosFaceLoss", "LargeMarginSoftmaxLoss", "NormalizedSoftmaxLoss", "SoftTripleLoss"],
)
def test_mined_classes(name: str) -> None:
    ours, theirs = PRESENT[name].make()
    x = embeddings()
    listed = tuple(part[:9] for part in miners.TripletMarginMiner()(x, RAGGED))
    weight = occurrences(listed)
    assert (weight == 0).any()
    agree(ours(x, RAGGED, listed) * weight.mean(), theirs(x, RAGGED, listed), x, tolerance=1e-7)  # float32 weights


def test_mined_proxy_nca() -> None:
    ours, theirs = PRESENT["ProxyNCALoss"].make()
    x = embeddings()
    listed = tuple(part[:9] for part in miners.TripletMarginMiner()(x, RAGGED))
    anchors = occurrences(listed[:1])
    expected = ours(x, RAGGED, sample_weight=anchors) * anchors.mean()
    agree(expected, theirs(x, RAGGED, listed), x)
    assert not torch.isclose(ours(x, RAGGED, listed), ours(x, RAGGED, sample_weight=anchors))


def test_mined_proxy_anchor() -> None:
    ours, theirs = PRESENT["ProxyAnchorLoss"].make()
    x = embeddings()
    listed = tuple(part[:9] for part in miners.TripletMarginMiner()(x, RAGGED))
    weight = occurrences(listed)
    agree(ours(x, RAGGED, sample_weight=(weight - 1).exp()), theirs(x, RAGGED, listed), x)
    agree(ours(x, RAGGED, listed), ours(x, RAGGED, sample_weight=weight), x, tolerance=1e-7)


def test_mining_instead_of_miners() -> None:
    x = embeddings()
    mean = reducers.MeanReducer()
    for mining, miner in (
        ("batch_hard", miners.BatchHardMiner()),
        ("easy_positive", miners.BatchEasyHardMiner(pos_strategy="easy", neg_strategy="hard")),
        ("semihard", miners.TripletMarginMiner(margin=0.2, type_of_triplets="semihard")),
    ):
        reducer = None if mining == "semihard" else mean
        theirs = pml.TripletMarginLoss(0.2, reducer=reducer)(x, RAGGED, miner(x, RAGGED))
        agree(losses.TripletMarginLoss(mining=mining)(x, RAGGED), theirs, x)


def test_cross_batch_memory() -> None:
    """A queue of 20 that batches of 8 fill and go round in."""
    for make_miner in (None, miners.MultiSimilarityMiner, miners.PairMarginMiner):
        ours, theirs = PRESENT["CrossBatchMemory"].make()
        ours.miner = theirs.miner = None if make_miner is None else make_miner()
        for step in range(5):
            x, labels = embeddings(8, seed=step), torch.arange(8) // 2
            agree(ours(x, labels), theirs(x, labels), x)
        queries, x = torch.arange(8) < 3, embeddings(8, seed=9)
        agree(ours(x, labels, None, ~queries), theirs(x, labels, None, ~queries), x)
        torch.testing.assert_close(ours.embedding_memory, theirs.embedding_memory)
    for miner in (miners.BatchHardMiner(), miners.TripletMarginMiner()):
        ours = losses.CrossBatchMemory(losses.TripletMarginLoss(0.05), D, 20, miner).double()
        theirs = pml.CrossBatchMemory(pml.TripletMarginLoss(), D, 20, miner)
        for step in range(4):
            x, labels = embeddings(8, seed=step), torch.arange(8) // 2
            agree(ours(x, labels), theirs(x, labels), x)


def test_cross_batch_memory_takes_indices_of_the_batch() -> None:
    """Slots are the batch's own while the queue is first filled: theirs agrees in the first step alone."""
    listed = tuple(torch.tensor(t) for t in ([0, 2], [1, 3], [0], [7]))
    ours = losses.CrossBatchMemory(
        losses.CircleLoss(gamma=1), D, 20, miners.MultiSimilarityMiner(epsilon=-0.3)
    ).double()
    theirs = pml.CrossBatchMemory(pml.CircleLoss(gamma=1), D, 20, miners.MultiSimilarityMiner(epsilon=-0.3))
    for step in range(2):
        x, labels = embeddings(8, seed=step), torch.arange(8) // 2
        value, expected = ours(x, labels, listed), theirs(x, labels, listed)
        if step == 0:
            agree(value, expected, x)
        else:
            assert not torch.isclose(value, expected)


# What it saved

SAVED = [
    ("ArcFaceLoss", "W"),
    ("CosFaceLoss", "W"),
    ("LargeMarginSoftmaxLoss", "W"),
    ("NormalizedSoftmaxLoss", "W"),
    ("P2SGradLoss", "weight"),
    ("ProxyAnchorLoss", "proxies"),
    ("ProxyNCALoss", "proxies"),
    ("SoftTripleLoss", "fc"),
    ("SphereFaceLoss", "W"),
    ("SubCenterArcFaceLoss", "W"),
]


def test_every_state_is_known() -> None:
    """No other loss there has one."""
    named = dict(SAVED)
    for name, row in PRESENT.items():
        if name not in ("CrossBatchMemory", "MultipleLosses", "SelfSupervisedLoss"):
            theirs = row.make()[1]
            assert list(theirs.state_dict()) == ([named[name]] if name in named else [])
    assert list(pml.MarginLoss(learn_beta=True).state_dict()) == ["beta"]


@pytest.mark.parametrize(("name", "key"), SAVED)
@pytest.mark.parametrize("square", [False, True])
def test_class_weights(name: str, key: str, square: bool) -> None:
    size = C if square else D
    row = PRESENT[name]
    if name in ("SoftTripleLoss", "SubCenterArcFaceLoss"):
        size = size * 10 if name == "SoftTripleLoss" else size * 3  # as many as there are vectors
    assert row.ours is not None
    arguments = {"C": C, "D": size, "radians": math.radians}
    theirs = eval(row.theirs, {**vars(pml), **arguments})
    ours = eval(row.ours, {**vars(losses), **arguments})
    state = theirs.state_dict()
    before = {k: v.clone() for k, v in state.items()}
    ours.load_state_dict(state)
    torch.testing.assert_close(state, before, rtol=0, atol=0)  # the caller's is left alone
    expected = before[key] if key == "proxies" or (square and key == "weight") else before[key].t()
    torch.testing.assert_close(ours.weight.detach(), expected, rtol=0, atol=0)

    # Ours, in a module, and back.
    other = nn.ModuleDict({"head": eval(row.ours, {**vars(losses), **arguments})})
    other.load_state_dict({f"head.{k}": v for k, v in ours.state_dict().items()})
    torch.testing.assert_close(other.state_dict()["head.weight"], expected, rtol=0, atol=0)
    other.load_state_dict({f"head.{k}": v for k, v in before.items()})

    with pytest.raises(RuntimeError, match=r'Unexpected key.*"Wide"'):
        ours.load_state_dict(before | {"Wide": torch.zeros(3)})
    with pytest.raises(RuntimeError, match=r"Missing key.*weight"):
        ours.load_state_dict({})
    with pytest.raises(RuntimeError, match="size mismatch for weight"):
        ours.load_state_dict({key: before[key][:-1]})


def test_only_class_level_losses_take_class_weights() -> None:
    with pytest.raises(RuntimeError, match=r'Unexpected key.*"W"'):
        losses.CircleLoss().load_state_dict({"W": torch.zeros(D, C)})
    with pytest.raises(RuntimeError, match=r'Unexpected key.*"W"'):
        losses.CosFaceLoss(C, D).load_state_dict({"W": torch.zeros(D, C), "weight": torch.zeros(C, D)})
    with pytest.raises(RuntimeError, match="size mismatch for weight"):  # one of ours is never turned
        losses.CosFaceLoss(C, D).load_state_dict({"weight": torch.zeros(D, C)})
    with pytest.raises(RuntimeError, match=r'Missing key.*"centers"'):
        losses.CenterLoss(C, D).load_state_dict({})
    with pytest.raises(RuntimeError, match=r'Missing key.*"iteration"'):
        losses.SphereFaceLoss(C, D).load_state_dict({"weight": torch.zeros(C, D)})


def test_boundaries() -> None:
    ours, theirs = losses.MarginLoss(), pml.MarginLoss(beta=0.7, learn_beta=True)
    ours.load_state_dict(theirs.state_dict())
    assert ours.beta.shape == () and float(ours.beta) == pytest.approx(0.7)
    ours.load_state_dict(pml.MarginLoss(beta=3).state_dict())
    assert float(ours.beta) == pytest.approx(0.7)  # what is not learned there is not saved
    theirs = pml.MarginLoss(num_classes=C, learn_beta=True)
    nn.init.normal_(theirs.beta)
    with pytest.raises(RuntimeError, match="a boundary for each of 5 classes: give the loss num_classes"):
        ours.load_state_dict(theirs.state_dict())
    ours = losses.MarginLoss(num_classes=C, learn_beta=True)
    ours.load_state_dict(theirs.state_dict())
    torch.testing.assert_close(ours.beta, theirs.beta)


@pytest.mark.parametrize("steps", [0, 2, 5])
def test_queues(steps: int) -> None:
    ours, theirs = losses.CrossBatchMemory(losses.CircleLoss(), D, 20), pml.CrossBatchMemory(pml.CircleLoss(), D, 20)
    for step in range(steps):
        theirs(embeddings(8, seed=step).float(), torch.arange(8) // 2)
    ours.load_state_dict(theirs.state_dict())
    assert int(ours.num_enqueued) == {0: 0, 2: 16, 5: 20}[steps]
    torch.testing.assert_close(ours.embedding_memory, theirs.embedding_memory)
    torch.testing.assert_close(ours.label_memory, theirs.label_memory)
    own = copy.deepcopy(ours.state_dict())
    own["num_enqueued"] += 3
    ours.load_state_dict(own)
    assert ours.num_enqueued == own["num_enqueued"]


def test_a_queue_is_filled_as_far_as_anything_is_not_zero() -> None:
    """Embeddings after a relu have zeros among their numbers."""
    ours = losses.CrossBatchMemory(losses.CircleLoss(), D, 20)
    memory = torch.zeros(20, D)
    memory[torch.arange(3), torch.arange(3)] = 1.0
    state = ours.state_dict() | {"embedding_memory": memory}
    del state["num_enqueued"]
    ours.load_state_dict(state)
    assert int(ours.num_enqueued) == 3


def test_sums() -> None:
    theirs = pml.MultipleLosses([pml.CircleLoss(), pml.CosFaceLoss(C, D), pml.ArcFaceLoss(C, D)])
    ours = losses.CircleLoss() + losses.CosFaceLoss(C, D) + losses.ArcFaceLoss(C, D)
    ours.load_state_dict(theirs.state_dict())
    for number, name in ((1, "CosFaceLoss"), (2, "ArcFaceLoss")):
        torch.testing.assert_close(ours.losses[name].weight.t(), theirs.losses[number].W)
    ours.load_state_dict(ours.state_dict())
    with pytest.raises(RuntimeError, match=r"Unexpected key.*losses.7.W"):
        ours.load_state_dict(theirs.state_dict() | {"losses.7.W": torch.zeros(D, C)})


def test_the_histogram_can_be_moved() -> None:
    ours, theirs = PRESENT["DynamicSoftMarginLoss"].make()
    with torch.no_grad():
        theirs(embeddings(), RAGGED)
        ours.histogram.copy_(theirs.hist_)
        torch.testing.assert_close(ours(embeddings(seed=1), RAGGED), theirs(embeddings(seed=1), RAGGED))
