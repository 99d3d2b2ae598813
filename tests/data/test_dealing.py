"""Batches dealt anew: over all ranks together the same rows, in the same order, with the same chance."""

from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from nearfar.data import (
    BatchSampler,
    Dealt,
    EvalTransform,
    Loader,
    Pixels,
    PKSampler,
    PlainSampler,
    Table,
    TrainTransform,
)
from tests.data.test_samplers import KINDS, SIZES, every_kind

FAST = settings(max_examples=40)


def joined(batch: Iterable[list[int]]) -> list[int]:
    """The rows of all ranks."""
    return [row for rows in batch for row in rows]


def dealt(sizes: list[int], kind: int, began: int, now: int) -> list[Dealt]:
    """Of a sampler for `began` ranks, what each of `now` ranks has."""
    return [Dealt(every_kind(sizes, world_size=began)[kind], rank, now) for rank in range(now)]


def original(sizes: list[int], kind: int, began: int) -> list[list[list[int]]]:
    """Batch by batch, the rows of every rank."""
    samplers = [every_kind(sizes, rank=rank, world_size=began)[kind] for rank in range(began)]
    return [list(ranks) for ranks in zip(*samplers, strict=True)]


@FAST
@given(SIZES.filter(lambda sizes: len(sizes) >= 6), st.sampled_from(KINDS), st.integers(1, 2), st.integers(1, 3))
def test_the_same_batches(sizes: list[int], kind: int, began: int, now: int) -> None:
    expected = original(sizes, kind, began)
    together = (1, 3, 1, 2)[kind]
    assume(all(len(joined(batch)) // together >= now for batch in expected))  # else it is refused
    batches = list(zip(*dealt(sizes, kind, began, now), strict=True))
    assert [joined(batch) for batch in batches] == [joined(batch) for batch in expected]
    for batch in batches:
        groups = [-(-len(part) // together) for part in batch]
        assert min(groups) >= 1 and max(groups) - min(groups) <= 1
        assert all(len(part) % together == 0 for part in batch)


def test_by_hand() -> None:
    """Six classes of two rows, three classes on each of two ranks: one batch of six pairs, which four ranks share."""
    labels = np.repeat(np.arange(6), 2)
    began = PKSampler(labels, 3, 2, world_size=2)
    (rows,) = began.batches(0)
    whole = np.concatenate(rows).tolist()
    parts = [next(iter(Dealt(PKSampler(labels, 3, 2, world_size=2), rank, 4))) for rank in range(4)]
    assert parts == [whole[0:2], whole[2:6], whole[6:8], whole[8:12]]
    sampler = Dealt(began, 1, 4)
    next(iter(sampler))
    assert [sampler.drawn_for(place) for place in range(4)] == [(0, 2), (0, 3), (0, 4), (0, 5)]
    assert sampler.batch_size == 4 and len(sampler) == 1


@pytest.mark.parametrize("now", [1, 2, 3, 5])
def test_augmentations_are_those_of_the_ranks_it_began_with(now: int) -> None:
    """An image that is dealt to another rank is cropped as it would have been where it was drawn."""
    pixels = Pixels(np.random.default_rng(0).integers(0, 255, (20, 12, 12), np.uint8))
    table = Table("made", np.arange(20) % 4, tuple("abcd"), np.zeros(20, np.int8), pixels)
    transform = TrainTransform.like(EvalTransform(8, crop=False), size=8, scale=(0.2, 1.0), color=0.3)

    def images(samplers: list[BatchSampler]) -> dict[int, np.ndarray]:
        loaders = [Loader(table, transform, sampler, seed=3) for sampler in samplers]
        epochs = [[batch for _ in range(2) for batch in loader] for loader in loaders]
        found = {}
        for number, batches in enumerate(zip(*epochs, strict=True)):
            for batch in batches:
                for image, row in zip(batch.images, batch.rows, strict=True):
                    found[(number, int(row))] = image.numpy()
        return found

    expected = images([PlainSampler(20, 5, rank=rank, world_size=2) for rank in range(2)])
    found = images([Dealt(PlainSampler(20, 5, world_size=2), rank, now) for rank in range(now)])
    assert found.keys() == expected.keys() and len(found) == 40
    assert all(np.array_equal(found[key], expected[key]) for key in found)


def test_a_state_goes_from_any_number_of_ranks_to_any_other() -> None:
    sizes = [8, 8, 8, 8, 8, 6]  # and two rows without a label: 48, which batches of six use up
    for kind in KINDS:
        began = every_kind(sizes, world_size=2)[kind]
        first = iter(began)
        next(first)
        state = began.state_dict()
        rest = [joined(batch) for batch in original(sizes, kind, 2)[1:]]
        ranks = dealt(sizes, kind, 2, 3)
        for sampler in ranks:
            sampler.load_state_dict(state)
        assert [joined(batch) for batch in zip(*ranks, strict=True)] == rest
        assert ranks[0].state_dict() == {**state, "epoch": 1, "position": 0}
        again = every_kind(sizes, world_size=2)[kind]
        again.load_state_dict(ranks[0].state_dict())
        assert again.epoch == 1


def test_too_many_ranks() -> None:
    labels = np.repeat(np.arange(6), 2)
    with pytest.raises(ValueError, match="12 rows has only 6 groups of 2 rows of a class for 7 ranks"):
        Dealt(PKSampler(labels, 3, 2, world_size=2), 0, 7)
    with pytest.raises(ValueError, match="rank=3 must be from 0 to world_size - 1 = 2"):
        Dealt(PKSampler(labels, 3, 2, world_size=2), 3, 3)
    short = Dealt(PlainSampler(7, 5), 0, 3)  # the last batch has two rows
    with pytest.raises(ValueError, match="2 rows is too small for 3 ranks"):
        list(short)
