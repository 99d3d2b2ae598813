"""Memory that is kept from step to step: lent again once nobody sees it, and to nobody before."""

import copy
import io
import sys

import pytest
import torch

from nearfar import losses
from nearfar.losses.engine.memory import Spare
from nearfar.losses.engine.plan import SIZES

CLASSES, SIZE = SIZES.reused // 4 // 32, 32  # whose weights are just large
lends = pytest.mark.skipif(sys.platform != "linux", reason="other systems keep nothing")


def step(loss: losses.Loss, seed: int) -> torch.Tensor:
    """The gradient of the class weights, as a training step leaves it."""
    generator = torch.Generator().manual_seed(seed)
    x, labels = torch.randn(8, SIZE, generator=generator), torch.randint(CLASSES, (8,), generator=generator)
    loss.weight.grad = None
    loss(x, labels).backward()
    gradient: torch.Tensor = loss.weight.grad
    return gradient


@lends
@pytest.mark.parametrize("kind", [losses.CosFaceLoss, losses.ProxyAnchorLoss])
def test_the_gradient_of_the_next_step_is_where_the_last_was(kind: type[losses.Loss]) -> None:
    loss = kind(CLASSES, SIZE)
    first = step(loss, 0).data_ptr()
    assert step(loss, 1).data_ptr() == first


@lends
@pytest.mark.parametrize("kind", [losses.CosFaceLoss, losses.ProxyAnchorLoss])
def test_what_somebody_sees_is_not_lent_again(kind: type[losses.Loss]) -> None:
    loss = kind(CLASSES, SIZE)
    seen = step(loss, 0)[5:]  # a view is enough
    before = seen.clone()
    other = step(loss, 1)
    assert other.data_ptr() != seen.data_ptr() - 5 * SIZE * 4
    assert torch.equal(seen, before)
    assert torch.equal(step(loss, 0)[5:], before)


def test_gradients_of_several_steps_add_up() -> None:
    loss = losses.CosFaceLoss(CLASSES, SIZE)
    expected = step(loss, 0).clone() + step(loss, 1) + step(loss, 2)
    step(loss, 0)
    for seed in (1, 2):
        generator = torch.Generator().manual_seed(seed)
        x, labels = torch.randn(8, SIZE, generator=generator), torch.randint(CLASSES, (8,), generator=generator)
        loss(x, labels).backward()
    torch.testing.assert_close(loss.weight.grad, expected)


@lends
def test_evaluation_and_copies_keep_nothing() -> None:
    loss = losses.CosFaceLoss(CLASSES, SIZE)
    step(loss, 0)
    assert loss.spare.nbytes == loss.weight.nbytes
    assert copy.deepcopy(loss).spare.nbytes == 0
    file = io.BytesIO()
    torch.save(loss, file)
    assert file.tell() < 2.5 * loss.weight.nbytes  # the weight and its gradient
    assert loss.eval().spare.nbytes == 0


def test_small_memory_is_not_kept() -> None:
    loss = losses.CosFaceLoss(CLASSES - 1, SIZE)
    loss(torch.randn(8, SIZE), torch.arange(8)).backward()
    assert loss.spare.nbytes == 0


@lends
def test_the_last_used_sizes_are_kept() -> None:
    spare, like, number = Spare(), torch.empty(0), 64
    one, _ = (spare.take((size,), like).data_ptr() for size in (number, 2 * number))
    assert spare.take((number,), like).data_ptr() == one
    spare.take((3 * number,), like)
    assert spare.nbytes == 4 * 4 * number  # that of two is gone
    assert spare.take((number // 2, 2), like).data_ptr() == one
