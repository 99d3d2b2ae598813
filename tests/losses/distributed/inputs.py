"""What a loss can be given, on all ranks of a world."""

import functools
import warnings
from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist
from torch import nn

from nearfar import losses
from nearfar.losses.distributed import distribute
from tests.losses.distributed.comparing import CLASSES, SIZE, batch, compare, equal, in_double, own, same
from tests.losses.distributed.processes import Check
from tests.losses.distributed.variants import OfClasses


def inputs() -> Iterator[tuple[str, Check]]:
    """Weights, labels of several kinds, masks, other samples to compare with, and what miners find."""
    generator = torch.Generator().manual_seed(8)
    x, labels, _ = batch()
    n, c = len(x), CLASSES[dist.get_world_size()]
    weight = torch.rand(n, generator=generator, dtype=torch.float64)
    weight[0] = 0
    many = torch.rand(n, c, generator=generator) < 0.3
    many[:, 0] |= ~many.any(1)
    near = torch.rand(n, n, generator=generator) < 0.3
    far = ~near & (torch.rand(n, n, generator=generator) < 0.8)
    other, other_labels = torch.randn(n, SIZE, generator=generator, dtype=torch.float64), labels.flip(0)
    pair_level = [
        losses.CircleLoss,
        losses.ContrastiveLoss,
        losses.SmoothAPLoss,
        losses.HistogramLoss,
        losses.AngularLoss,
    ]
    class_level = [losses.CosFaceLoss, losses.ProxyAnchorLoss, losses.SoftTripleLoss, losses.SoftmaxLoss]
    for kind in pair_level:
        make = in_double(kind)
        for name, given in {
            "several labels": {"labels": many.long()},
            "masks": {"positives": near, "negatives": far},
            "one mask": {"positives": near},
            "references": {"ref_emb": other, "ref_labels": other_labels},
            "weights": {"sample_weight": weight},
        }.items():
            if name != "weights" or kind is not losses.HistogramLoss:
                yield f"{kind.__name__}, {name}", functools.partial(equal, make, given)
    for kind in class_level:
        make = in_double(functools.partial(kind, c, SIZE))
        for name, given in {
            "several labels": {"labels": many.long()},
            "masks": {"positives": many, "negatives": ~many & (torch.rand(n, c, generator=generator) < 0.8)},
            "weights": {"sample_weight": weight},
        }.items():
            yield f"{kind.__name__}, {name}", functools.partial(equal, make, given, sharded=True)
    yield "mined pairs", functools.partial(mined, in_double(losses.CircleLoss))
    yield "mined triplets", functools.partial(mined, in_double(losses.TripletMarginLoss))
    yield "mined samples of classes", functools.partial(mined, in_double(lambda: losses.CosFaceLoss(c, SIZE)))
    yield (
        "several classes, every positive",
        functools.partial(
            equal, in_double(lambda: OfClasses(c, losses.NTXentLoss())), {"labels": many.long()}, sharded=True
        ),
    )
    yield "nothing to compare", nothing_to_compare
    yield "values of proxies", values_of_proxies
    yield "evaluation", evaluation
    yield "half precision", half_precision


def mined(make: Callable[[], nn.Module]) -> None:
    """What every rank's miner finds in its own batch, against all of it in the whole batch."""
    x, labels, counts = batch()
    starts = [sum(counts[:rank]) for rank in range(len(counts))]
    found = []
    for start, n in zip(starts, counts, strict=True):
        triplets = [(i, i + 1, i + 2) for i in range(n - 2)]
        found.append(torch.tensor(triplets, dtype=torch.long).reshape(-1, 3) + start)
    rank = dist.get_rank()
    plain, shared = make(), distribute(make(), sharded=True)
    whole, here = x.clone().requires_grad_(), own(x, counts).requires_grad_()
    expected = plain(whole, labels, tuple(torch.cat(found).t()))
    value = shared(here, own(labels, counts), tuple((found[rank] - starts[rank]).t()))
    same(value, expected, "value")
    expected.backward()
    value.backward()
    assert whole.grad is not None and here.grad is not None and bool(whole.grad.any())
    same(here.grad / len(counts), own(whole.grad, counts), "gradient")
    compare(plain, shared)


def nothing_to_compare() -> None:
    """A batch without a pair on any rank: a differentiable zero, and a warning."""
    loss = distribute(losses.CircleLoss())
    x = torch.randn(2, SIZE, requires_grad=True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        value = loss(x, torch.tensor([0, 1]) + 2 * dist.get_rank())
    value.backward()
    assert value == 0 and x.grad is not None and not bool(x.grad.any())
    assert "no two samples share a label" in str(caught[0].message)


def values_of_proxies() -> None:
    """With reduction "none", a rank has the values of its own classes."""
    c, world, rank = CLASSES[dist.get_world_size()], dist.get_world_size(), dist.get_rank()
    make = in_double(lambda: losses.ProxyAnchorLoss(c, SIZE, reduction="none"))
    plain, shared = make(), distribute(make(), sharded=True)
    x, labels, counts = batch()
    whole, here = x.clone().requires_grad_(), own(x, counts).requires_grad_()
    expected, value = plain(whole, labels), shared(here, own(labels, counts))
    size = -(-c // world)
    weight = torch.linspace(1, 2, c, dtype=torch.float64)
    same(value, expected[rank * size :][:size], "values")
    (expected @ weight / world).backward()
    (value @ weight[rank * size :][:size]).backward()
    assert whole.grad is not None and here.grad is not None
    same(here.grad / world, own(whole.grad, counts), "gradient")
    compare(plain, shared)


def evaluation() -> None:
    """Without gradients, the value is the same, and no state moves."""
    c = CLASSES[dist.get_world_size()]
    x, labels, counts = batch()
    for make in (
        in_double(lambda: losses.AdaFaceLoss(c, SIZE)),
        in_double(lambda: losses.CrossBatchMemory(losses.CircleLoss(), SIZE, 20)),
    ):
        plain, shared = make(), distribute(make(), sharded=True)
        before = {name: tensor.clone() for name, tensor in plain.named_buffers()}
        with torch.no_grad():
            same(shared(own(x, counts), own(labels, counts)), plain(x, labels), "value")
        for name, tensor in shared.named_buffers():
            same(tensor, before[name], name)


def half_precision() -> None:
    """Embeddings in bfloat16: all arithmetic is in float32, sums over ranks included."""
    x, labels, counts = batch()
    for make in (losses.CircleLoss, lambda: losses.CosFaceLoss(CLASSES[dist.get_world_size()], SIZE)):
        torch.manual_seed(0)
        plain = make()
        torch.manual_seed(0)
        shared = distribute(make(), sharded=True)
        whole, here = (t.bfloat16().requires_grad_() for t in (x, own(x, counts)))
        expected, value = plain(whole, labels), shared(here, own(labels, counts))
        torch.testing.assert_close(value, expected)
        expected.backward()
        value.backward()
        assert whole.grad is not None and here.grad is not None and here.grad.dtype == torch.bfloat16
        # N times the gradient was rounded, and not the gradient.
        torch.testing.assert_close(
            here.grad.float() / len(counts), own(whole.grad, counts).float(), rtol=2**-7, atol=1e-6
        )
