"""Losses that are not sums over rows, and centres that move."""

import itertools

import pytest
import torch

from nearfar import losses
from nearfar.errors import InputError
from tests.losses.settings import unit
from tests.reference.proxy import center_update
from tests.reference.test_reference import samples
from tests.reference.tuples import dynamic_soft_margin_histogram

WHOLE = [info.name for info in losses.list_losses() if info.whole_batch and info.level == "pair"]


@pytest.mark.parametrize("name", WHOLE)
def test_one_number(name: str) -> None:
    loss = getattr(losses, name)
    for reduction in ("sum", "none"):
        with pytest.raises(ValueError, match="one number for the batch"):
            loss(reduction=reduction)
    with pytest.raises(ValueError, match="takes no sample_weight"):
        loss()(unit(4, 3), torch.tensor([0, 0, 1, 1]), sample_weight=torch.ones(4))


def test_lifted_takes_no_references() -> None:
    x, labels = unit(4, 3), torch.tensor([0, 0, 1, 1])
    with pytest.raises(ValueError, match="no ref_emb"):
        losses.LiftedStructureLoss()(x, labels, ref_emb=x, ref_labels=labels)


def test_lifted_structure_of_vectors_as_they_are() -> None:
    x, labels = 3 * torch.randn(7, 4, dtype=torch.float64), [0, 1, 0, 2, 1, 0, 2]
    x.requires_grad_()
    terms = []
    for i, j in itertools.combinations(range(7), 2):
        if labels[i] == labels[j]:
            others = [(a, k) for a in (i, j) for k in range(7) if labels[k] != labels[i]]
            pushes = sum(torch.exp(0.7 - (x[a] - x[k]).norm()) for a, k in others)
            terms.append(torch.relu(pushes.log() + (x[i] - x[j]).norm() - 0.2) ** 2 / 2)
    expected = sum(terms) / len(terms)
    loss = losses.LiftedStructureLoss(0.7, 0.2, normalize=False)
    assert loss.free_norm and not losses.LiftedStructureLoss().free_norm
    value = loss(x, torch.tensor(labels))
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(torch.autograd.grad(value, x), torch.autograd.grad(expected, x))


@pytest.mark.parametrize("budget", [10**8, 0], ids=["one-tile", "tiles"])
def test_distances_of_vectors_as_they_are(budget: int) -> None:
    """Every loss of distances, against the same loss of the distances that torch computes."""
    torch.manual_seed(0)  # some negatives are near
    x = (3 * torch.randn(9, 4, dtype=torch.float64)).requires_grad_()
    labels = torch.tensor([0, 1, 0, 2, 1, 0, 2, 1, 2])
    d, same = torch.cdist(x, x, compute_mode="donot_use_mm_for_euclid_dist"), labels[:, None] == labels
    positive, negative = same & ~torch.eye(9, dtype=torch.bool), ~same
    hardest = torch.where(positive, d, -torch.inf).amax(1) - torch.where(negative, d, torch.inf).amin(1)
    every = torch.stack([d[i, j] - d[i, k] for i in range(9) for j in range(9) for k in range(9)
                         if positive[i, j] and negative[i, k]])  # fmt: skip
    pulled, pushed = d[positive], torch.relu(4 - d[negative])
    attraction = torch.where(positive, d, -torch.inf).logsumexp(1)
    repulsion = torch.where(negative, 1 - d, -torch.inf).logsumexp(1)
    options = {"normalize": False, "memory_budget": budget}

    def active(terms: torch.Tensor) -> torch.Tensor:
        return terms.sum() / (terms > 0).sum()

    cases = {
        losses.TripletMarginLoss(0.5, **options): torch.relu(hardest + 0.5).mean(),
        losses.TripletMarginLoss(0.5, mining="all", **options): active(torch.relu(every + 0.5)),
        losses.TripletMarginLoss(0.5, mining="all", smooth_loss=True, **options): (every + 0.5).exp().log1p().mean(),
        losses.ContrastiveLoss(0.0, 4.0, power=1, **options): active(pulled) + active(pushed),
        losses.GeneralizedLiftedStructureLoss(1.0, 0.0, **options): torch.relu(attraction + repulsion).mean(),
    }
    for loss, expected in cases.items():
        assert loss.free_norm
        value = loss(x, labels)
        torch.testing.assert_close(value, expected, msg=str(loss))
        gradient, reference = (torch.autograd.grad(v, x, retain_graph=True)[0] for v in (value, expected))
        torch.testing.assert_close(gradient, reference, msg=str(loss))
    with pytest.raises(InputError, match="needs normalize=True"):
        losses.ContrastiveLoss(distance="cosine", normalize=False)


@pytest.mark.parametrize("name", [*WHOLE, "AngularLoss", "DynamicSoftMarginLoss"])
@pytest.mark.parametrize("labels", [torch.arange(20) // 4, torch.rand(20, 3) < 0.4], ids=["ids", "multi-hot"])
def test_small_strips_change_nothing(name: str, labels: torch.Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    x = unit(20, 4).requires_grad_()
    results = []
    for budget, listed in ((10**8, None), (0, 1), (1000, 40)):
        if listed is not None:
            for module in ("lifted", "angular"):
                monkeypatch.setattr(f"nearfar.losses.catalogue.{module}.LISTED", listed)
            monkeypatch.setattr("nearfar.losses.catalogue.all_pairs.MASKED", listed)
        loss = getattr(losses, name)(memory_budget=budget).double().eval()(x, labels)
        results.append((loss, *torch.autograd.grad(loss, x)))
    for value, gradient in results[1:]:
        torch.testing.assert_close(value, results[0][0])
        torch.testing.assert_close(gradient, results[0][1])


def test_centres_follow_the_papers_rule() -> None:
    loss = losses.CenterLoss(num_classes=4, embedding_size=3, alpha=0.3).double()
    assert list(loss.parameters()) == []
    x, labels = unit(7, 3).requires_grad_(), torch.tensor([0, 2, 2, 0, 2, 1, 2])
    before = loss.centers.clone()
    value = loss(x, labels)
    value.backward()
    torch.testing.assert_close(loss.centers, center_update(before, x.detach(), labels, 0.3))
    assert torch.equal(loss.centers[3], before[3])
    # The loss is of the centres as they were.
    torch.testing.assert_close(x.grad, (x.detach() - before[labels]) / 7)


def test_centres_rest_outside_training() -> None:
    loss = losses.CenterLoss(num_classes=4, embedding_size=3)
    x, labels, before = torch.randn(7, 3), torch.tensor([0, 2, 2, 0, 2, 1, 2]), loss.centers.clone()
    with torch.no_grad():
        loss(x, labels)
    loss.eval()(x.requires_grad_(), labels).backward()
    assert torch.equal(loss.centers, before)
    assert set(loss.state_dict()) == {"centers"}


def test_the_weight_of_the_loss_does_not_move_centres() -> None:
    labels, x = torch.tensor([0, 1, 1]), torch.randn(3, 2)
    centers = []
    for weight in (1.0, 0.003):
        torch.manual_seed(0)
        loss = losses.CenterLoss(2, 2, loss_weight=weight)
        loss(x, labels)
        centers.append(loss.centers)
    assert torch.equal(*centers)


def test_centre_loss_wants_class_ids() -> None:
    loss = losses.CenterLoss(num_classes=2, embedding_size=3)
    with pytest.raises(ValueError, match="class ids"):
        loss(torch.randn(2, 3), torch.tensor([[True, False], [True, True]]))
    with pytest.raises(ValueError, match="labels run from 0 to 5"):
        loss(torch.randn(2, 3), torch.tensor([0, 5]))
    with pytest.raises(ValueError, match="4 dimensions"):
        loss(torch.randn(2, 4), torch.tensor([0, 1]))
    with pytest.raises(ValueError, match="between 0 and 1"):
        losses.CenterLoss(num_classes=2, embedding_size=3, alpha=2)


def test_centre_loss_beside_softmax() -> None:
    loss = losses.SoftmaxLoss(3, 4) + losses.CenterLoss(3, 4, loss_weight=0.003)
    x = torch.randn(6, 4, requires_grad=True)
    loss(x, torch.arange(6) % 3).backward()
    assert x.grad is not None and len(list(loss.parameters())) == 2


def test_the_running_histogram() -> None:
    loss, histogram, labels = losses.DynamicSoftMarginLoss().double(), None, torch.arange(9) // 3
    for seed in range(3):
        x = unit(9, 4, seed=seed).requires_grad_()
        loss(x, labels).backward()
        histogram = dynamic_soft_margin_histogram(samples(x.detach(), labels.tolist()), histogram)
        torch.testing.assert_close(loss.histogram, histogram)
    loss.eval()(x, labels)
    torch.testing.assert_close(loss.histogram, histogram)
    assert loss.half().histogram.dtype == torch.float64
