"""The engine's promises: tiles, budgets and order change nothing; no product and no memory that nobody asked for."""

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from nearfar import losses
from nearfar.losses.engine import pools
from nearfar.losses.engine.plan import Sizes
from tests.losses.settings import (
    ANY_PAIRS,
    CLASSES,
    PAIRED,
    REDUCED,
    SETTINGS,
    SIZE,
    Setting,
    as_if_many,
    parameters,
    unit,
)

settings = pytest.mark.parametrize("setting", SETTINGS, ids=str)


@pytest.fixture
def tile(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Cut everything into tiles of about so many similarities, and squares and strips accordingly."""

    def cut(size: int) -> None:
        as_if_many(monkeypatch)
        monkeypatch.setattr(losses.Loss, "sizes", Sizes(tile=size))

    return cut


def batch(n: int = 23, seed: int = 0) -> tuple[Tensor, Tensor]:
    labels = torch.randint(0, CLASSES, (n,), generator=torch.Generator().manual_seed(seed))
    return unit(n, SIZE, seed=seed).requires_grad_(), labels


def value_and_gradients(loss: losses.Loss, x: Tensor, *args: Tensor, **call: Tensor) -> list[Tensor]:
    value = loss(x, *args, **call)
    weight = unit(*value.shape, seed=5)
    return [value.detach(), *torch.autograd.grad(value, parameters(loss, x), weight)]


def assert_same(left: list[Tensor], right: list[Tensor], tolerance: float = 1e-11, case: str = "") -> None:
    for a, b in zip(left, right, strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance, msg=lambda told: f"{case}: {told}")


@pytest.mark.parametrize(("setting", "reduction"), REDUCED, ids=str)
def test_tiles_and_budget_change_nothing(setting: Setting, reduction: str, tile: Callable[[int], None]) -> None:
    x, labels = batch()
    loss = setting.make(reduction=reduction).eval()
    whole = value_and_gradients(loss, x, labels)
    for size in (1, 9, 30):
        tile(size)
        for budget in (0, 300, 10**9):
            loss.memory_budget = budget
            assert_same(value_and_gradients(loss, x, labels), whole, case=f"tiles of {size}, a budget of {budget}")


@pytest.mark.parametrize("setting", ANY_PAIRS, ids=str)
def test_tiles_with_masks_and_references(setting: Setting, tile: Callable[[int], None]) -> None:
    x, labels = batch()
    loss = setting.make().eval()
    columns = x.detach() if loss.weight is None else loss.weight.detach()
    number = len(columns) // loss.vectors_per_class
    kind = torch.randint(0, 3, (len(x), number), generator=torch.Generator().manual_seed(2))
    calls: list[dict[str, Tensor]] = [
        {"positives": kind == 0, "negatives": kind == 1},
        {"labels": torch.nn.functional.one_hot(labels, CLASSES).bool() | (unit(len(x), CLASSES) > 1)},
    ]
    references = unit(14, SIZE, seed=4).requires_grad_()
    if setting.takes_references:
        calls.append({"labels": labels, "ref_emb": references, "ref_labels": torch.arange(14) % 7})

    def results(call: dict[str, Tensor]) -> list[Tensor]:
        tensors = parameters(loss, x) + [references] * ("ref_emb" in call)
        value = loss(x, **call)
        return [value.detach(), *torch.autograd.grad(value, tensors)]

    whole = [results(call) for call in calls]
    for size in (9, 30):
        tile(size)
        for budget in (300, 10**9):
            loss.memory_budget = budget
            for call, expected in zip(calls, whole, strict=True):
                assert_same(results(call), expected)


@pytest.mark.parametrize("setting", [setting for setting in SETTINGS if setting.class_level], ids=str)
@pytest.mark.parametrize("n", [4, 30])
def test_strips_of_rows_that_are_kept_or_computed_again(
    setting: Setting, n: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, labels = batch(n)
    loss = setting.make(num_classes=40, embedding_size=SIZE).eval()
    whole = value_and_gradients(loss, x, labels)
    monkeypatch.setattr(losses.Loss, "sizes", Sizes(tile=64, square=4, widest=8, fewest_rows=2))
    for rows in (0, 1, 4, 9):
        loss.memory_budget = rows * 40 * loss.vectors_per_class * 8
        assert_same(value_and_gradients(loss, x, labels), whole)


@settings
def test_nothing_is_left_to_the_garbage_collector(setting: Setting) -> None:
    """A reference cycle would keep a step's tensors until the collector happens to run."""
    x, labels = batch()
    loss = setting.make()
    loss(x, labels).sum().backward()
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        loss(x, labels).sum().backward()
        gc.collect()
        left = [item for item in gc.garbage if isinstance(item, Tensor)]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    assert not left


@settings
def test_equals_the_dense_form(setting: Setting) -> None:
    x, labels = batch()
    for reduction in setting.reductions:
        loss = setting.make(reduction=reduction).eval()
        ours = value_and_gradients(loss, x, labels)
        loss.dense = True
        assert_same(value_and_gradients(loss, x, labels), ours, 1e-9)


@settings
def test_permutation(setting: Setting) -> None:
    x, labels = batch()
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(1))
    loss = setting.make().eval()
    value, by_x, *rest = value_and_gradients(loss, x, labels)
    permuted = x.detach()[order].requires_grad_()
    assert_same(value_and_gradients(loss, permuted, labels[order]), [value, by_x[order], *rest])


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("setting", PAIRED, ids=str)
def test_no_gradient_nobody_asked_for(setting: Setting, many: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same products without gradients as with frozen weights; more for embeddings, and for weights that take any."""
    products: list[str] = []

    def counted(owner: Any, name: str) -> None:
        original = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *a, **k: (products.append(name), original(*a, **k))[1])

    counted(torch, "mm")
    for name in ("addmm_", "index_add_"):
        counted(torch.Tensor, name)

    def number(x: Tensor, backward: bool = True) -> int:
        products.clear()
        value = loss(x, labels)
        if backward:
            value.backward()
        return len(products)

    if many:
        as_if_many(monkeypatch)
    x, labels = batch()
    loss = setting.make().eval()
    with torch.no_grad():
        without = number(x, backward=False)
    loss.requires_grad_(False)
    assert number(x.detach(), backward=False) == without
    by_samples = number(x)
    assert by_samples > without
    if setting.class_level:
        loss.requires_grad_()
        assert number(x) > by_samples


def test_symmetric_tiles_are_computed_once(monkeypatch: pytest.MonkeyPatch, tile: Callable[[int], None]) -> None:
    """Samples × the same samples: products 1 over the upper triangle only, products 2 and 3 as one."""
    sizes: dict[str, int] = {"mm": 0, "addmm_": 0}
    mm, addmm = torch.mm, torch.Tensor.addmm_

    def count_mm(a: Tensor, b: Tensor, out: Tensor | None = None) -> Tensor:
        if out is None:
            sizes["mm"] += a.shape[0] * b.shape[1]
        else:  # the first part of a gradient is stored, and not added
            sizes["addmm_"] += a.shape[0] * a.shape[1]
        return mm(a, b, out=out)

    def count_addmm(self: Tensor, a: Tensor, b: Tensor) -> Tensor:
        sizes["addmm_"] += a.shape[0] * a.shape[1]
        return addmm(self, a, b)

    monkeypatch.setattr(torch, "mm", count_mm)
    monkeypatch.setattr(torch.Tensor, "addmm_", count_addmm)
    tile(16)
    x, labels = unit(32, SIZE).requires_grad_(), torch.arange(32) // 4
    losses.CircleLoss()(x, labels).backward()
    assert sizes == {"mm": 32 * 36 // 2, "addmm_": 32 * 32}  # 36 of 64 tiles; one whole product


@pytest.mark.parametrize("setting", PAIRED, ids=str)
def test_memory_stays_within_the_budget(setting: Setting) -> None:
    """What is allocated at any time, measured by the allocator, is far below the whole matrix, and follows the budget."""
    n, classes, budget = (64, 60_000, 2_000_000) if setting.class_level else (3000, 0, 4_000_000)
    x = torch.randn(n, 8, requires_grad=True)
    labels = torch.arange(n) // 4
    loss = setting.make(num_classes=classes, embedding_size=8, memory_budget=budget).float()
    peak = peak_bytes(lambda: loss(x, labels).backward())
    # The weights' gradient, and what normalising a block of them takes; SoftTriple's regulariser is of all its centres.
    copies = 10 if setting.name == "SoftTripleLoss" else 3
    weights = 0 if loss.weight is None else copies * loss.weight.nbytes
    assert peak < budget + weights + 50e6
    assert n * (classes or n) * 4 > budget * 3  # so that the test is not vacuous


@pytest.mark.parametrize("k", [1, 2, 127, 128, 300])
def test_the_nearest_of_many_vectors(k: int) -> None:
    """Its number does not fit a byte for long."""
    pool, rows, classes = pools.Nearest(k), 3, 5
    s, g = torch.randn(k, rows, classes), torch.randn(rows, classes)
    value, shares = pool.gather(s.clone())
    assert shares.nbytes <= 4 * pool.room(rows * classes)
    expanded = torch.stack(list(pool.expand(g, shares)))
    assert torch.equal(value, s.amax(0))
    assert torch.equal(expanded, torch.where(s == s.amax(0), g, 0))


def peak_bytes(function: Callable[[], object]) -> int:
    """The most bytes that torch's allocator held at once during a call."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        function()
    held = peak = 0
    for event in profile.profiler.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            peak = max(peak, held)
    return peak


def worst_pairs(s: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
    furthest = s.masked_fill(~positive, 2).amin(1)
    nearest = s.masked_fill(~negative, -2).amax(1)
    return torch.relu(nearest - furthest + 0.3)


@pytest.mark.parametrize("budget", [1, 3000, 10**8])
def test_strip_function(budget: int) -> None:
    """A user's own row-local loss: strips of any height equal the whole, and the closed form of the same loss."""
    x, labels = batch(40)
    triplet = losses.TripletMarginLoss(margin=0.3, distance="cosine")
    own = losses.StripLoss(worst_pairs, memory_budget=budget)
    assert_same(value_and_gradients(own, x, labels), value_and_gradients(triplet, x, labels))
    own.reduction = triplet.reduction = "none"
    assert_same(value_and_gradients(own, x, labels), value_and_gradients(triplet, x, labels))
    own.dense = True
    assert_same(value_and_gradients(own, x, labels), value_and_gradients(triplet, x, labels))


def test_strip_function_with_classes_and_references() -> None:
    x, labels = batch(17)

    def cross_entropy(s: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        return torch.logsumexp(s * 30, 1) - (s * 30 * positive).sum(1)

    own = losses.StripLoss(cross_entropy, num_classes=CLASSES, embedding_size=SIZE, memory_budget=1).double()
    normface = losses.NormFaceLoss(CLASSES, SIZE, scale=30).double()
    normface.load_state_dict(own.state_dict())
    assert_same(value_and_gradients(own, x, labels), value_and_gradients(normface, x, labels))
    ref = {"ref_emb": unit(9, SIZE, seed=3), "ref_labels": torch.arange(9) % CLASSES}
    pair = losses.StripLoss(worst_pairs)
    triplet = losses.TripletMarginLoss(margin=0.3, distance="cosine")
    assert_same(value_and_gradients(pair, x, labels, **ref), value_and_gradients(triplet, x, labels, **ref))
