"""What miners list: pairs against masks and the naive references, triplets and queues against loops."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from nearfar import losses
from tests.losses.settings import CLASSES, SETTINGS, SIZE, Setting, parameters, unit
from tests.reference import Case

N, M = 9, 7
PAIR = [s for s in SETTINGS if not s.class_level and not s.needs_class_ids]
CLASS = [s for s in SETTINGS if s.class_level and not s.arguments]
Indices = tuple[Tensor, ...]


def draw(*shape: int, high: int, seed: int) -> Tensor:
    return torch.randint(high, shape, generator=torch.Generator().manual_seed(seed))


def pairs(columns: int, *, same: bool, symmetric: bool = False) -> tuple[Indices, Tensor, Tensor]:
    """Pairs in no order, many of them listed twice, as indices and as masks. Row 0 has no positive, row 1 no negative."""
    kind = draw(N, columns, high=3, seed=3)
    kind[0, kind[0] == 0], kind[1, kind[1] == 1] = 1, 0
    if symmetric:
        kind = kind.tril() + kind.tril(-1).t()
    if same:
        kind.fill_diagonal_(2)
    a1, p = (kind == 0).nonzero().flip(0).t()
    a2, n = (kind == 1).nonzero().t()
    again = torch.arange(0, len(a1), 3)
    listed = torch.cat([a1, a1[again]]), torch.cat([p, p[again]]), torch.cat([a2[5:9], a2]), torch.cat([n[5:9], n])
    return listed, kind == 0, kind == 1


def agree(actual: Tensor, expected: Tensor, tensors: list[Tensor]) -> None:
    """Equal values and gradients, which are not zero."""
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-10)
    weight = unit(*actual.shape, seed=5)
    ours, theirs = (
        torch.autograd.grad(value, tensors, weight, allow_unused=True, materialize_grads=True, retain_graph=True)
        for value in (actual, expected)
    )
    for g, h in zip(ours, theirs, strict=True):
        torch.testing.assert_close(g, h, rtol=1e-9, atol=1e-9)
    assert any(bool(g.any()) for g in ours)


@pytest.mark.parametrize("setting", PAIR, ids=str)
def test_pairs_count_once_and_no_others(setting: Setting) -> None:
    x = unit(N, SIZE).requires_grad_()
    listed, positive, negative = pairs(N, same=True, symmetric=setting.name == "LiftedStructureLoss")
    case = Case(x, x, positive, negative)
    for reduction in {setting.reductions[0], setting.reductions[-1]}:
        loss = setting.make(reduction=reduction).eval()
        mean, rows = setting.reference(loss)(case)
        agree(loss(x, None, listed), mean if reduction == "mean" else rows, [x])


@pytest.mark.parametrize("setting", [s for s in PAIR if s.takes_references and not s.arguments], ids=str)
def test_second_indices_are_into_the_references(setting: Setting) -> None:
    x, y = unit(N, SIZE).requires_grad_(), unit(M, SIZE, seed=1).requires_grad_()
    listed, positive, negative = pairs(M, same=False)
    loss = setting.make().eval()
    expected = setting.reference(loss)(Case(x, y, positive, negative))[0]
    agree(loss(x, torch.arange(N), listed, y), expected, [x, y])
    torch.testing.assert_close(loss(x, indices_tuple=list(listed), ref_emb=y), expected)


@pytest.mark.parametrize("memory_budget", [0, 10**8])
@pytest.mark.parametrize("name", ["CircleLoss", "ContrastiveLoss", "MultiSimilarityLoss", "FastAPLoss"])
def test_tiles(name: str, memory_budget: int) -> None:
    """More rows than a tile has: what is listed is found in every one."""
    n = 1100
    x = unit(n, SIZE).requires_grad_()
    i, j = draw(2, 6000, high=n, seed=1)
    kind = (i * 31 + j) % 5 == 0
    listed = i[kind], j[kind], i[~kind], j[~kind]
    positive, negative = torch.zeros(2, n, n, dtype=torch.bool)
    positive[listed[0], listed[1]] = True
    negative[listed[2], listed[3]] = True
    loss = Setting(name, {}).make(memory_budget=memory_budget)
    agree(loss(x, None, listed), loss(x, positives=positive, negatives=negative), [x])


def test_a_sample_is_not_paired_with_itself() -> None:
    x = unit(4, SIZE).requires_grad_()
    a, p, n = (torch.tensor(t) for t in ([0, 0, 2], [1, 0, 3], [2, 3, 2]))
    loss = losses.ContrastiveLoss().double()
    agree(loss(x, None, (a, p, n)), loss(x, None, (a[[0, 2]], p[[0, 2]], a[:2], n[:2])), [x])


# Triplets


REPEATED = 6


def triplets(columns: int, number: int = 40) -> Indices:
    """In no order, some of them twice, positives and negatives of different parity."""
    a = draw(number, high=N - 1, seed=1)  # the last row is no anchor
    p, n = (2 * draw(number, high=columns // 2, seed=seed) + odd for seed, odd in ((2, 0), (3, 1)))
    other = (a != p) & (a != n)
    return tuple(torch.cat([t[other], t[other][:REPEATED]]) for t in (a, p, n))


def naive_triplets(
    loss: losses.TripletMarginLoss, x: Tensor, y: Tensor, listed: Indices, weight: Tensor
) -> tuple[Tensor, Tensor]:
    """sum w l / sum w over the triplets with l > 0; and what every anchor adds to it, times N."""
    d = {"l2": lambda s: (2 - 2 * s).sqrt(), "squared_l2": lambda s: 2 - 2 * s, "cosine": lambda s: 1 - s}[
        loss.distance
    ]

    def distance(i: int, j: int) -> Tensor:
        return d(x[i] @ y[j] / (x[i].norm() * y[j].norm()))

    rows, active = [x.new_zeros(()) for _ in x], x.new_zeros(())
    for a, p, n in zip(*(t.tolist() for t in listed), strict=True):
        over = distance(a, p) - distance(a, n) + loss.margin
        value = torch.log1p(over.exp()) if loss.smooth_loss else over.clamp_min(0)
        rows[a] = rows[a] + weight[a] * value
        active = active + weight[a] * (value > 0)
    each = torch.stack(rows) / active
    return each.sum(), each * weight.sum()


@pytest.mark.parametrize("dense", [False, True])
@pytest.mark.parametrize(
    "arguments",
    [{}, {"smooth_loss": True, "mining": "all"}, {"distance": "cosine"}, {"distance": "squared_l2"}],
    ids=str,
)
@pytest.mark.parametrize("references", [False, True])
def test_triplets_are_taken_as_they_are(arguments: dict[str, Any], references: bool, dense: bool) -> None:
    x, y = unit(N, SIZE).requires_grad_(), unit(M, SIZE, seed=1).requires_grad_()
    columns, ref_emb = (y, y) if references else (x, None)
    listed = triplets(len(columns))
    weight = torch.rand(N, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    for reduction in ("mean", "none", "sum"):
        loss = losses.TripletMarginLoss(margin=0.1, reduction=reduction, memory_budget=1000, dense=dense, **arguments)
        mean, rows = naive_triplets(loss, x, columns, listed, weight)
        expected = {"mean": mean, "none": rows, "sum": rows.sum()}[reduction]
        agree(loss(x, None, listed, ref_emb, sample_weight=weight), expected, [x, columns])
    twice = naive_triplets(loss, x, columns, listed, torch.ones(N))[1]
    once = naive_triplets(loss, x, columns, tuple(t[:-REPEATED] for t in listed), torch.ones(N))[1]
    assert not torch.allclose(twice, once)  # those listed twice do count twice


def test_hand_worked_triplets() -> None:
    x = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0], [-1.0, 0.0]])
    loss = losses.TripletMarginLoss(margin=0.5, distance="cosine")
    # 1 - s: d(0,1) = 0.4, d(0,2) = 1, d(0,3) = 2, d(2,3) = 1, d(2,1) = 0.2
    listed = torch.tensor([0, 0, 2]), torch.tensor([2, 1, 3]), torch.tensor([1, 3, 1])
    terms = [1 - 0.4 + 0.5, 0.0, 1 - 0.2 + 0.5]  # the second, 0.4 - 2 + 0.5, is not active
    assert loss(x, None, listed).item() == pytest.approx(sum(terms) / 2)


def test_among_pairs_the_mining_goes_on() -> None:
    x = unit(N, SIZE).requires_grad_()
    listed, positive, negative = pairs(N, same=True)
    for mining in ("batch_hard", "easy_positive", "all", "semihard"):
        loss = losses.TripletMarginLoss(mining=mining).double()
        agree(loss(x, None, listed), loss(x, positives=positive, negatives=negative), [x])


# Class-level


@pytest.mark.parametrize("setting", CLASS, ids=str)
def test_classes_weigh_samples(setting: Setting) -> None:
    """Sample i is listed i times in all (0 never), of at most N - 1."""
    x, labels = unit(N, SIZE).requires_grad_(), torch.arange(N) % CLASSES
    often = torch.arange(N).repeat_interleave(torch.arange(N))  # 36 places
    often = often[torch.randperm(len(often), generator=torch.Generator().manual_seed(0))]
    loss = setting.make().eval()
    weight = torch.arange(N, dtype=torch.float64) / (N - 1)
    expected = loss(x, labels, sample_weight=weight)
    for listed in (often.view(3, -1), often.view(4, -1)):
        agree(loss(x, labels, tuple(listed)), expected, parameters(loss, x))
    own = torch.rand(N, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    both = loss(x, labels, tuple(often.view(3, -1)), sample_weight=own)
    agree(both, loss(x, labels, sample_weight=own * weight), [x])
    nothing = (torch.tensor([]),) * 4
    agree(loss(x, labels, nothing), loss(x, labels), [x])


# Nothing, and nonsense


@pytest.mark.parametrize("setting", PAIR, ids=str)
def test_miners_may_find_nothing(setting: Setting) -> None:
    """Zero loss and gradient, without a warning: a miner often does."""
    x = unit(N, SIZE).requires_grad_()
    for reduction in setting.reductions:
        loss = setting.make(reduction=reduction)
        if isinstance(loss, losses.NPairsLoss):
            loss.l2_weight = 0
        elif isinstance(loss, losses.MarginLoss):
            loss.nu = 0
        for parts in (3, 4):
            value = loss(x, None, (torch.tensor([]),) * parts)
            assert value.shape == ((N,) if reduction == "none" else ()) and not value.any()
            (gradient,) = torch.autograd.grad(value.sum(), x)
            assert not gradient.any()


INDEX = torch.arange(3)


@pytest.mark.parametrize(
    ("indices", "error", "message"),
    [
        ((INDEX, INDEX), ValueError, "must be triplets .* or pairs .*, not 2 parts"),
        (INDEX, ValueError, "must be triplets .* or pairs .*, not <class 'torch.Tensor'>"),
        ((INDEX, INDEX, [0, 1, 2]), TypeError, "negatives of indices_tuple must be a torch.Tensor, not list"),
        (
            (INDEX, INDEX.double(), INDEX),
            ValueError,
            r"positives of indices_tuple must be integers of shape \(n,\), not torch.float64",
        ),
        ((INDEX, INDEX, INDEX == 1), ValueError, "negatives of indices_tuple must be integers"),
        ((INDEX[:, None], INDEX, INDEX), ValueError, r"anchors of indices_tuple must be integers .* \(3, 1\)"),
        ((INDEX, INDEX, INDEX, INDEX[:2]), ValueError, "has 2 negatives for 3 anchors: there must be one each"),
        ((INDEX, INDEX[:1], INDEX, INDEX), ValueError, "has 1 positives for 3 anchors"),
        (
            (INDEX, INDEX + 7, INDEX, INDEX),
            ValueError,
            "positives of indices_tuple run from 7 to 9, but there are 9 samples to compare",
        ),
        (
            (INDEX, INDEX, INDEX - 1, INDEX),
            ValueError,
            "anchors of indices_tuple run from -1 to 1, but there are 9 embeddings: 0 to 8",
        ),
        ((INDEX, INDEX + 1, INDEX, INDEX + 1), ValueError, "some pairs both as positive and as negative"),
    ],
)
def test_bad_indices(indices: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        losses.CircleLoss()(unit(N, SIZE), torch.arange(N), indices)
    if "both" not in message:
        with pytest.raises(error, match=message.replace("samples to compare", "samples to compare with")):
            losses.CosFaceLoss(N, SIZE)(unit(N, SIZE), torch.arange(N), indices)
        memory = losses.CrossBatchMemory(losses.CircleLoss(), SIZE, 20)
        with pytest.raises(error, match=message):
            memory(unit(N, SIZE), torch.arange(N), indices)


def test_what_it_does_not_go_with() -> None:
    x, masks = unit(N, SIZE), torch.eye(N) > 0
    with pytest.raises(ValueError, match="either indices_tuple, or positives="):
        losses.CircleLoss()(x, None, (INDEX, INDEX + 1, INDEX + 2), positives=masks)
    with pytest.raises(ValueError, match="8 labels for 9 embeddings"):
        losses.CircleLoss()(x, torch.arange(8), (INDEX, INDEX + 1, INDEX + 2))
    with pytest.raises(ValueError, match="takes its negatives from the batch"):
        losses.InfoNCELoss()(x, x, (INDEX, INDEX + 1, INDEX + 2))
    with pytest.raises(TypeError, match="positional arguments"):
        losses.SelfSupervisedLoss(losses.NTXentLoss())(x, x, (INDEX, INDEX + 1, INDEX + 2))
    memory = losses.CrossBatchMemory(losses.CircleLoss(), SIZE, 20)
    with pytest.raises(ValueError, match="leave enqueue_mask out"):
        memory(x, torch.arange(N), (INDEX, INDEX + 1, INDEX + 2), enqueue_mask=torch.arange(N) < 3)
    memory.miner = lambda *_: (INDEX, INDEX, INDEX, INDEX)
    with pytest.raises(ValueError, match="both be triplets, or both pairs"):
        memory(x, torch.arange(N), (INDEX, INDEX + 1, INDEX + 2))


# Wrappers


def test_sums_and_nested_dimensions_pass_it_on() -> None:
    x, labels = unit(N, SIZE).requires_grad_(), torch.arange(N) % CLASSES
    listed, *_ = pairs(N, same=True)
    pair, classes = losses.CircleLoss().double(), losses.CosFaceLoss(CLASSES, SIZE).double()
    both = 0.5 * pair + classes
    agree(both(x, labels, listed), 0.5 * pair(x, labels, listed) + classes(x, labels, listed), [x])
    nested = losses.MatryoshkaLoss(pair, [2, SIZE])
    agree(nested(x, labels, listed), pair(x[:, :2], labels, listed) + pair(x, labels, listed), [x])
    y = unit(M, SIZE, seed=1).requires_grad_()
    listed, *_ = pairs(M, same=False)
    agree(
        nested(x, None, indices_tuple=listed, ref_emb=y),
        pair(x[:, :2], None, listed, y[:, :2]) + pair(x, None, listed, y),
        [x, y],
    )


def mine_all(x: Tensor, labels: Tensor, y: Tensor, ref_labels: Tensor) -> Indices:
    """Positives of every row, and its nearest negative."""
    alike = labels[:, None] == ref_labels
    nearest = (x @ y.t()).masked_fill(alike, -math.inf).argmax(1)
    return *alike.nonzero().t(), torch.arange(len(x)), nearest


def mine_triplets(x: Tensor, labels: Tensor, y: Tensor, ref_labels: Tensor) -> Indices:
    a1, p, _, nearest = mine_all(x, labels, y, ref_labels)
    return a1, p, nearest[a1]


@pytest.mark.parametrize("name", ["ContrastiveLoss", "TripletMarginLoss", "NTXentLoss"])
@pytest.mark.parametrize("miner", [mine_all, mine_triplets])
def test_memory_with_a_miner(name: str, miner: Any) -> None:
    """The pairs that it finds in a queue, which is a list here, and those given of the batch; never a copy of itself."""
    loss, size = Setting(name, {}).make(), 10
    memory = losses.CrossBatchMemory(loss, SIZE, size, miner).double()
    queue: list[tuple[Tensor, int]] = [(torch.zeros(0), 0)] * size
    entered = 0
    for step in range(4):
        x, labels = unit(4, SIZE, seed=step).requires_grad_(), torch.tensor([0, 0, 1, 2])
        slots = [(entered + i) % size for i in range(4)]
        for slot, vector, label in zip(slots, x, labels.tolist(), strict=True):
            queue[slot] = vector.detach(), label
        entered += 4
        y = torch.stack([vector for vector, _ in queue[:entered]])
        found = miner(x, labels, y, torch.tensor([label for _, label in queue[:entered]]))
        columns = [part.tolist() for part in found]
        if len(found) == 3:
            kept = [t for t in zip(*columns, strict=True) if t[1] != slots[t[0]]]
            given = [(0, 1, 2), (2, 3, 1)]  # in the batch: (2, 3) is not alike, so nothing else lists it
            expected = [*kept, *((a, slots[p], slots[n]) for a, p, n in given)]
            listed = tuple(torch.tensor(t) for t in zip(*expected, strict=True))
            batch = tuple(torch.tensor(t) for t in zip(*given, strict=True))
        else:
            kept = [t for t in zip(*columns[:2], strict=True) if t[1] != slots[t[0]]] + [(2, slots[3])]
            pushed = [*zip(*columns[2:], strict=True), (0, slots[2])]
            listed = *torch.tensor(kept).t(), *torch.tensor(pushed).t()
            batch = tuple(torch.tensor([i]) for i in (2, 3, 0, 2))
        a2, n = listed[-2] if len(listed) == 4 else listed[0], listed[-1]
        both = set(zip(listed[0].tolist(), listed[1].tolist(), strict=True)) & set(
            zip(a2.tolist(), n.tolist(), strict=True)
        )
        if both:  # the nearest negative of 2 may be the copy of 3
            with pytest.raises(ValueError, match="both as positive and as negative"):
                memory(x, labels, batch)
            continue
        agree(memory(x, labels, batch), loss(x, None, listed, y), [x])
    assert int(memory.num_enqueued) == 16
