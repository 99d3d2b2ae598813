"""What a rank has a part of: memory, classes drawn, bytes sent, states."""

import functools
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from nearfar import losses
from nearfar.losses.distributed import count_traffic, distribute, full_state, is_sharded, load_full_state
from tests.losses.distributed.comparing import SIZE, batch, compare, in_double, own, same
from tests.losses.distributed.processes import Check
from tests.losses.settings import DEFAULTS, Setting


def by_parts() -> Iterator[tuple[str, Check]]:
    """What no rank holds, what is drawn, and what is sent."""
    for setting in DEFAULTS:
        if setting.class_level:
            yield f"{setting}, memory", functools.partial(no_whole, setting)
            if setting.name != "CenterLoss":
                yield f"{setting}, drawn classes", functools.partial(same_classes_drawn, setting)
    yield "traffic of pairs", traffic_of_pairs
    yield "traffic of classes", traffic_of_classes
    yield "traffic of proxies", traffic_of_proxies
    yield "states", states
    yield "drawn weights", drawn_weights
    yield "a world of one", one_rank


class LargestTensor(TorchDispatchMode):
    """The bytes of the largest memory of a tensor that any operator gives."""

    def __init__(self) -> None:
        super().__init__()
        self.largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in torch.utils._pytree.tree_leaves(result):
            if isinstance(tensor, Tensor) and not tensor.is_meta:
                held = tensor.to_local() if isinstance(tensor, DTensor) else tensor
                self.largest = max(self.largest, held.untyped_storage().nbytes())
        return result


def no_whole(setting: Setting) -> None:
    """A step with many classes, whose weights every rank draws for itself: nobody has all of them, nor the
    similarities of the batch to all.
    """
    classes, size, n = 24_000, 16, 4
    world, k = dist.get_world_size(), 3 if setting.name in ("SubCenterArcFaceLoss", "SoftTripleLoss") else 1
    arguments = {"SubCenterArcFaceLoss": {"sub_centers": 3}, "SoftTripleLoss": {"centers_per_class": 3}}
    torch.manual_seed(dist.get_rank())
    x = torch.randn(n, size, requires_grad=True)
    labels = torch.randint(classes, (n,))
    with LargestTensor() as seen:
        made = setting.info.loss(
            num_classes=classes,
            embedding_size=size,
            sharded=True,
            memory_budget=10**6,
            **arguments.get(setting.name, {}),
        )
        loss = distribute(made)
        loss(x, labels).backward()
    held = loss.centers if setting.name == "CenterLoss" else loss.weight
    assert isinstance(held, DTensor) and len(held) == classes
    assert held.to_local().numel() == classes * k * size // world
    whole = min(classes * k * size, classes * n * world) * x.element_size()
    assert held.to_local().nbytes <= seen.largest < whole, (seen.largest, whole)
    assert x.grad is not None and bool(x.grad.any())


def same_classes_drawn(setting: Setting) -> None:
    """Steps in which not all classes take part: the same classes whatever the number of ranks, those of the batch
    always, and nothing else than a loss of these classes alone.
    """
    alone, _ = dist.new_subgroups(group_size=1)
    world, classes = dist.get_world_size(), 40
    plain = setting.make(seed=3, num_classes=classes, embedding_size=SIZE)
    shared = setting.make(seed=3, num_classes=classes, embedding_size=SIZE)
    plain = distribute(plain, alone, sample_rate=0.3, seed=4, sharded=False)
    shared = distribute(shared, sample_rate=0.3, seed=4, sharded=True)
    drawn = []
    for step in range(2):
        x, labels, counts = batch(step)
        whole, here = x.clone().requires_grad_(), own(x, counts).requires_grad_()
        plain.zero_grad()
        shared.zero_grad()
        expected, value = plain(whole, labels), shared(here, own(labels, counts))
        same(value, expected, "value")
        expected.backward()
        value.backward()
        assert whole.grad is not None and here.grad is not None
        same(here.grad / world, own(whole.grad, counts), "gradient")
        compare(plain, shared)
        assert plain.sampled is not None and set(labels.tolist()) <= set(plain.sampled.tolist())
        assert 0 < len(plain.sampled) < classes
        drawn.append(plain.sampled.tolist())
        untouched = torch.ones(classes, dtype=torch.bool)
        untouched[plain.sampled] = False
        by_class = plain.weight.grad.view(classes, -1)  # type: ignore[union-attr]
        assert not bool(by_class[untouched].any())
    assert drawn[0] != drawn[1] and int(shared.sampling_step) == 2
    plain.eval()
    plain(x, labels)
    assert plain.sampled is None and int(plain.sampling_step) == 2


def traffic_of_pairs() -> None:
    """Embeddings once to all ranks, and their gradients back; labels, counts and a sum or two besides."""
    world, n, size = dist.get_world_size(), 8, 64
    loss = distribute(losses.CircleLoss())
    x = torch.randn(n, size, dtype=torch.float64, requires_grad=True)
    with count_traffic() as traffic:
        loss(x, torch.arange(n) // 2).backward()
    embeddings = n * size * 8 * (world - 1)
    assert traffic.by_kind["reduce_scatter"] == embeddings
    assert traffic.by_kind["all_gather"] == embeddings + (n * 8 + 8) * (world - 1)
    assert traffic.by_kind["all_reduce"] <= 6 * 16
    assert traffic.sent == traffic.by_kind.total()


def traffic_of_classes() -> None:
    """The same, and four numbers a row: two maxima, two sums. It does not depend on the number of classes."""
    world, n, size = dist.get_world_size(), 8, 64
    sent = []
    for classes in (64, 640):
        loss = distribute(losses.CosFaceLoss(classes, size).double(), sharded=True)
        x = torch.randn(n, size, dtype=torch.float64, requires_grad=True)
        with count_traffic() as traffic:
            loss(x, torch.arange(n)).backward()
        embeddings = n * size * 8 * (world - 1)
        assert traffic.by_kind["reduce_scatter"] == embeddings
        assert traffic.by_kind["all_gather"] == embeddings + (n * 8 + 8) * (world - 1)
        assert traffic.by_kind["all_reduce"] == 4 * n * world * 8 * 2 * (world - 1) // world
        sent.append(traffic.sent)
    assert sent[0] == sent[1]


def traffic_of_proxies() -> None:
    """No similarities at all are exchanged, and no statistics of rows: only how many proxies are present."""
    world, n, size = dist.get_world_size(), 8, 64
    loss = distribute(losses.ProxyAnchorLoss(64, size).double(), sharded=True)
    x = torch.randn(n, size, dtype=torch.float64, requires_grad=True)
    with count_traffic() as traffic:
        loss(x, torch.arange(n)).backward()
    assert traffic.by_kind["all_reduce"] <= 6 * 8 * 2
    assert traffic.by_kind["reduce_scatter"] == n * size * 8 * (world - 1)


def states() -> None:
    """A plain state goes in, and comes out again."""
    for make in (
        lambda: losses.SoftTripleLoss(5, SIZE, 3),
        lambda: losses.SoftmaxLoss(5, SIZE) + losses.CenterLoss(5, SIZE),
        lambda: losses.MatryoshkaLoss(losses.L2SoftmaxLoss(5, SIZE, learnable=True), [2, SIZE]),
    ):
        torch.manual_seed(1)
        saved = make().state_dict()
        loss = distribute(make(), sharded=True, sample_rate=0.5)
        load_full_state(loss, saved)
        state = full_state(loss)
        if dist.get_rank() == 0:
            assert state.keys() == saved.keys()
            for name, tensor in saved.items():
                assert torch.equal(state[name], tensor), name
            make().load_state_dict(state)
        else:
            assert state == {}


def drawn_weights() -> None:
    """Weights drawn by ranks, each its part, are those that one process draws."""
    alone, _ = dist.new_subgroups(group_size=1)
    for make in (
        lambda: losses.CosFaceLoss(9000, 3, sharded=True),
        lambda: losses.SubCenterArcFaceLoss(5000, 3, sub_centers=2, sharded=True),
        lambda: losses.CenterLoss(5000, 3, sharded=True),
        lambda: losses.SoftmaxLoss(50, 3, sharded=True),
    ):
        whole = distribute(make(), alone, sharded=False, seed=7).state_dict()
        state = full_state(distribute(make(), seed=7))
        if dist.get_rank() == 0:
            for name, tensor in whole.items():
                assert torch.equal(state[name], tensor), name
        spread = whole.get("weight", whole.get("centers"))
        assert spread is not None and len(torch.unique(spread)) > 0.9 * min(spread.numel(), 10_000)
        if "weight" in whole and len(spread) > 100:
            assert abs(float(spread.std()) / (2 / len(spread)) ** 0.5 - 1) < 0.05


def one_rank() -> None:
    """A group of one process has all classes, in a table that is sharded all the same."""
    alone, _ = dist.new_subgroups(group_size=1)
    make = in_double(lambda: losses.SoftTripleLoss(5, SIZE, 2))
    plain, single = make(), distribute(make(), alone, sharded=True)
    assert is_sharded(single.weight) and single.weight.shape == (5, 2, SIZE)
    x, labels, _ = batch()
    values = [loss(x, labels) for loss in (plain, single)]
    same(values[1], values[0], "value")
    for value in values:
        value.backward()
    same(single.weight.grad.to_local().flatten(0, 1), plain.weight.grad, "gradient")
    assert torch.equal(full_state(single)["weight"], plain.weight.detach())
