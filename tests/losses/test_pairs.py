"""Pairs by class of some of the samples among all of them, which ranks that have a part of the batch use."""

import pytest
import torch

from nearfar.losses.engine.pairs import ClassPairs, TowerPairs
from nearfar.losses.inputs import mask_pairs

IDS = torch.tensor([3, 0, 3, 1, 0, 3, 2, 1, 0, 3])


@pytest.mark.parametrize("part", [slice(0, 4), slice(3, 7), slice(6, 10), slice(0, 10), slice(4, 5)], ids=str)
def test_some_samples_among_all(part: slice) -> None:
    pairs = ClassPairs.of_part(IDS, part)
    assert pairs.row_order is not None and pairs.column_order is not None
    n = part.stop - part.start
    assert sorted(pairs.row_order.tolist()) == list(range(n))
    positive, negative = pairs.masks(slice(0, n))
    found = torch.zeros(2, n, 10, dtype=torch.bool)
    for kind, mask in enumerate((positive, negative)):
        found[kind][pairs.row_order[:, None], pairs.column_order] = mask
    for row, sample in enumerate(range(part.start, part.stop)):
        for column in range(10):
            same = bool(IDS[sample] == IDS[column])
            assert bool(found[0, row, column]) == (same and sample != column)
            assert bool(found[1, row, column]) == (not same)
    assert pairs.positives[torch.argsort(pairs.row_order)].tolist() == found[0].sum(1).tolist()
    assert pairs.negatives[torch.argsort(pairs.row_order)].tolist() == found[1].sum(1).tolist()


@pytest.mark.parametrize("part", [slice(0, 4), slice(3, 7), slice(4, 5)], ids=str)
@pytest.mark.parametrize("width", [1, 3, 4, 10])
def test_tiles_of_some_samples_are_cut_from_the_masks(part: slice, width: int) -> None:
    pairs = ClassPairs.of_part(IDS, part)
    n = part.stop - part.start
    positive, negative = pairs.masks(slice(0, n))
    for top in range(0, n, width):
        for left in range(0, 10, width):
            rows, columns = slice(top, min(top + width, n)), slice(left, min(left + width, 10))
            tile = pairs.tile(rows, columns)
            expected = positive[rows, columns], negative[rows, columns]
            listed = torch.zeros_like(expected[0])
            shown = torch.ones_like(expected[0], dtype=torch.float64)
            others = shown.clone()
            if tile is not None:
                at = (~tile.vacant).nonzero()
                listed[at[:, 0], tile.columns[at[:, 0], at[:, 1]]] = True
                assert len(at) == int(listed.sum())  # each once
                tile.hide(shown, 0.0)
                tile.hide(others, 0.0, keep_positives=True)
            assert torch.equal(listed, expected[0])
            assert torch.equal(shown.bool(), expected[1])
            assert torch.equal(others.bool(), expected[0] | expected[1])


@pytest.mark.parametrize("width", [1, 2, 5])
def test_tiles_of_classes_list_the_rows_that_have_a_class_there(width: int) -> None:
    pairs = ClassPairs.to_classes(IDS, 5)
    positive, negative = pairs.masks(slice(0, 10))
    assert torch.equal(positive.long().argmax(1), IDS)
    for rows in (slice(0, 4), slice(4, 10)):
        for left in range(0, 5, width):
            columns = slice(left, min(left + width, 5))
            tile = pairs.tile(rows, columns)
            shown = torch.ones(rows.stop - rows.start, columns.stop - columns.start)
            listed = torch.zeros_like(shown)
            filled = ~tile.vacant
            listed.scatter_add_(1, tile.columns, filled.to(shown.dtype))
            tile.hide(shown, 0.0)
            assert torch.equal(listed.bool(), positive[rows, columns])
            assert torch.equal(shown.bool(), negative[rows, columns])


def test_two_towers_are_compared_across_alone() -> None:
    pairs = TowerPairs(3, torch.device("cpu"))
    positive, negative = pairs.masks(slice(0, 6))
    for row in range(6):
        for column in range(6):
            across = (row < 3) != (column < 3)
            assert bool(positive[row, column]) == (abs(row - column) == 3)
            assert bool(negative[row, column]) == (across and abs(row - column) != 3)
    assert pairs.positives.tolist() == [1] * 6 and pairs.negatives.tolist() == [2] * 6


@pytest.mark.parametrize("own", [0, 2, 6])
@pytest.mark.parametrize("width", [1, 3, 10])
def test_masks_of_some_samples_among_all_leave_out_the_samples_themselves(own: int, width: int) -> None:
    """Four rows, the samples from `own` on: whatever a mask says of a sample with itself, it is no pair, in any tile."""
    positive = torch.rand(4, 10, generator=torch.Generator().manual_seed(0)) < 0.5
    positive[torch.arange(4), own + torch.arange(4)] = torch.tensor([True, False, True, False])
    pairs = mask_pairs(positive, None, diagonal=own)
    for top in range(0, 4, width):
        for left in range(0, 10, width):
            rows, columns = slice(top, min(top + width, 4)), slice(left, min(left + width, 10))
            found = torch.stack(pairs.mask(rows, columns))
            for i, row in enumerate(range(rows.start, rows.stop)):
                for j, column in enumerate(range(columns.start, columns.stop)):
                    itself, said = row + own == column, bool(positive[row, column])
                    assert found[:, i, j].tolist() == [said and not itself, not said and not itself]
