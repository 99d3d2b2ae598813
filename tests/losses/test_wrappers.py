"""The wrappers against naive code: a queue that is a list, truncated tensors, sums and views spelt out pair by pair."""

import copy
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from nearfar import losses
from tests.losses.settings import CLASSES, SIZE, Setting, unit
from tests.reference import REFERENCES, Case

PAIR = [
    "CircleLoss",
    "ContrastiveLoss",
    "MultiSimilarityLoss",
    "NPairsLoss",
    "NTXentLoss",
    "SupConLoss",
    "TripletMarginLoss",
    "UnifiedLoss",
]
CLASS = [
    Setting("CircleLoss", {"num_classes": CLASSES}),
    Setting("CosFaceLoss", {}),
    Setting("L2SoftmaxLoss", {"scale": 4.0, "learnable": True}),
    Setting("LargeMarginSoftmaxLoss", {"margin": 2.0, "base": 0.0}),
    Setting("ProxyAnchorLoss", {}),
    Setting("SoftmaxLoss", {}),
]
pair_losses = pytest.mark.parametrize("name", PAIR)
X, LABELS = unit(8, SIZE), torch.arange(8) // 2


def make(name: str, **options: Any) -> losses.Loss:
    return Setting(name, {}).make(**options)


def reference(name: str, x: Tensor, columns: Tensor, positive: Tensor, negative: Tensor, **arguments: Any) -> Tensor:
    return REFERENCES[name](Case(x, columns, positive, negative), **arguments)[0]


def assert_same_gradients(value: Tensor, expected: Tensor, tensors: Sequence[Tensor]) -> None:
    """Equal values and gradients, and the gradients are not all zero."""
    torch.testing.assert_close(value, expected)
    ours = torch.autograd.grad(value.sum(), tensors, allow_unused=True, materialize_grads=True)
    theirs = torch.autograd.grad(expected.sum(), tensors, retain_graph=True, allow_unused=True, materialize_grads=True)
    for g, h in zip(ours, theirs, strict=True):
        torch.testing.assert_close(g, h)
    assert any(g.any() for g in ours)


# Cross-batch memory


class NaiveQueue:
    """The last `size` samples as (embedding, label, number) and the pairs of a batch that has just entered."""

    def __init__(self, size: int):
        self.entries: deque[tuple[Tensor, int, int]] = deque(maxlen=size)
        self.entered = 0

    def enter(self, x: Tensor, labels: Tensor) -> list[int]:
        numbers = []
        for vector, label in zip(x, labels.tolist(), strict=True):
            self.entries.append((vector.detach().clone(), label, self.entered))
            numbers.append(self.entered)
            self.entered += 1
        return numbers

    def case(self, x: Tensor, labels: Tensor, numbers: list[int] | None) -> Case:
        """The pairs of rows that have entered under these numbers, or not at all."""
        numbers = [-1] * len(x) if numbers is None else numbers
        positive, negative = (torch.zeros(len(x), len(self.entries), dtype=torch.bool) for _ in range(2))
        for r, (label, number) in enumerate(zip(labels.tolist(), numbers, strict=True)):
            for c, (_, other_label, other_number) in enumerate(self.entries):
                positive[r, c] = label == other_label and number != other_number
                negative[r, c] = label != other_label
        return Case(x, torch.stack([vector for vector, _, _ in self.entries]), positive, negative)


# Class ids that no float holds, and batches that fill the memory of 9 in the third step and wrap around in it.
IDS = torch.tensor([2**62 + 1, 2**62, -5])
BATCHES = [
    (unit(n, SIZE, seed=n + 10 * step).requires_grad_(), IDS[torch.arange(n) % 3])
    for step, n in enumerate([5, 3, 4, 9, 1, 6])
]
MEMORY = 9


@pair_losses
@pytest.mark.parametrize("dense", [False, True])
def test_memory_equals_a_list(name: str, dense: bool) -> None:
    memory, queue = losses.CrossBatchMemory(make(name, dense=dense), SIZE, MEMORY).double(), NaiveQueue(MEMORY)
    wrapped = 0
    for x, labels in BATCHES:
        state = copy.deepcopy(memory.state_dict())
        beforehand = memory.eval()(x, labels)
        with torch.no_grad():
            torch.testing.assert_close(memory.train()(x, labels), beforehand)
        torch.testing.assert_close(memory.state_dict(), state, rtol=0, atol=0)

        value = memory(x, labels)
        numbers = queue.enter(x, labels)
        assert_same_gradients(value, REFERENCES[name](queue.case(x, labels, numbers))[0], [x])
        torch.testing.assert_close(beforehand, value)

        kept = torch.stack([vector for vector, _, _ in queue.entries])
        position = queue.entered % MEMORY if queue.entered > MEMORY else 0
        torch.testing.assert_close(memory.embedding_memory[: len(kept)].roll(-position, 0), kept, rtol=0, atol=0)
        assert memory.label_memory[: len(kept)].roll(-position).tolist() == [label for _, label, _ in queue.entries]
        wrapped += 0 < position < len(x)
    assert queue.entered > 2 * MEMORY and wrapped


def test_memory_of_rows_and_sample_weights() -> None:
    weight = torch.tensor([0.5, 2.0, 0.0, 1.0, 3.0], dtype=torch.float64)
    for reduction in ("mean", "none"):
        memory = losses.CrossBatchMemory(make("CircleLoss", reduction=reduction), SIZE, MEMORY).double()
        queue = NaiveQueue(MEMORY)
        for step in range(3):
            x, labels = unit(5, SIZE, seed=step).requires_grad_(), torch.tensor([0, 1, 0, 1, 0])
            value = memory(x, labels, sample_weight=weight)
            case = replace(queue.case(x, labels, queue.enter(x, labels)), sample_weight=weight)
            mean, rows = REFERENCES["CircleLoss"](case)
            assert_same_gradients(value, mean if reduction == "mean" else rows, [x])


def test_first_batch_is_compared_with_itself() -> None:
    """With an empty memory the value is that of the loss within the batch; the gradient is that of the rows alone."""
    x = X.clone().requires_grad_()
    value = losses.CrossBatchMemory(make("TripletMarginLoss"), SIZE, 8).double()(x, LABELS)
    inside = make("TripletMarginLoss")(x, LABELS)
    torch.testing.assert_close(value, inside)
    assert not torch.allclose(*(torch.autograd.grad(v, x)[0] for v in (value, inside)))


def test_the_papers_code_adds_the_loss_within_the_batch() -> None:
    loss = make("ContrastiveLoss")
    both, queue = (loss + 0.5 * losses.CrossBatchMemory(loss, SIZE, MEMORY)).double(), NaiveQueue(MEMORY)
    for x, labels in BATCHES[:4]:
        value = both(x, labels)
        other = ~torch.eye(len(x), dtype=torch.bool)
        alike = labels[:, None] == labels
        inside = reference("ContrastiveLoss", x, x, alike & other, ~alike)
        across = REFERENCES["ContrastiveLoss"](queue.case(x, labels, queue.enter(x, labels)))[0]
        assert_same_gradients(value, inside + 0.5 * across, [x])


@pytest.mark.parametrize("name", ["CircleLoss", "SupConLoss"])
def test_enqueue_mask(name: str) -> None:
    memory, queue = losses.CrossBatchMemory(make(name), SIZE, MEMORY).double(), NaiveQueue(MEMORY)
    for step in range(4):
        x, labels = unit(10, SIZE, seed=step).requires_grad_(), torch.arange(10) % 3
        enters = torch.arange(10) % 5 < 3
        value = memory(x, labels, enqueue_mask=enters)
        queue.enter(x[enters], labels[enters])
        assert_same_gradients(value, REFERENCES[name](queue.case(x[~enters], labels[~enters], None))[0], [x])
    assert int(memory.num_enqueued) == 24


@pytest.mark.filterwarnings("ignore:.*the loss and its gradient are zero")
def test_enqueue_mask_of_all_or_none() -> None:
    memory, x = losses.CrossBatchMemory(make("CircleLoss"), SIZE, 8).double(), X.clone().requires_grad_()
    nobody = torch.zeros(8, dtype=torch.bool)
    for mask, entered in ((nobody, 0), (~nobody, 8)):
        value = memory(x, LABELS, enqueue_mask=mask)
        value.backward()
        assert value.item() == 0 and not x.grad.any()  # type: ignore[union-attr]
        assert int(memory.num_enqueued) == entered
    assert memory(x, LABELS, enqueue_mask=nobody) > 0


@pytest.mark.filterwarnings("ignore:.*the loss and its gradient are zero")
def test_empty_batch_leaves_the_memory_alone() -> None:
    memory = losses.CrossBatchMemory(make("CircleLoss"), SIZE, 8).double()
    for filled in (0, 8):
        x = X[:0].clone().requires_grad_()
        memory(x, LABELS[:0]).backward()
        assert x.grad is not None and int(memory.num_enqueued) == filled
        memory.enqueue(X, LABELS)


def test_memory_reloads_and_goes_on() -> None:
    """At every moment: empty, half full, full and wrapped around."""
    going = losses.CrossBatchMemory(make("CircleLoss"), SIZE, MEMORY).double()
    assert set(going.state_dict()) == {"embedding_memory", "label_memory", "num_enqueued"}
    for moment in range(len(BATCHES)):
        reloaded = losses.CrossBatchMemory(make("CircleLoss"), SIZE, MEMORY).double()
        reloaded.load_state_dict(copy.deepcopy(going.state_dict()))
        original = copy.deepcopy(going)
        for x, labels in BATCHES[moment:]:
            torch.testing.assert_close(reloaded(x, labels), original(x, labels), rtol=0, atol=0)
            torch.testing.assert_close(reloaded.state_dict(), original.state_dict(), rtol=0, atol=0)
        going(*BATCHES[moment])


def test_enqueue_and_reset() -> None:
    by_hand, by_training = (losses.CrossBatchMemory(make("CircleLoss"), SIZE, MEMORY).double() for _ in range(2))
    fresh = copy.deepcopy(by_hand.state_dict())
    for x, labels in BATCHES:
        by_hand.enqueue(x, labels)
        by_training(x, labels)
        torch.testing.assert_close(by_hand.state_dict(), by_training.state_dict(), rtol=0, atol=0)
    assert not by_hand.embedding_memory.requires_grad
    by_hand.reset_queue()
    torch.testing.assert_close(by_hand.state_dict(), fresh, rtol=0, atol=0)


def test_the_queue_may_move_before_backward() -> None:
    memory = losses.CrossBatchMemory(make("CircleLoss"), SIZE, MEMORY).double()
    values, expected = [], []
    for x, labels in BATCHES[:4]:
        value = copy.deepcopy(memory)(x, labels)
        expected += torch.autograd.grad(value, x)
        values.append(memory(x, labels))
    grads = torch.autograd.grad(sum(values), [x for x, _ in BATCHES[:4]])  # type: ignore[arg-type]
    torch.testing.assert_close(list(grads), expected)


def test_rows_that_need_the_old_queue_say_so() -> None:
    """reduction="none" looks at the columns in backward: if they have changed by then, torch raises."""
    memory = losses.CrossBatchMemory(make("CircleLoss", reduction="none"), SIZE, MEMORY).double()
    first, _ = memory(*BATCHES[0]).sum(), memory(*BATCHES[1])
    with pytest.raises(RuntimeError, match="inplace operation"):
        first.backward()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_memory_keeps_its_dtype(dtype: torch.dtype) -> None:
    memory, exact = (losses.CrossBatchMemory(make("ContrastiveLoss"), SIZE, MEMORY) for _ in range(2))
    for x, labels in BATCHES[:3]:
        low = x.detach().to(dtype).requires_grad_()
        value = memory(low, labels)
        torch.testing.assert_close(value, exact(low.detach().float().requires_grad_(), labels), rtol=1e-5, atol=1e-6)
        assert torch.autograd.grad(value, low)[0].dtype == dtype
    assert memory.embedding_memory.dtype == torch.float32


def test_memory_refuses() -> None:
    with pytest.raises(ValueError, match=r"CosFaceLoss with num_classes .* CrossBatchMemory goes with pair-level"):
        losses.CrossBatchMemory(losses.CosFaceLoss(CLASSES, SIZE), SIZE)
    with pytest.raises(ValueError, match="pair-level"):
        losses.CrossBatchMemory(losses.CircleLoss() + losses.ProxyAnchorLoss(CLASSES, SIZE), SIZE)
    for sizes in ((0, 8), (SIZE, 0)):
        with pytest.raises(ValueError, match="must be a positive number"):
            losses.CrossBatchMemory(losses.CircleLoss(), *sizes)
    memory = losses.CrossBatchMemory(losses.CircleLoss(check_finite=True), SIZE, 8).double()
    bad = X.clone()
    bad[2, 0] = torch.nan
    mask = torch.ones(8, dtype=torch.bool)
    for arguments, error, message in [
        ((X, torch.ones(8, CLASSES, dtype=torch.bool)), ValueError, r"one class id per sample: labels must be \(N,\)"),
        ((X, LABELS.double()), TypeError, r"labels.long\(\)"),
        ((X, LABELS[:3]), ValueError, "3 labels for 8"),
        ((X[:, :3], LABELS), ValueError, "3 dimensions, but the loss was made with 6"),
        ((unit(9, SIZE), torch.arange(9)), ValueError, "batch of 9 does not fit into memory_size=8"),
        ((bad, LABELS), ValueError, "NaN"),
    ]:
        with pytest.raises(error, match=message):
            memory(*arguments)
    for wrong in (mask[:3], mask.long()):
        with pytest.raises(ValueError, match=r"enqueue_mask must be a boolean mask of shape \(8,\)"):
            memory(X, LABELS, enqueue_mask=wrong)
    assert int(memory.num_enqueued) == 0 and not memory.embedding_memory.any()


# Matryoshka

DIMS = {4: 0.5, 1: 2.0, SIZE: 1.0}


@pytest.mark.parametrize("setting", CLASS, ids=str)
def test_matryoshka_of_class_weights(setting: Setting) -> None:
    loss = setting.make()
    nested = losses.MatryoshkaLoss(loss, list(DIMS), list(DIMS.values()))
    x, labels = unit(8, SIZE).requires_grad_(), torch.tensor([0, 1, 2, 3, 4, 0, 1, 2])
    assert loss.weight is not None
    positive = labels[:, None] == torch.arange(CLASSES)
    expected, parts = torch.zeros((), dtype=torch.float64), {}
    for d, weight in DIMS.items():
        parts[d] = setting.reference(loss)(Case(x[:, :d], loss.weight[:, :d], positive, ~positive, bias=loss.bias))[0]
        expected = expected + weight * parts[d]
    before, shape = loss.weight, loss.weight.shape
    assert_same_gradients(nested(x, labels), expected, [x, *loss.parameters()])
    assert loss.weight is before and loss.weight.shape == shape
    torch.testing.assert_close(nested.parts(x, labels), parts)
    assert list(nested.parts(x, labels)) == list(DIMS)


@pair_losses
def test_matryoshka_of_pairs(name: str) -> None:
    nested = losses.MatryoshkaLoss(make(name), list(DIMS))
    x, y = unit(8, SIZE).requires_grad_(), unit(5, SIZE, seed=1).requires_grad_()
    labels, ref_labels = LABELS, torch.arange(5)
    alike, other = labels[:, None] == labels, ~torch.eye(8, dtype=torch.bool)
    expected = sum(reference(name, x[:, :d], x[:, :d], alike & other, ~alike) for d in DIMS)
    assert_same_gradients(nested(x, labels), expected, [x])  # type: ignore[arg-type]
    assert_same_gradients(nested(x, positives=alike, negatives=~alike), expected, [x])  # type: ignore[arg-type]

    alike = labels[:, None] == ref_labels
    expected = sum(reference(name, x[:, :d], y[:, :d], alike, ~alike) for d in DIMS)
    assert_same_gradients(nested(x, labels, ref_emb=y, ref_labels=ref_labels), expected, [x, y])  # type: ignore[arg-type]


def test_matryoshka_takes_one_step_per_call() -> None:
    """SphereFace's annealing goes on by one, and every dimension sees the same λ."""
    loss = Setting("SphereFaceLoss", {"margin": 2.0, "base": 10.0}).make()
    alone = copy.deepcopy(loss)
    nested = losses.MatryoshkaLoss(loss, [2, SIZE])
    x = X.clone().requires_grad_()
    for step in range(3):
        parts = nested.parts(x, LABELS)
        assert int(loss.iteration) == step + 1  # type: ignore[call-overload]
        torch.testing.assert_close(parts[SIZE], alone(x, LABELS))
        with torch.no_grad():
            again = copy.deepcopy(alone)
            again.iteration -= 1  # type: ignore[operator]
            again.weight = nn.Parameter(alone.weight[:, :2])  # type: ignore[index]
            torch.testing.assert_close(parts[2], again(x[:, :2], LABELS))


def test_matryoshka_inside_a_memory_and_around_a_sum() -> None:
    proxies = losses.ProxyAnchorLoss(CLASSES, SIZE).double()
    sum_inside = losses.MatryoshkaLoss(make("CircleLoss") + 0.5 * proxies, [2, SIZE])
    sum_outside = losses.MatryoshkaLoss(make("CircleLoss"), [2, SIZE]) + losses.MatryoshkaLoss(
        proxies, [2, SIZE], [0.5, 0.5]
    )
    x = X.clone().requires_grad_()
    assert_same_gradients(sum_inside(x, LABELS), sum_outside(x, LABELS), [x, proxies.weight])  # type: ignore[list-item]

    memory = losses.CrossBatchMemory(losses.MatryoshkaLoss(make("CircleLoss"), [2, SIZE]), SIZE, MEMORY).double()
    queue = NaiveQueue(MEMORY)
    for x, labels in BATCHES[:4]:
        value = memory(x, labels)
        case = queue.case(x, labels, queue.enter(x, labels))
        expected = sum(
            reference("CircleLoss", x[:, :d], case.columns[:, :d], case.positive, case.negative) for d in (2, SIZE)
        )
        assert_same_gradients(value, expected, [x])  # type: ignore[arg-type]


def test_matryoshka_survives_an_error() -> None:
    loss = losses.CosFaceLoss(CLASSES, SIZE).double()
    nested = losses.MatryoshkaLoss(loss, [2, SIZE])
    with pytest.raises(ValueError, match="labels run from"):
        nested(X, LABELS + 3)
    assert loss.weight is not None and loss.weight.shape == (CLASSES, SIZE)
    assert isinstance(loss.weight, nn.Parameter) and nested(X, LABELS) > 0


def test_matryoshka_refuses() -> None:
    loss = losses.CircleLoss()
    for dims in ([], [0, 2], [2, 2], [-1]):
        with pytest.raises(ValueError, match="dims must be different numbers"):
            losses.MatryoshkaLoss(loss, dims)
    with pytest.raises(TypeError):
        losses.MatryoshkaLoss(loss, [2.5])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="1 weights for 2 dims"):
        losses.MatryoshkaLoss(loss, [2, 4], [1.0])
    with pytest.raises(ValueError, match="not negative"):
        losses.MatryoshkaLoss(loss, [2], [-1.0])
    with pytest.raises(ValueError, match="dims go up to 8, but weight of the loss has 6"):
        losses.MatryoshkaLoss(losses.CosFaceLoss(CLASSES, SIZE), [2, 8])
    with pytest.raises(ValueError, match=r"write CrossBatchMemory\(Matryoshka"):
        losses.MatryoshkaLoss(losses.CrossBatchMemory(loss, SIZE), [2])
    with pytest.raises(ValueError, match="embeddings have 6 dimensions, but dims go up to 8"):
        losses.MatryoshkaLoss(loss, [2, 8])(X, LABELS)
    with pytest.raises(ValueError, match="3 dimensions, but the loss was made with 6"):
        losses.MatryoshkaLoss(losses.CosFaceLoss(CLASSES, SIZE), [2])(X[:, :3], LABELS)


# Sums


def test_sum_equals_its_parts() -> None:
    circle, proxies = make("CircleLoss"), losses.ProxyAnchorLoss(CLASSES, SIZE).double()
    loss = 0.5 * circle + proxies * 3
    x, alike, other = X.clone().requires_grad_(), LABELS[:, None] == LABELS, ~torch.eye(8, dtype=torch.bool)
    target = LABELS[:, None] == torch.arange(CLASSES)
    assert proxies.weight is not None
    parts = {
        "CircleLoss": reference("CircleLoss", x, x, alike & other, ~alike),
        "ProxyAnchorLoss": reference("ProxyAnchorLoss", x, proxies.weight, target, ~target),
    }
    expected = 0.5 * parts["CircleLoss"] + 3 * parts["ProxyAnchorLoss"]
    assert_same_gradients(loss(x, LABELS), expected, [x, proxies.weight])
    torch.testing.assert_close(loss.parts(x, LABELS), parts)
    assert list(loss.parameters()) == [proxies.weight]
    assert list(loss.state_dict()) == ["losses.ProxyAnchorLoss.weight"]
    again = 0.5 * make("CircleLoss") + 3 * losses.ProxyAnchorLoss(CLASSES, SIZE).double()
    again.load_state_dict(loss.state_dict())
    torch.testing.assert_close(again(x, LABELS), loss(x, LABELS), rtol=0, atol=0)


def test_sums_are_flat_and_named() -> None:
    a, b, c = losses.CircleLoss(), losses.SupConLoss(), losses.CircleLoss(m=0.1)
    loss = 2 * (a + 0.5 * (b + c)) + losses.MatryoshkaLoss(a, [2])
    assert loss.weights == {"CircleLoss": 2, "SupConLoss": 1, "CircleLoss_2": 1, "MatryoshkaLoss": 1}
    assert list(loss.losses.values())[:3] == [a, b, c]
    assert sum([a, b, c]).weights == {"CircleLoss": 1, "SupConLoss": 1, "CircleLoss_2": 1}  # type: ignore[union-attr]
    assert sum([a]) is a
    assert (a + a).weights == {"CircleLoss": 1, "CircleLoss_2": 1}
    torch.testing.assert_close((a + a)(X, LABELS), 2 * a(X, LABELS))
    assert (0 * a)(X, LABELS) == 0
    assert "'SupConLoss': 1.0" in repr(loss)


@pytest.mark.parametrize("wrap", [lambda a: losses.CrossBatchMemory(a, SIZE), lambda a: losses.MatryoshkaLoss(a, [2])])
def test_wrappers_add_up(wrap: Any) -> None:
    a = losses.SupConLoss()
    for loss in (wrap(a) * 2 + a, a + 2 * wrap(a), sum([wrap(a), wrap(a), a])):
        value = loss.double()(X, LABELS)
        torch.testing.assert_close(value, 2 * wrap(a).double()(X, LABELS) + a(X, LABELS))


def test_any_module_can_be_added() -> None:
    class Norms(nn.Module):
        def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
            return embeddings.square().sum(1).mean()

    a = losses.CircleLoss()
    for loss in (a + Norms(), Norms() + a):
        torch.testing.assert_close(loss(X, LABELS), a(X, LABELS) + X.square().sum(1).mean())  # type: ignore[operator]


def test_sum_refuses() -> None:
    a = losses.CircleLoss()
    for factor in ("2", None, True, torch.tensor([1.0, 2.0]), a):
        with pytest.raises(TypeError, match="multiplied by a number"):
            a * factor  # type: ignore[operator]
    for factor in (-1, -0.5, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="not negative"):
            factor * a
    for term in (3, None, "x", X):
        with pytest.raises(TypeError, match="only losses can be added to losses"):
            a + term  # type: ignore[operator]
    with pytest.raises(TypeError, match="only losses can be added to losses"):
        3 + a
    with pytest.raises(ValueError, match="at least one"):
        losses.SumLoss([])
    with pytest.raises(ValueError, match="1 weights for 2 losses"):
        losses.SumLoss([a, a], [1.0])
    uneven = a + losses.SupConLoss(reduction="none")
    with pytest.raises(ValueError, match=r"different shapes, .*'SupConLoss': \(8,\).* one reduction"):
        uneven(X, LABELS)


def test_sum_of_rows() -> None:
    a, b = losses.CircleLoss(reduction="none"), losses.SupConLoss(reduction="none")
    torch.testing.assert_close((a + 2 * b)(X, LABELS), a(X, LABELS) + 2 * b(X, LABELS))


# Two views


@pair_losses
@pytest.mark.parametrize("symmetric", [True, False])
def test_views(name: str, symmetric: bool) -> None:
    loss = losses.SelfSupervisedLoss(make(name), symmetric)
    one, two = unit(5, SIZE).requires_grad_(), unit(5, SIZE, seed=1).requires_grad_()
    if symmetric:
        x = columns = torch.cat([one, two])
        positive = torch.tensor([[abs(i - j) == 5 for j in range(10)] for i in range(10)])
        negative = torch.tensor([[i % 5 != j % 5 for j in range(10)] for i in range(10)])
    else:
        x, columns = one, two
        positive = torch.eye(5, dtype=torch.bool)
        negative = ~positive
    assert_same_gradients(loss(one, two), reference(name, x, columns, positive, negative), [one, two])


def test_views_refuse() -> None:
    with pytest.raises(ValueError, match="SelfSupervisedLoss goes with pair-level"):
        losses.SelfSupervisedLoss(losses.CosFaceLoss(CLASSES, SIZE))
    with pytest.raises(ValueError, match="a memory needs labels"):
        losses.SelfSupervisedLoss(losses.CrossBatchMemory(losses.CircleLoss(), SIZE))
    loss = losses.SelfSupervisedLoss(losses.NTXentLoss())
    with pytest.raises(ValueError, match=r"one shape, not \(8, 6\) and \(7, 6\)"):
        loss(X, X[:7])
    with pytest.raises(TypeError, match="ref_emb must be floating point"):
        loss(X, X.long())


def test_views_of_sums_and_matryoshka() -> None:
    a, b = losses.NTXentLoss(), losses.MatryoshkaLoss(losses.SupConLoss(), [2, SIZE])
    one, two = unit(5, SIZE), unit(5, SIZE, seed=1)
    inside = losses.SelfSupervisedLoss(a + b, symmetric=False)
    outside = losses.SelfSupervisedLoss(a, symmetric=False) + losses.SelfSupervisedLoss(b, symmetric=False)
    torch.testing.assert_close(inside(one, two), outside(one, two))


@pytest.mark.filterwarnings("ignore")
def test_compiled() -> None:
    """torch.compile of a step that holds a network and the wrappers: the same gradients, the same queue."""
    torch.manual_seed(0)
    net, images = nn.Linear(9, SIZE), torch.randn(8, 9)
    loss = losses.MatryoshkaLoss(losses.CosFaceLoss(CLASSES, SIZE), [2, SIZE]) + losses.CrossBatchMemory(
        losses.CircleLoss(), SIZE, 12
    )

    def run(compiled: bool) -> tuple[list[Tensor], dict[str, Tensor]]:
        mine = copy.deepcopy(loss)

        def step(images: Tensor) -> Tensor:
            return mine(torch.relu(net(images)) * 2, LABELS) * 3

        step = torch.compile(step, backend="aot_eager") if compiled else step
        grads: list[Tensor] = []
        for _ in range(2):
            grads += torch.autograd.grad(step(images), [net.weight, *mine.parameters()])
        return grads, mine.state_dict()

    torch.testing.assert_close(run(True), run(False))


def test_what_nested_dimensions_refuse() -> None:
    loss = losses.MatryoshkaLoss(losses.CircleLoss(), [2, 4])
    with pytest.raises(ValueError, match=r"must be \(batch, dimension\)"):
        loss(torch.randn(8), torch.arange(8) // 2)
    with pytest.raises(TypeError, match=r"torch.Tensor"):
        loss(torch.randn(8, 4).numpy(), torch.arange(8) // 2)
    with pytest.raises(ValueError, match="embeddings have 3 dimensions, but dims go up to 4"):
        loss(torch.randn(8, 3), torch.arange(8) // 2)
