"""Batches that end early because nothing is left to learn from, and tables of positives."""

from typing import Any

import pytest
import torch
from torch import Tensor

from nearfar import losses
from nearfar.losses.catalogue import triplets as catalogue
from nearfar.losses.engine.pairs import table_of
from tests.losses.settings import as_if_many, unit


@pytest.mark.parametrize("slots", [None, 4])
def test_a_table_lists_the_true_columns_in_order(slots: int | None) -> None:
    mask = torch.tensor([[0, 1, 0, 1, 1], [0, 0, 0, 0, 0], [1, 0, 0, 0, 1]]).bool()
    columns, filled = table_of(mask, slots)
    assert columns.shape == filled.shape == (3, slots or 3)
    for row, (some, kept) in enumerate(zip(columns, filled, strict=True)):
        assert some[kept].tolist() == mask[row].nonzero()[:, 0].tolist()


def far_apart(hard: bool = False) -> tuple[Tensor, Tensor]:
    """Classes of equal vectors at right angles; with `hard` one sample lies at another class."""
    x = torch.eye(4, dtype=torch.float64).repeat_interleave(3, 0)
    if hard:
        x[4] = torch.tensor([1.0, 0.1, 0, 0])
    return (3 * x).requires_grad_(), torch.arange(12) // 3


EASY = [
    (losses.MultiSimilarityLoss, {}),
    (losses.TripletMarginLoss, {"mining": "all"}),
    (losses.TripletMarginLoss, {"mining": "semihard"}),
]


@pytest.mark.parametrize(("kind", "arguments"), EASY)
@pytest.mark.parametrize("references", [False, True])
def test_nothing_is_left_to_learn(
    kind: type[losses.Loss], arguments: dict[str, Any], references: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Products of gradients are not even begun; one hard sample, and all is as it is by autograd."""
    products: list[int] = []
    product = torch.mm
    monkeypatch.setattr(torch, "mm", lambda *a, **k: (products.append(1), product(*a, **k))[1])
    x, labels = far_apart()
    given = {"ref_emb": x.detach().clone().requires_grad_(), "ref_labels": labels} if references else {}
    loss = kind(**arguments).double()
    value = loss(x, labels, **given)
    gradients = torch.autograd.grad(value, [x, *list(given.values())[:1]])
    assert float(value.detach()) == 0 and not any(bool(g.any()) for g in gradients) and len(products) == 1

    x, labels = far_apart(hard=True)
    ours, other = (each(x, labels, **given) for each in (loss, kind(**arguments, dense=True).double()))
    assert float(ours.detach()) > 0
    torch.testing.assert_close(ours, other)
    torch.testing.assert_close(*(torch.autograd.grad(each, x)[0] for each in (ours, other)))


@pytest.mark.parametrize(("kind", "arguments"), [*EASY, (losses.MarginLoss, {"beta": 0.7})])
@pytest.mark.parametrize("many", [False, True])
def test_a_batch_that_is_no_number_is_not_taken_for_an_easy_one(
    kind: type[losses.Loss], arguments: dict[str, Any], many: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if many:
        as_if_many(monkeypatch)
    x, labels = far_apart()
    with torch.no_grad():
        x[0, 0] = torch.nan
    assert bool(kind(**arguments)(x, labels).isnan())


@pytest.mark.parametrize("semihard", [False, True])
@pytest.mark.parametrize("together", [1, 2**20])
def test_active_triplets_are_counted(semihard: bool, together: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue, "TOGETHER", together)
    d = torch.linspace(0, 2, 7)[torch.randint(0, 7, (5, 12), generator=torch.Generator().manual_seed(0))]  # with ties
    d_p, d_n = d[:, :4].clone(), d[:, 4:].clone()
    d_p[0, 1], d_n[2, 3] = -torch.inf, torch.inf
    triplets = (d_n[:, None] < d_p[:, :, None] + 0.4) & ((d_n[:, None] > d_p[:, :, None]) | (not semihard))
    for count in (catalogue._compared, catalogue._sorted):
        of_positives, of_negatives = count(d_p, d_n, 0.4, semihard)
        assert of_positives.tolist() == triplets.sum(2).tolist()
        assert of_negatives.tolist() == triplets.sum(1).tolist()


def test_two_samples_of_each_class_take_part_in_n_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first two of every class that has two; the rest has no gradient, and no loss of its own."""
    x, labels = unit(9, 5).requires_grad_(), torch.tensor([4, 1, 4, 4, 0, 1, 7, 1, 0])
    loss = losses.NPairsLoss(pairs="one_per_class", l2_weight=0.0, reduction="none").double()
    values = loss(x, labels)
    s = x[[0, 1, 4]] @ x[[2, 5, 8]].t()
    expected = torch.zeros(9, dtype=torch.float64).index_copy(0, torch.tensor([0, 1, 4]), -s.log_softmax(1).diagonal())
    torch.testing.assert_close(values, expected)
    weight = unit(9, seed=3)
    torch.testing.assert_close(*(torch.autograd.grad(v, x, weight)[0] for v in (values, expected)))
    as_if_many(monkeypatch)
    torch.testing.assert_close(loss(x, labels), values)
