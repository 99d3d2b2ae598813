"""Rows that are stepped one by one go the way of torch's optimisers through the steps that touched them."""

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam, AdamW, Optimizer, RMSprop

from nearfar.training.lazy import LazyRows

ROWS, STEPS = 5, 12
MAKERS = {
    "adamw": lambda p: AdamW([p], lr=0.1, weight_decay=0.02),
    "adam": lambda p: Adam([p], lr=0.1, weight_decay=0.02, eps=1e-3),
    "sgd": lambda p: SGD([p], lr=0.1, momentum=0.9, weight_decay=0.02),
    "sgd without momentum": lambda p: SGD([p], lr=0.1),
    "rmsprop": lambda p: RMSprop([p], lr=0.1, momentum=0.5, weight_decay=0.02),
    "rmsprop without momentum": lambda p: RMSprop([p], lr=0.1),
}


def touched(step: int) -> list[int]:
    """Row 0 in every step, row 4 in none."""
    return [row for row in range(ROWS - 1) if (step * (row + 1)) % (row + 1 + row // 2) == 0]


def gradients() -> torch.Tensor:
    return torch.randn(STEPS, ROWS, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("name", MAKERS)
def test_each_row_is_stepped_as_if_it_were_alone(name: str, sparse: bool) -> None:
    start = torch.randn(ROWS, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    weight = nn.Parameter(start.clone())
    optimiser = MAKERS[name](weight)
    lazy = LazyRows(optimiser, [weight])
    for step in range(STEPS):
        rows = torch.tensor(touched(step))
        dense = torch.zeros_like(weight).index_copy_(0, rows, gradients()[step, rows])
        weight.grad = dense.to_sparse(1) if sparse else dense
        for group in optimiser.param_groups:
            group["lr"] = 0.1 / (step + 1)
        lazy.step()
        assert weight.grad is None
        optimiser.step()  # which passes over it
    for row in range(ROWS):
        alone = nn.Parameter(start[row : row + 1].clone())
        usual = MAKERS[name](alone)
        for step in range(STEPS):
            if row in touched(step):
                usual.param_groups[0]["lr"] = 0.1 / (step + 1)
                alone.grad = gradients()[step, row : row + 1]
                usual.step()
        torch.testing.assert_close(weight[row], alone[0], rtol=1e-12, atol=1e-12)
    assert torch.equal(weight[4], start[4]) and not torch.equal(weight[0], start[0])


def test_other_parameters_are_the_optimisers() -> None:
    lazy_one, usual_one = (nn.Parameter(torch.ones(2, 2)) for _ in range(2))
    optimiser = AdamW([lazy_one, usual_one], lr=0.1, weight_decay=0.0)
    lazy_one.grad, usual_one.grad = torch.tensor([[1.0, 1], [0, 0]]), torch.tensor([[1.0, 1], [0, 0]])
    LazyRows(optimiser, [lazy_one]).step()
    assert lazy_one.grad is None and usual_one.grad is not None
    assert torch.equal(usual_one, torch.ones(2, 2))
    optimiser.step()
    torch.testing.assert_close(lazy_one, usual_one)
    again = AdamW([lazy_one, usual_one], lr=0.1)
    again.load_state_dict(optimiser.state_dict())
    assert again.state[lazy_one]["step"].tolist() == [1, 0]


def test_refusals() -> None:
    weight = nn.Parameter(torch.ones(2, 2))

    class Own(Optimizer):
        def __init__(self) -> None:
            super().__init__([weight], {})

    with pytest.raises(TypeError, match="adamw, adam, sgd and rmsprop"):
        LazyRows(Own(), [weight])
    with pytest.raises(ValueError, match="do not support nesterov"):
        LazyRows(SGD([weight], lr=0.1, momentum=0.9, nesterov=True), [weight])
