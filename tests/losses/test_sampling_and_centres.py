"""What the references leave out: drawn negatives, outliers, and running statistics."""

import math

import pytest
import torch

from nearfar import losses
from nearfar.losses.engine.angles import MultiplicativeMargin
from nearfar.losses.engine.spec import LossSpec
from tests.losses.settings import SIZE, unit


def test_distance_weighted_negatives_follow_the_inverse_density() -> None:
    """Of two negatives, the nearer one is drawn with probability proportional to 1 / q(d)."""
    dimension = 8
    angles = torch.tensor([0.0, 0.2, 1.0, 1.3])  # anchor, positive, two negatives
    x = torch.zeros(4, dimension, dtype=torch.float64)
    x[:, 0], x[:, 1] = angles.cos(), angles.sin()
    loss = losses.MarginLoss(sampling="distance_weighted")
    distance = (x - x[:1]).norm(dim=1)[None].repeat(4000, 1)
    negative = torch.tensor([False, False, True, True]).repeat(4000, 1)
    torch.manual_seed(0)
    draw, d = torch.rand(4000, dtype=torch.float64), torch.full((4000, 1), float(dimension), dtype=torch.float64)
    columns, possible = loss._draw_negatives(distance, negative, draw, d, 1)
    assert bool(possible.all()) and set(columns.unique().tolist()) == {2, 3}

    def inverse_density(d: float) -> float:
        return d ** (2 - dimension) * (1 - d * d / 4) ** ((3 - dimension) / 2)

    weights = [inverse_density(float(distance[0, c])) for c in (2, 3)]
    assert abs(float((columns == 2).double().mean()) - weights[0] / sum(weights)) < 0.03


def test_distance_weighted_draws_negatives_only_and_differentiates() -> None:
    x, labels = unit(24, SIZE).requires_grad_(), torch.arange(24) // 4
    loss = losses.MarginLoss(sampling="distance_weighted", learn_beta=True, num_classes=6).double()
    torch.manual_seed(1)
    first = loss(x, labels)
    torch.manual_seed(1)
    again = loss(x, labels)
    torch.testing.assert_close(first, again, rtol=0, atol=0)  # the draw is torch's generator's
    first.backward()
    assert x.grad is not None and bool(x.grad.isfinite().all()) and bool(x.grad.any())
    assert isinstance(loss.beta, torch.nn.Parameter) and loss.beta.grad is not None and bool(loss.beta.grad.any())


def test_a_boundary_that_has_not_moved_is_what_was_given_in_every_precision() -> None:
    for options in ({}, {"learn_beta": True}, {"num_classes": 3}):
        loss = losses.MarginLoss(**options)
        assert bool((loss.double().beta == 1.2).all()) and loss.beta.dtype == torch.float64
        assert bool((loss.half().double().beta == 1.2).all())
    moved = losses.MarginLoss(learn_beta=True)
    with torch.no_grad():
        moved.beta.add_(0.5)
    before = moved.beta.item()
    assert moved.double().beta.item() == before
    assert losses.MarginLoss().to("meta").beta.is_meta


def test_no_negative_is_near_enough_to_be_drawn() -> None:
    x = torch.tensor([[1.0, 0.0], [1.0, 0.1], [-1.0, 0.0], [-1.0, 0.1]], requires_grad=True)
    value = losses.MarginLoss(sampling="distance_weighted")(x, torch.tensor([0, 0, 1, 1]))
    value.backward()
    assert value.item() == 0 and x.grad is not None and not x.grad.any()


def test_outliers_are_far_from_the_dominant_sub_centre() -> None:
    loss = losses.SubCenterArcFaceLoss(2, 2, sub_centers=2)
    with torch.no_grad():
        assert loss.weight is not None
        loss.weight.copy_(torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, -1.0]]))
    x = torch.tensor([[1.0, 0.1], [2.0, 0.1], [0.1, 1.0], [-1.0, 0.1], [-1.0, -0.2]])
    outliers, centers = loss.get_outliers(x, torch.tensor([0, 0, 0, 1, 1]), threshold=math.radians(60))
    assert outliers.tolist() == [2]  # nearest to the second centre of its class, where nobody else is
    torch.testing.assert_close(centers, torch.tensor([[1.0, 0.0], [-1.0, 0.0]]))


def test_running_statistics_move_in_training_only() -> None:
    x, labels = unit(8, SIZE), torch.arange(8) % 5
    ada, curricular = losses.AdaFaceLoss(5, SIZE).double(), losses.CurricularFaceLoss(5, SIZE).double()
    norm = x.norm(dim=1)
    ada(x, labels)
    torch.testing.assert_close(ada.batch_mean, 0.99 * torch.tensor(20.0).double() + 0.01 * norm.mean())
    torch.testing.assert_close(ada.batch_std, 0.99 * torch.tensor(100.0).double() + 0.01 * norm.std())
    curricular(x, labels)
    assert curricular.weight is not None
    own = torch.nn.functional.cosine_similarity(x, curricular.weight.detach()[labels]).mean()
    torch.testing.assert_close(curricular.t, 0.01 * own)
    state = {name: value.clone() for name, value in ada.state_dict().items()}
    ada.eval()(x, labels)
    with torch.no_grad():
        ada.train()(x, labels)
    torch.testing.assert_close(ada.state_dict(), state)


def test_what_centres_refuse() -> None:
    with pytest.raises(ValueError, match="num_classes must be a positive number, not 0"):
        losses.CenterLoss(0, SIZE)
    with pytest.raises(ValueError, match="embedding_size must be a positive number, not 0"):
        losses.CenterLoss(4, 0)
    with pytest.raises(ValueError, match=r"alpha must be between 0 and 1, not 1\.1"):
        losses.CenterLoss(4, SIZE, alpha=1.1)
    loss = losses.SubCenterArcFaceLoss(2, SIZE)
    with pytest.raises(ValueError, match=r"if this one is in degrees, math.radians\(75\) is 1.309"):
        loss.get_outliers(torch.randn(3, SIZE), torch.tensor([0, 1, 1]), threshold=75)


def test_annealing_is_the_papers_unless_told_otherwise() -> None:
    """λ = max(5, 1000 (1 + 0.12 t)^−1): after 100 steps 1000/13, after a million the least."""
    loss = losses.SphereFaceLoss(3, SIZE)
    for step, lam in ((0, 1000.0), (100, 1000 / 13), (10**6, 5.0)):
        loss.iteration.fill_(step)
        spec = loss.spec()
        assert isinstance(spec, LossSpec) and isinstance(spec.positive, MultiplicativeMargin)
        assert spec.positive.lam == pytest.approx(lam)
