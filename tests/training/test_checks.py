"""What must be refused is, with words that help; what is fine is not."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from nearfar import losses
from nearfar.data import BalancedSampler, HierarchicalSampler, PKSampler, PlainSampler
from nearfar.training.checks import check_batches, check_classes, check_parameters

LABELS = np.repeat(np.arange(10), 6)  # ten classes of six
ALONE = np.arange(60)  # sixty classes of one


def pairs() -> nn.Module:
    return losses.CircleLoss()


# Parameters


def test_a_loss_in_no_optimiser_is_refused() -> None:
    network, loss = nn.Linear(3, 2), losses.ProxyAnchorLoss(10, 2)
    without = torch.optim.SGD(network.parameters(), lr=0.1)
    with pytest.raises(
        ValueError, match=r"parameters of ProxyAnchorLoss, weight \(10, 2\), is in no optimiser.*loss.parameters\(\)"
    ):
        check_parameters(loss, without)
    check_parameters(loss, torch.optim.SGD([*network.parameters(), *loss.parameters()], lr=0.1))
    check_parameters(loss, without, torch.optim.SGD(loss.parameters(), lr=1.0))


def test_every_forgotten_parameter_is_named() -> None:
    parts = losses.SoftmaxLoss(4, 2), losses.MarginLoss(learn_beta=True)
    loss = parts[0] + parts[1]
    only_weight = torch.optim.SGD([parts[0].weight], lr=0.1)
    with pytest.raises(ValueError, match=r"SoftmaxLoss.bias \(4,\), losses.MarginLoss.beta \(\), are in no optimiser"):
        check_parameters(loss, only_weight)


def test_what_is_not_learned_needs_no_optimiser() -> None:
    optimiser = torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1)
    check_parameters(losses.CircleLoss(), optimiser)
    check_parameters(losses.InfoNCELoss(learnable=False), optimiser)
    check_parameters(losses.CenterLoss(4, 2), optimiser)  # its centres are buffers
    check_parameters(losses.ProxyAnchorLoss(4, 2).requires_grad_(False), optimiser)


# Batches


@pytest.mark.parametrize(
    ("sampler", "loss"),
    [
        (PKSampler(LABELS, 4, 2), losses.CircleLoss()),
        (PKSampler(LABELS, 4, 1), losses.ProxyAnchorLoss(10, 2)),
        (PKSampler(LABELS, 4, 1), losses.CrossBatchMemory(losses.CircleLoss(), 2)),
        (PKSampler(LABELS, 1, 4), losses.ProxyAnchorLoss(10, 2)),
        (PlainSampler(60, 16), losses.CircleLoss() + losses.SoftmaxLoss(10, 2)),
        (PlainSampler(60, 1), losses.SoftTripleLoss(10, 2, centers_per_class=3)),
        (BalancedSampler(LABELS, 16), losses.TripletMarginLoss()),
        (HierarchicalSampler(LABELS, LABELS // 5, 1, 2, 2), losses.MultiSimilarityLoss()),
        (PlainSampler(60, 16), losses.CenterLoss(10, 2)),
        (PlainSampler(60, 16), nn.Identity()),  # a loss of the user's own
    ],
)
def test_what_fits_is_let_through(sampler: Any, loss: nn.Module) -> None:
    check_batches(sampler, LABELS, loss)


def test_classes_of_one_image_have_no_positives() -> None:
    for sampler in (PlainSampler(60, 16), PKSampler(ALONE, 4, 4)):
        with pytest.raises(
            ValueError, match=r"every class has only one image.*no positive pairs, which CircleLoss needs"
        ):
            check_batches(sampler, ALONE, pairs())
        check_batches(sampler, ALONE, losses.ProxyAnchorLoss(60, 2))


def test_one_image_a_class_in_a_batch_makes_no_positives() -> None:
    for loss in (pairs(), pairs() + losses.SoftmaxLoss(10, 2), losses.MatryoshkaLoss(pairs(), [2])):
        with pytest.raises(ValueError, match=r"k=1 image of each class.*CircleLoss needs: use k=2"):
            check_batches(PKSampler(LABELS, 4, 1), LABELS, loss)
    with pytest.raises(ValueError, match="k=1 image of each class"):
        check_batches(HierarchicalSampler(LABELS, LABELS // 5, 1, 2, 1), LABELS, pairs())


def test_a_sampler_that_never_draws_two_of_a_class_is_refused() -> None:
    labels = np.r_[np.arange(99), 0]  # rows 0 and 99 are of one class, and unshuffled batches never hold both
    with pytest.raises(ValueError, match=r"batches of 10 from 99 classes hold no two images of one class.*sampler pk"):
        check_batches(PlainSampler(100, 10, shuffle=False), labels, pairs())
    check_batches(PlainSampler(100, 100), labels, pairs())


def test_a_row_is_no_positive_of_itself() -> None:
    """Classes are filled up by repeating their images, and twice the same image is no pair to learn from."""
    labels = np.r_[np.arange(9), 8]
    sampler = BalancedSampler(labels, 20)
    (drawn,) = sampler.batches(0)[0]
    assert len(np.unique(drawn)) < len(drawn)
    check_batches(sampler, labels, pairs())  # rows 8 and 9
    sampler.batches = lambda epoch: [[np.r_[drawn[drawn < 8], drawn[drawn < 8]]]]  # type: ignore[method-assign]
    with pytest.raises(ValueError, match="hold no two images of one class"):
        check_batches(sampler, labels, pairs())


def test_batches_of_one_class_have_no_negatives() -> None:
    with pytest.raises(ValueError, match=r"batches of 4 hold only one class.*p=2 or more"):
        check_batches(PKSampler(LABELS, 1, 4), LABELS, pairs())
    with pytest.raises(ValueError, match="batches of 1 hold only one class"):
        check_batches(PlainSampler(60, 1), LABELS, pairs())


def test_a_single_class_is_nothing_to_learn_from() -> None:
    for loss in (pairs(), losses.ProxyAnchorLoss(10, 2)):
        with pytest.raises(ValueError, match=r"all rows have the same class.*folder per class"):
            check_batches(PlainSampler(60, 8), np.zeros(60, int), loss)
    with pytest.raises(ValueError, match="no row has a class"):
        check_batches(PlainSampler(60, 8), np.full(60, -1), pairs())


def test_class_ids_must_fit_the_loss() -> None:
    sampler = PlainSampler(60, 16)
    for loss in (
        losses.ProxyAnchorLoss(9, 2),
        losses.SoftTripleLoss(9, 2, centers_per_class=4),
        losses.CenterLoss(9, 2),
        pairs() + losses.CosFaceLoss(9, 2),
    ):
        with pytest.raises(ValueError, match=r"class ids go from 0 to 9, but .* num_classes=9, which is .* 0 to 8$"):
            check_batches(sampler, LABELS, loss)
    with pytest.raises(ValueError, match=r"from 10 to 19.*; number the 10 classes from 0"):
        check_batches(sampler, LABELS + 10, losses.ProxyAnchorLoss(10, 2))
    with pytest.raises(ValueError, match="class ids go from -7 to 2"):
        check_batches(sampler, LABELS - 7 - (LABELS == 6), losses.ProxyAnchorLoss(10, 2))
    check_batches(sampler, LABELS + 1000, pairs())  # pairs need no numbering


def test_rows_of_no_class_are_left_out_or_refused() -> None:
    labels = np.where(LABELS == 9, -1, LABELS)
    for loss in (pairs(), losses.ProxyAnchorLoss(10, 2)):
        with pytest.raises(ValueError, match="6 rows have no class, and a plain sampler draws them"):
            check_batches(PlainSampler(60, 16), labels, loss)
        check_batches(PKSampler(labels, 4, 2), labels, loss)


def test_two_towers_take_no_labels() -> None:
    for loss in (losses.InfoNCELoss(), losses.SelfSupervisedLoss(losses.NTXentLoss()), pairs() + losses.SigLIPLoss()):
        with pytest.raises(ValueError, match=r"compares two views of every sample.*NTXentLoss or SupConLoss"):
            check_batches(PlainSampler(60, 16), LABELS, loss)


@pytest.mark.parametrize("labels", [np.zeros((60, 2), int), np.zeros(60), np.array(["a"] * 60)])
def test_labels_are_class_ids(labels: Any) -> None:
    with pytest.raises(TypeError, match=r"labels must be class ids \(N,\), integers"):
        check_batches(PlainSampler(60, 16), labels, pairs())


def test_the_loss_sees_the_batches_of_all_ranks_together() -> None:
    check_batches(PKSampler(LABELS, 1, 2, rank=1, world_size=2), LABELS, pairs())  # two classes, one on each
    with pytest.raises(ValueError, match="hold only one class"):
        check_batches(PKSampler(LABELS, 1, 2), LABELS, pairs())


# Classes


def test_shared_classes_are_refused() -> None:
    check_classes([0, 0, 1, 2], [3, 4, 4])
    check_classes(["a", "b"], ["c"])
    check_classes([0, 1, -1], [2, -1])  # no class is no shared class
    check_classes([0, 1], [])
    with pytest.raises(ValueError, match=r"2 classes are both trained on and tested \(1, 2\).*data.split=classes"):
        check_classes([0, 1, 2], np.array([2, 1, 1, 7]))
    with pytest.raises(ValueError, match=r"6 classes .* \(0, 1, 2, \.\.\.\)"):
        check_classes(range(6), range(9))
    with pytest.raises(ValueError, match=r"\(cat\)"):
        check_classes(["cat", "dog"], ["cat"])
