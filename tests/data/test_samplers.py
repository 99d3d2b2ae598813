"""Samplers: coverage, balance, ranks, and going on where one stopped, for any labels."""

import sys
from collections import Counter
from collections.abc import Callable
from types import FrameType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nearfar.data import BalancedSampler, BatchSampler, HierarchicalSampler, PKSampler, PlainSampler, samplers

SIZES = st.lists(st.integers(1, 12), min_size=4, max_size=14).filter(lambda sizes: max(sizes) > 1)
FAST = settings(max_examples=60)


def labels_of(sizes: list[int], seed: int = 0) -> np.ndarray:
    """Shuffled, with ids that have gaps, and some rows without a label."""
    labels = np.repeat(np.arange(len(sizes)) * 3 + 1, sizes)
    return np.random.default_rng(seed).permutation(np.concatenate([labels, [-1, -1]]))


def every_kind(sizes: list[int], **options: int) -> list[BatchSampler]:
    labels = labels_of(sizes)
    return [
        PlainSampler(len(labels), 3, **options),
        PKSampler(labels, 2, 3, **options),
        BalancedSampler(labels, 3, **options),
        HierarchicalSampler(labels, labels % 2, 1, 2, 2, **options),
    ]


KINDS = range(4)


@FAST
@given(SIZES, st.integers(1, 5), st.integers(1, 3), st.integers(0, 99))
def test_pk_batches_are_p_classes_of_k_rows(sizes: list[int], k: int, p: int, seed: int) -> None:
    labels = labels_of(sizes)
    for batch in PKSampler(labels, p, k, seed=seed):
        own = labels[batch]
        assert sorted(Counter(own.tolist()).values()) == [k] * p and -1 not in own
        for label in set(own.tolist()):
            rows = [row for row in batch if labels[row] == label]
            size = int((labels == label).sum())
            assert len(set(rows)) == min(k, size)  # repetition only where the class is too small


def most_batches(groups: list[int], p: int) -> int:
    """By trial: take the p largest piles as long as there are p."""
    piles, count = list(groups), 0
    while sum(pile > 0 for pile in piles) >= p:
        for i in sorted(range(len(piles)), key=lambda i: -piles[i])[:p]:
            piles[i] -= 1
        count += 1
    return count


@FAST
@given(SIZES, st.integers(1, 5), st.integers(1, 4), st.integers(0, 99))
def test_pk_covers_what_the_class_sizes_allow(sizes: list[int], k: int, p: int, seed: int) -> None:
    labels = labels_of(sizes)
    sampler = PKSampler(labels, p, k, seed=seed)
    groups = [-(-size // k) for size in sizes]
    assert len(sampler) == most_batches(groups, p)
    times = Counter(row for batch in sampler for row in batch)
    left_out = sum(groups) - len(sampler) * p
    if left_out < p:  # no class is too large for the others
        assert sum(sizes) - len(times) <= left_out * k
    for label, size in zip(np.arange(len(sizes)) * 3 + 1, sizes, strict=True):
        own = np.flatnonzero(labels == label)
        if size >= k:
            assert max(times[row] for row in own) <= 2
            assert sum(times[row] == 2 for row in own) <= k - 1
    assert sampler.coverage(0) == len(times) / sum(sizes)


def test_pk_covers_all_of_equal_classes_exactly_once() -> None:
    labels = np.repeat(np.arange(12), 8)
    sampler = PKSampler(labels, 4, 4)
    for _ in range(3):
        times = Counter(row for batch in sampler for row in batch)
        assert len(sampler) == 6 and set(times.values()) == {1} and len(times) == 96


def test_pk_leaves_out_others_in_every_epoch_and_mixes_classes() -> None:
    labels = np.repeat(np.arange(10), 5)
    sampler = PKSampler(labels, 4, 2)  # 30 groups make 7 batches of 4
    left_out, together = [], set()
    for _ in range(20):
        batches = list(sampler)
        left_out.append(frozenset(range(50)) - {row for batch in batches for row in batch})
        together |= {frozenset(labels[batch].tolist()) for batch in batches}
    assert len(set(left_out)) > 10
    assert len(together) > 60  # of the 210 sets of four classes


@FAST
@given(SIZES, st.integers(0, 99))
def test_plain_covers_every_row_once(sizes: list[int], seed: int) -> None:
    n = len(labels_of(sizes))
    assert sorted(row for batch in PlainSampler(n, 3, seed=seed) for row in batch) == list(range(n))
    assert [row for batch in PlainSampler(n, 3, shuffle=False) for row in batch] == list(range(n))
    assert {len(batch) for batch in PlainSampler(n, 3, drop_last=True)} == {3}


@FAST
@given(SIZES, st.integers(1, 7), st.integers(0, 99))
def test_balanced_classes_and_rows_differ_by_one_at_most(sizes: list[int], batch: int, seed: int) -> None:
    labels = labels_of(sizes)
    sampler = BalancedSampler(labels, batch, seed=seed)
    rows = [row for rows in sampler for row in rows]
    classes = Counter(labels[rows].tolist())
    counts = [classes[label] for label in set(labels.tolist()) - {-1}]
    assert max(counts) - min(counts) <= 1 and -1 not in classes
    times = Counter(rows)
    for label in set(labels.tolist()) - {-1}:
        own = [times[row] for row in np.flatnonzero(labels == label)]
        assert max(own) - min(own) <= 1


@FAST
@given(SIZES, st.integers(1, 3), st.integers(1, 3), st.integers(0, 99))
def test_hierarchical_batches_are_of_few_super_classes(sizes: list[int], p: int, k: int, seed: int) -> None:
    labels = labels_of(sizes)
    above = labels % 4 // 2
    sampler = HierarchicalSampler(labels, above, 1, p, k, seed=seed)
    for batch in sampler:
        (super_class,) = set(above[batch].tolist())
        classes = set(labels[(above == super_class) & (labels != -1)].tolist())
        own = Counter(labels[batch].tolist())
        assert set(own.values()) == {k} and len(own) == min(p, len(classes))
        for label in own:
            rows = [row for row in batch if labels[row] == label]
            assert len(set(rows)) == min(k, int((labels == label).sum()))


@pytest.mark.parametrize("kind", KINDS)
@FAST
@given(sizes=SIZES, stop=st.integers(0, 50), seed=st.integers(0, 99))
def test_resumed_is_uninterrupted(kind: int, sizes: list[int], stop: int, seed: int) -> None:
    whole = every_kind(sizes, seed=seed)[kind]
    expected = [batch for _ in range(3) for batch in whole]
    stopped = every_kind(sizes, seed=seed)[kind]
    seen: list[list[int]] = []
    while len(seen) < stop % len(expected):
        for batch in stopped:
            seen.append(batch)
            if len(seen) == stop % len(expected):
                break
    again = every_kind(sizes, seed=seed)[kind]
    again.load_state_dict(stopped.state_dict())
    while len(seen) < len(expected):
        seen += list(again)
    assert seen == expected


@pytest.mark.parametrize("kind", KINDS)
def test_ranks_share_the_batch_of_one_rank_without_overlap(kind: int) -> None:
    sizes = [6, 5, 9, 4, 8, 7, 12, 3]
    labels = labels_of(sizes)
    ranks = [every_kind(sizes, seed=3, rank=rank, world_size=2)[kind] for rank in range(2)]
    assert len(ranks[0]) == len(ranks[1]) > 0
    for first, second in zip(*ranks, strict=True):
        assert first and second
        if kind in (0, 1):
            assert not set(first) & set(second)
        if kind == 1:
            assert not set(labels[first].tolist()) & set(labels[second].tolist())
        if kind == 3:
            assert not set(labels[first].tolist()) & set(labels[second].tolist())
    if kind == 0:
        rows = [row for sampler in ranks for batch in sampler for row in batch]
        assert sorted(rows) == list(range(len(labels)))


@pytest.mark.parametrize("kind", KINDS)
def test_seeds_and_epochs_differ_and_repeat(kind: int) -> None:
    def batches(seed: int, epoch: int) -> list[list[int]]:
        sampler = every_kind([6] * 8, seed=seed)[kind]
        sampler.set_epoch(epoch)
        return list(sampler)

    assert batches(1, 0) == batches(1, 0)
    assert batches(1, 0) != batches(2, 0)
    assert batches(1, 0) != batches(1, 1)
    sampler = every_kind([6] * 8, seed=1)[kind]
    assert [list(sampler), list(sampler)] == [batches(1, 0), batches(1, 1)]
    broken_off = every_kind([6] * 8, seed=1)[kind]
    next(iter(broken_off))
    assert list(broken_off) == batches(1, 0)


def test_a_state_of_other_data_is_refused() -> None:
    state = PKSampler(np.repeat(np.arange(8), 6), 2, 3).state_dict()
    with pytest.raises(ValueError, match="the state has length 8, but this sampler has 4"):
        PKSampler(np.repeat(np.arange(4), 6), 2, 3).load_state_dict(state)
    with pytest.raises(ValueError, match="the state has seed 0, but this sampler has 1"):
        PKSampler(np.repeat(np.arange(8), 6), 2, 3, seed=1).load_state_dict(state)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PKSampler([0, 1], 3, 2), "3 classes on each of 1 ranks need 3 classes, but there are 2: lower p"),
        (lambda: PKSampler([0, 1], 0, 2), "p=0 and k=2 must be positive"),
        (lambda: PKSampler([-1], 1, 2), "no row has a label"),
        (lambda: PlainSampler(0, 4), "0 rows are too few for a batch of 4"),
        (lambda: PlainSampler(3, 4, drop_last=True), "3 rows are too few for a batch of 4"),
        (lambda: PlainSampler(3, 0), "batch_size=0 must be positive"),
        (lambda: PlainSampler(3, 2, rank=2, world_size=2), "rank=2 must be from 0 to world_size - 1 = 1"),
        (lambda: HierarchicalSampler([0, 0], [0, 1], 1, 1, 1), "class 0 is in more than one super-class"),
        (lambda: HierarchicalSampler([0, 1], [0, 0], 2, 1, 1), "need 2, but there are 1: lower s"),
        (lambda: HierarchicalSampler([0, 1], [0], 1, 1, 1), "1 super-classes for 2 labels"),
        (lambda: HierarchicalSampler([0, 1], [0, 1], 1, 0, 1), "must be positive"),
    ],
)
def test_what_is_wrong_is_said(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
    with pytest.raises(TypeError, match=r"labels must be integers \(N,\), not float64"):
        PKSampler(np.zeros(3), 1, 1)


def lines_run(call: Callable[[], object]) -> int:
    """How many lines of the samplers' own module a call runs, loops counted as often as they go round."""
    count = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal count
        if frame.f_code.co_filename != samplers.__file__:
            return None
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize("classes", [1_000, 10_000])
def test_many_classes_take_a_moment(classes: int) -> None:
    """Python goes through the classes once and through the batches once: classes × batches is left to numpy."""
    labels = np.random.default_rng(0).integers(0, classes, 10 * classes)
    made: list[PKSampler] = []
    lines = lines_run(lambda: made.append(PKSampler(labels, 64, 4)))
    lines += lines_run(lambda: made[0].batches(0))
    assert made[0].coverage() > 0.98
    assert lines < 40 * (classes + len(made[0]))


class _TwoProcesses:
    """torch.distributed as rank 1 of 2 sees it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        for name, value in {"is_initialized": True, "get_rank": 1, "get_world_size": 2}.items():
            monkeypatch.setattr(torch.distributed, name, lambda value=value: value)


def test_rank_and_world_size_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    labels = np.repeat(np.arange(8), 6)
    found = [
        PKSampler(labels, 2, 3),
        BalancedSampler(labels, 6),
        PlainSampler(48, 6),
        HierarchicalSampler(labels, labels // 2, 1, 2, 2),
    ]
    told = [
        PKSampler(labels, 2, 3, rank=1, world_size=2),
        BalancedSampler(labels, 6, rank=1, world_size=2),
        PlainSampler(48, 6, rank=1, world_size=2),
        HierarchicalSampler(labels, labels // 2, 1, 2, 2, rank=1, world_size=2),
    ]
    alone = [list(sampler) for sampler in found]
    for sampler in found:
        sampler.seek(0)
    _TwoProcesses(monkeypatch)  # after the samplers were made, as Lightning starts its processes
    for one, expected, before in zip(found, told, alone, strict=True):
        assert isinstance(one, torch.utils.data.BatchSampler)
        assert (one.rank, one.world_size, len(one)) == (1, 2, len(expected))
        batches = list(one)
        assert batches == list(expected) != before


def test_a_world_that_grew_has_too_few_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    sampler = PKSampler(np.repeat(np.arange(3), 4), 2, 2)
    _TwoProcesses(monkeypatch)
    with pytest.raises(ValueError, match="2 classes on each of 2 ranks need 4 classes, but there are 3"):
        next(iter(sampler))


def test_classes_of_one_row_are_copied_with_a_warning() -> None:
    with pytest.warns(UserWarning, match="every class has one row: the 2 rows of a class are copies of it"):
        batches = list(PKSampler(np.arange(6), 3, 2))
    assert all(len(set(batch)) == 3 for batch in batches)


def test_lightning_is_told_where_samplers_are_made() -> None:
    labels = np.repeat(np.arange(8), 6)
    PKSampler(labels, 2, 3, sampler=torch.utils.data.SequentialSampler(labels))  # as Lightning's hooks make it again
    with pytest.raises(
        TypeError, match=r"make it in train_dataloader\(\), or pass Trainer\(use_distributed_sampler=False"
    ):
        PKSampler(torch.utils.data.SequentialSampler(labels), batch_size=6, drop_last=True)  # type: ignore[call-arg, arg-type]
