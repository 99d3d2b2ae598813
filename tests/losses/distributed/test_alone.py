"""What needs one process only: drawing classes, errors, and a loss that is distributed over nobody."""

import pytest
import torch

from nearfar import losses
from nearfar.losses.distributed import count_traffic, distribute, full_state, is_sharded, load_full_state
from nearfar.losses.distributed.sampling import drawn

CPU = torch.device("cpu")
CLASSES, SIZE = 30, 8


def batch(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(9, SIZE, generator=generator, dtype=torch.float64)
    return x, torch.tensor([3, 3, 3, 7, 7, 20, 20, 20, 29])


# Drawing


@pytest.mark.parametrize("rate", [0.01, 0.1, 0.5, 0.9])
def test_classes_are_drawn_at_the_rate(rate: float) -> None:
    n = 200_000
    counts = [int(drawn(0, n, rate, seed=5, step=step, device=CPU).sum()) for step in range(3)]
    deviation = (n * rate * (1 - rate)) ** 0.5
    assert len(set(counts)) == 3
    assert all(abs(count - n * rate) < 5 * deviation for count in counts)


def test_draws_of_a_class_in_many_steps_are_at_the_rate_and_independent_of_its_neighbour() -> None:
    steps = torch.stack([drawn(1000, 1002, 0.3, seed=1, step=step, device=CPU) for step in range(4_000)]).double()
    first, second = steps.t()
    assert abs(first.mean() - 0.3) < 5 * (0.21 / 4_000) ** 0.5
    assert abs((first * second).mean() - 0.09) < 5 * (0.09 * 0.91 / 4_000) ** 0.5
    assert abs((first[1:] * first[:-1]).mean() - 0.09) < 5 * (0.09 * 0.91 / 4_000) ** 0.5


def test_draws_do_not_depend_on_who_draws_them() -> None:
    whole = drawn(0, 1000, 0.3, seed=2, step=7, device=CPU)
    parts = [drawn(first, stop, 0.3, seed=2, step=7, device=CPU) for first, stop in ((0, 37), (37, 37), (37, 1000))]
    assert torch.equal(torch.cat(parts), whole)
    assert not torch.equal(drawn(0, 1000, 0.3, seed=3, step=7, device=CPU), whole)
    assert not torch.equal(drawn(0, 1000, 0.3, seed=2, step=8, device=CPU), whole)


def test_a_large_seed_and_step_are_fine() -> None:
    assert drawn(2**40, 2**40 + 1000, 0.5, seed=2**70 + 1, step=2**50, device=CPU).any()


# Sampled losses


def sampled(loss: losses.Loss, rate: float = 0.3, seed: int = 0) -> losses.Loss:
    return distribute(loss, sample_rate=rate, seed=seed)


def test_a_sampled_softmax_is_the_loss_of_the_classes_that_take_part() -> None:
    torch.manual_seed(0)
    loss = sampled(losses.CosFaceLoss(CLASSES, SIZE).double())
    x, labels = batch()
    value = loss(x, labels)
    assert loss.sampled is not None and loss.weight is not None and len(loss.sampled) < CLASSES
    alone = losses.CosFaceLoss(len(loss.sampled), SIZE).double()
    alone.weight = torch.nn.Parameter(loss.weight.detach()[loss.sampled])
    expected = alone(x, torch.tensor([loss.sampled.tolist().index(label) for label in labels.tolist()]))
    torch.testing.assert_close(value, expected)


@pytest.mark.parametrize("proxies_per_class", [1, 2])
def test_a_sampled_proxy_anchor_is_right_on_average(proxies_per_class: int) -> None:
    torch.manual_seed(0)
    plain = losses.ProxyAnchorLoss(CLASSES, SIZE, alpha=4.0, proxies_per_class=proxies_per_class).double()
    loss = sampled(losses.ProxyAnchorLoss(CLASSES, SIZE, alpha=4.0, proxies_per_class=proxies_per_class).double())
    loss.load_state_dict(plain.state_dict(), strict=False)
    x, labels = batch()
    x.requires_grad_()
    expected = plain(x, labels)
    wanted = torch.autograd.grad(expected, (x, plain.weight))
    values, by_x, by_weight = [], [], []
    for _ in range(250):
        value = loss(x, labels)
        gradients = torch.autograd.grad(value, (x, loss.weight))
        values.append(value.detach())
        by_x.append(gradients[0])
        by_weight.append(gradients[1])
    assert len({float(value) for value in values}) > 200
    for drawn_values, whole in ((values, expected.detach()), (by_x, wanted[0]), (by_weight, wanted[1])):
        stacked = torch.stack(drawn_values)
        error = stacked.std(0) / len(stacked) ** 0.5
        assert bool(((stacked.mean(0) - whole).abs() <= 5 * error + 1e-12).all())
        assert float((stacked[0] - whole).abs().max()) > 1e-6  # each by itself is not


def test_evaluation_takes_all_classes() -> None:
    torch.manual_seed(0)
    loss = sampled(losses.ArcFaceLoss(CLASSES, SIZE).double())
    plain = losses.ArcFaceLoss(CLASSES, SIZE).double()
    assert loss.weight is not None
    plain.weight = torch.nn.Parameter(loss.weight.detach().clone())
    x, labels = batch()
    with torch.no_grad():
        torch.testing.assert_close(loss(x, labels), plain(x, labels))
    assert int(loss.sampling_step) == 0
    assert not torch.allclose(loss(x, labels), plain(x, labels), rtol=1e-6)
    assert int(loss.sampling_step) == 1
    torch.testing.assert_close(loss.eval()(x, labels), plain(x, labels))


def test_a_saved_loss_goes_on_with_the_same_classes() -> None:
    torch.manual_seed(0)
    loss, later = (sampled(losses.CosFaceLoss(CLASSES, SIZE).double()) for _ in range(2))
    x, labels = batch()
    for _ in range(3):
        loss(x, labels)
    later.load_state_dict(loss.state_dict())
    assert torch.equal(loss(x, labels), later(x, labels))
    assert loss.sampled is not None and later.sampled is not None and torch.equal(loss.sampled, later.sampled)


def test_all_dimensions_of_a_matryoshka_see_the_same_classes() -> None:
    torch.manual_seed(0)
    loss = distribute(losses.MatryoshkaLoss(losses.CosFaceLoss(CLASSES, SIZE).double(), [4, SIZE]), sample_rate=0.3)
    x, labels = batch()
    parts = loss.parts(x, labels)
    inner = loss.loss
    assert isinstance(inner, losses.CosFaceLoss) and inner.weight is not None and inner.sampled is not None
    assert int(inner.sampling_step) == 1
    chosen = inner.sampled.tolist()
    for dim, value in parts.items():
        alone = losses.CosFaceLoss(len(chosen), dim).double()
        alone.weight = torch.nn.Parameter(inner.weight.detach()[chosen, :dim])
        torch.testing.assert_close(value, alone(x[:, :dim], torch.tensor([chosen.index(c) for c in labels.tolist()])))


# One process


def test_without_other_processes_nothing_changes() -> None:
    torch.manual_seed(0)
    plain = losses.CosFaceLoss(CLASSES, SIZE).double() + losses.CircleLoss()
    torch.manual_seed(0)
    loss = distribute(losses.CosFaceLoss(CLASSES, SIZE).double() + losses.CircleLoss(), sharded=True)
    x, labels = batch()
    with count_traffic() as traffic:
        value = loss(x, labels)
        value.backward()
    assert traffic.sent == 0 and torch.equal(value, plain(x, labels))
    assert not any(is_sharded(parameter) for parameter in loss.parameters())
    assert full_state(loss).keys() == plain.state_dict().keys()
    load_full_state(loss, plain.state_dict())


def test_class_weights_without_values_are_drawn() -> None:
    loss = losses.SubCenterArcFaceLoss(5000, SIZE, sub_centers=2, sharded=True)
    assert loss.weight is not None and loss.weight.is_meta
    with pytest.raises(RuntimeError, match=r"call nearfar\.losses\.distributed\.distribute\(loss\) first"):
        loss(torch.randn(2, SIZE), torch.tensor([0, 1]))
    weight = distribute(loss, seed=1).weight
    assert weight is not None and weight.shape == (10_000, SIZE) and not weight.is_meta
    assert abs(float(weight.detach().std()) / (2 / 10_000) ** 0.5 - 1) < 0.02
    other = distribute(losses.SubCenterArcFaceLoss(5000, SIZE, sub_centers=2, sharded=True), seed=2).weight
    assert other is not None and not torch.equal(weight, other)
    assert torch.isfinite(loss(torch.randn(2, SIZE), torch.tensor([0, 1])))


# Errors


@pytest.mark.parametrize("rate", [0.0, -0.1, 1.1])
def test_a_rate_is_a_share(rate: float) -> None:
    with pytest.raises(ValueError, match="share of the other classes"):
        distribute(losses.CosFaceLoss(3, 4), sample_rate=rate)


def test_whole_matrices_do_not_go_with_ranks() -> None:
    with pytest.raises(ValueError, match="dense=True computes with whole matrices"):
        distribute(0.5 * losses.CircleLoss(dense=True) + losses.CircleLoss())


def test_other_modules_are_refused() -> None:
    with pytest.raises(TypeError, match=r"takes the losses of nearfar\.losses.*CrossEntropyLoss"):
        distribute(losses.SumLoss([torch.nn.CrossEntropyLoss()]))


def test_a_loss_is_distributed_once() -> None:
    loss = distribute(losses.CircleLoss())
    with pytest.raises(ValueError, match="CircleLoss is distributed already"):
        distribute(loss)


def test_a_strip_of_all_classes_is_not_sharded() -> None:
    loss = losses.StripLoss(lambda s, p, n: s.sum(1), num_classes=3, embedding_size=4)
    with pytest.raises(ValueError, match="distribute it with sharded=False"):
        distribute(loss, sharded=True)


def test_what_is_not_distributed_has_a_whole_state_already() -> None:
    with pytest.raises(ValueError, match=r"its state_dict\(\) is whole"):
        full_state(losses.CircleLoss())


def test_masks_of_other_samples_are_as_wide_as_the_batch_of_all_ranks() -> None:
    with pytest.raises(ValueError, match=r"positives must be a boolean mask of shape \(4, 4\)"):
        distribute(losses.CircleLoss())(torch.randn(4, 3), positives=torch.ones(4, 5, dtype=torch.bool))
