"""What every rank of a world checks: that ranks which share a batch have what one process with all of it has.

The oracle is the loss itself, in one process, with the whole batch.
"""

import functools
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode

from nearfar import losses
from nearfar.losses.distributed import count_traffic, distribute, full_state, is_sharded, load_full_state
from tests.losses.distributed.processes import Check
from tests.losses.settings import DEFAULTS, SETTINGS, Setting

SIZE = 6
TOLERANCE = {"rtol": 1e-10, "atol": 1e-10}
# Samples of every rank: uneven, and one rank has none.
COUNTS = {2: [7, 4], 3: [5, 0, 6], 4: [4, 1, 3, 3]}
# Classes, which every number of ranks has unevenly; four ranks have 2, 2, 1 and 0 of the fewest.
CLASSES = {2: 7, 3: 8, 4: 5}


def batch(seed: int = 0) -> tuple[Tensor, Tensor, list[int]]:
    """Embeddings and labels of all ranks, and how many every rank has of them."""
    counts = COUNTS[dist.get_world_size()]
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(sum(counts), SIZE, generator=generator, dtype=torch.float64)
    labels = torch.tensor([4, 0, 0, 1, 0, 2, 1, 3, 0, 4, 0])
    return x, labels[torch.randperm(len(labels), generator=generator)], counts


def own(rows: Any, counts: list[int]) -> Any:
    return None if rows is None else rows.split(counts)[dist.get_rank()].clone()


def mean_over_ranks(gradient: Tensor) -> Tensor:
    """What DistributedDataParallel does."""
    total = gradient.clone()
    dist.all_reduce(total)
    return total / dist.get_world_size()


def part(whole: Tensor, like: DTensor) -> Tensor:
    """What this rank has of a plain tensor, as a sharded one has it."""
    size = -(-len(like) // dist.get_world_size())
    return whole.reshape(like.shape)[dist.get_rank() * size :][:size]


def same(actual: Tensor, expected: Tensor, what: str) -> None:
    torch.testing.assert_close(actual, expected, **TOLERANCE, msg=lambda text: f"{what}: {text}")


def compare(plain: nn.Module, shared: nn.Module) -> None:
    """Gradients of the parameters, and the buffers, which steps change."""
    expected = dict(plain.named_parameters())
    assert expected.keys() == dict(shared.named_parameters()).keys()
    for name, parameter in shared.named_parameters():
        wanted, gradient = expected[name].grad, parameter.grad
        if wanted is None:
            wanted = torch.zeros_like(expected[name])
        if isinstance(parameter, DTensor):
            assert isinstance(gradient, DTensor)
            same(gradient.to_local(), part(wanted, parameter), name)
        else:
            same(mean_over_ranks(torch.zeros_like(wanted) if gradient is None else gradient), wanted, name)
    buffers = dict(shared.named_buffers())
    for name, buffer in plain.named_buffers():
        held = buffers[name]
        if isinstance(held, DTensor):
            same(held.to_local(), part(buffer, held), name)
        else:
            same(held, buffer, name)


def equal(
    make: Callable[[], nn.Module],
    arguments: dict[str, Tensor] | None = None,
    *,
    sharded: bool = False,
    steps: int = 1,
    towers: bool = False,
    **given: Any,
) -> None:
    """Ranks with their part of a batch, against one process with the whole of it."""
    plain, shared = make(), distribute(make(), sharded=sharded)
    world = dist.get_world_size()
    for step in range(steps):
        x, labels, counts = batch(step)
        columns = {"b": batch(100 + step)[0]} if towers else {"labels": labels}
        columns |= {name: value for name, value in (arguments or {}).items() if value is not None}
        if columns.get("positives") is not None:
            columns.pop("labels")
        whole = {name: t.clone().requires_grad_(t.is_floating_point()) for name, t in {"x": x, **columns}.items()}
        here = {name: own(t, counts).requires_grad_(t.is_floating_point()) for name, t in {"x": x, **columns}.items()}
        values = []
        for loss, tensors in ((plain, whole), (shared, here)):
            loss.zero_grad()
            torch.manual_seed(step)
            if loss is shared and dist.get_rank():
                torch.manual_seed(1000 + dist.get_rank())  # the first rank's numbers count
            rest = dict(tensors)
            value = loss(rest.pop("x"), *([rest.pop("b")] if towers else []), **rest, **given)
            values.append(value)
        expected, value = values
        if value.ndim:  # one of each row: as a function of them all, whose mean over ranks is taken
            weight = torch.linspace(1, 2, len(expected), dtype=torch.float64)
            if len(value) == counts[dist.get_rank()] and len(expected) == len(x):
                same(value, own(expected, counts), "values")
                expected, value = expected @ weight / world, value @ own(weight, counts)
            else:
                raise AssertionError(f"{len(value)} values")
        else:
            same(value, expected, "value")
        expected.backward()
        value.backward()
        for name, tensor in here.items():
            if tensor.requires_grad and name != "sample_weight":
                wanted, gradient = whole[name].grad, tensor.grad
                assert wanted is not None and gradient is not None
                same(gradient / world, own(wanted, counts), f"gradient of {name}")
        compare(plain, shared)


def seeded(setting: Setting, **options: Any) -> Callable[[], nn.Module]:
    return lambda: setting.make(seed=3, num_classes=CLASSES[dist.get_world_size()], embedding_size=SIZE, **options)


def every_loss() -> Iterator[tuple[str, Check]]:
    """Every registered loss: with its defaults in all worlds, with other arguments in one."""
    for setting in SETTINGS if dist.get_world_size() == 3 else DEFAULTS:
        if setting.class_level:
            yield f"{setting}, sharded", functools.partial(equal, seeded(setting), sharded=True)
            if dist.get_world_size() == 2:
                yield f"{setting}, replicated", functools.partial(equal, seeded(setting))
        else:
            yield f"{setting}", functools.partial(equal, seeded(setting))
        if dist.get_world_size() == 4 and "none" in setting.reductions and setting.name != "ProxyAnchorLoss":
            rows = seeded(setting, reduction="none")
            yield f"{setting}, rows", functools.partial(equal, rows, sharded=setting.class_level)
    for info in losses.list_losses():
        if info.level == "towers":
            yield info.name, functools.partial(equal, lambda info=info: info.loss().double(), towers=True)
            if info.name != "VICRegLoss" and dist.get_world_size() == 4:
                rows = functools.partial(info.loss, reduction="none")
                yield f"{info.name}, rows", functools.partial(equal, lambda rows=rows: rows().double(), towers=True)


def in_double(make: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    def made() -> nn.Module:
        torch.manual_seed(5)
        return make().double()

    return made


def wrapped() -> Iterator[tuple[str, Check]]:
    """Sums and wrappers, over several steps, since memories remember."""
    c = CLASSES[dist.get_world_size()]
    made: dict[str, Callable[[], nn.Module]] = {
        "sum": lambda: 0.5 * losses.CircleLoss() + losses.CosFaceLoss(c, SIZE) + losses.CenterLoss(c, SIZE),
        "nested dimensions": lambda: losses.MatryoshkaLoss(losses.CosFaceLoss(c, SIZE), [2, SIZE]),
        "nested dimensions of centres": lambda: losses.MatryoshkaLoss(losses.SoftTripleLoss(c, SIZE, 3), [2, SIZE]),
        "nested dimensions of pairs": lambda: losses.MatryoshkaLoss(losses.MultiSimilarityLoss(), [2, SIZE]),
        "memory": lambda: losses.CrossBatchMemory(losses.ContrastiveLoss(), SIZE, 16),
        "memory of a whole": lambda: losses.CrossBatchMemory(losses.HistogramLoss(), SIZE, 16),
        "memory beside pairs": lambda: (
            losses.TripletMarginLoss() + losses.CrossBatchMemory(losses.NTXentLoss(), SIZE, 20)
        ),
        "memory with a miner": lambda: losses.CrossBatchMemory(losses.CircleLoss(), SIZE, 16, alike_and_not),
        "drawn negatives": lambda: losses.MarginLoss(sampling="distance_weighted", learn_beta=True, nu=0.1),
        "annealed": lambda: losses.SphereFaceLoss(c, SIZE, base=5.0),
        "one pair a class": lambda: losses.NPairsLoss(pairs="one_per_class"),
        "the hardest class": lambda: OfClasses(c, losses.TripletMarginLoss(margin=3.0)),
        "the easiest positive class": lambda: OfClasses(
            c, losses.TripletMarginLoss(mining="easy_positive", margin=3.0)
        ),
        "mined classes": lambda: OfClasses(c, losses.MultiSimilarityLoss()),
        "every positive class": lambda: OfClasses(c, losses.NTXentLoss()),
        "all classes": lambda: OfClasses(c, losses.SupConLoss()),
        "softly the nearest class": lambda: OfClasses(c, losses.NCALoss()),
        "active classes": lambda: OfClasses(c, losses.ContrastiveLoss()),
    }
    for name, make in made.items():
        yield name, functools.partial(equal, in_double(make), sharded=True, steps=3)
    views = in_double(lambda: losses.SelfSupervisedLoss(losses.NTXentLoss()))
    yield "two views", functools.partial(equal, views, towers=True)
    asymmetric = in_double(lambda: losses.SelfSupervisedLoss(losses.NTXentLoss(), symmetric=False))
    yield "two views, one way", functools.partial(equal, asymmetric, towers=True)
    yield (
        "a strip of all classes",
        functools.partial(equal, in_double(lambda: losses.StripLoss(softmax, num_classes=c, embedding_size=SIZE))),
    )


def alike_and_not(x: Tensor, labels: Tensor, memory: Tensor, memory_labels: Tensor) -> tuple[Tensor, ...]:
    """A miner that finds all pairs."""
    alike = labels[:, None] == memory_labels
    return *alike.nonzero(as_tuple=True), *(~alike).nonzero(as_tuple=True)


class OfClasses(losses.Loss):
    """What another loss makes of samples, of samples and classes: statistics of rows that no registered loss of classes
    has, but one of a user's may.
    """

    def __init__(self, classes: int, other: losses.Loss):
        super().__init__()
        self.add_classes(classes, SIZE)
        self.setting = other.spec()

    def spec(self) -> Any:
        return self.setting


def softmax(s: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
    return torch.logsumexp(s, 1) - (s * positive).sum(1)


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


def training() -> Iterator[tuple[str, Check]]:
    """Ten steps of a small network under DistributedDataParallel, against one process."""
    c = CLASSES[dist.get_world_size()]
    made: dict[str, Callable[[], nn.Module]] = {
        "Circle": lambda: losses.CircleLoss(),
        "ArcFace": lambda: losses.ArcFaceLoss(c, SIZE, scale=8.0),
        "Proxy-Anchor": lambda: losses.ProxyAnchorLoss(c, SIZE),
        "CurricularFace": lambda: losses.CurricularFaceLoss(c, SIZE, scale=8.0),
        "SoftTriple": lambda: losses.SoftTripleLoss(c, SIZE, 2),
        "margin": lambda: losses.MarginLoss(learn_beta=True, sampling="distance_weighted"),
        "centres": lambda: losses.SoftmaxLoss(c, SIZE) + 0.1 * losses.CenterLoss(c, SIZE),
        "memory": lambda: losses.CrossBatchMemory(losses.MultiSimilarityLoss(), SIZE, 30),
    }
    for name, make in made.items():
        yield f"ten steps, {name}", functools.partial(ten_steps, in_double(make))


def ten_steps(make: Callable[[], nn.Module]) -> None:
    def network() -> nn.Module:
        torch.manual_seed(9)
        return nn.Sequential(nn.Linear(SIZE, 8), nn.Tanh(), nn.Linear(8, SIZE)).double()

    plain, shared, alone = make(), distribute(make(), sharded=True), network()
    together = DistributedDataParallel(network())
    replicated = [p for p in shared.parameters() if not is_sharded(p)]
    groups = (
        [list(alone.parameters()), list(plain.parameters())],
        [
            list(together.parameters()),
            replicated,
            [p for p in shared.parameters() if is_sharded(p)],
        ],
    )
    optimisers = [torch.optim.Adam([{"params": g} for g in some if g], lr=0.01) for some in groups]
    for step in range(10):
        x, labels, counts = batch(step)
        for optimiser in optimisers:
            optimiser.zero_grad()
        torch.manual_seed(step + 1000 * dist.get_rank())
        value = shared(together(own(x, counts)), own(labels, counts))
        torch.manual_seed(step)
        expected = plain(alone(x), labels)
        value.backward()
        expected.backward()
        for parameter in replicated:
            assert parameter.grad is not None
            parameter.grad = mean_over_ranks(parameter.grad)
        same(value, expected, f"step {step}")
        for optimiser in optimisers:
            optimiser.step()
    for theirs, ours in zip(alone.parameters(), together.parameters(), strict=True):
        same(ours, theirs, "network")
    state = full_state(shared)
    if dist.get_rank() == 0:
        assert state.keys() == plain.state_dict().keys()
        for name, tensor in plain.state_dict().items():
            same(state[name], tensor, name)


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
    """The number of elements of the largest tensor that any operator gives."""

    def __init__(self) -> None:
        super().__init__()
        self.largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in torch.utils._pytree.tree_leaves(result):
            if isinstance(tensor, Tensor) and not tensor.is_meta:
                held = tensor.to_local() if isinstance(tensor, DTensor) else tensor
                self.largest = max(self.largest, held.untyped_storage().nbytes() // held.element_size())
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
    whole = min(classes * k * size, classes * n * world)
    assert classes * k * size // world <= seen.largest < whole, (seen.largest, whole)
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


def checks() -> dict[str, Check]:
    """Of this world, by name."""
    kinds = {2: [every_loss, training], 3: [every_loss, wrapped, inputs], 4: [every_loss, training, by_parts]}
    found = [check for kind in kinds[dist.get_world_size()] for check in kind()]
    assert len({name for name, _ in found}) == len(found)
    return dict(found)
