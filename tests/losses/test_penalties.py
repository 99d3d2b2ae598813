"""Penalties of binary codes, by hand; and that they are added to losses, and are none themselves."""

import math

import pytest
import torch

from nearfar import losses

H = [[0.5, -1.0, 1.0, 0.0], [-0.5, -1.0, 1.0, 0.0], [0.25, 1.0, 1.0, -0.5]]


def naive(h: list[list[float]]) -> tuple[float, float]:
    bits = range(len(h[0]))
    quantisation = sum((abs(row[b]) - 1) ** 2 for row in h for b in bits) / (len(h) * len(h[0]))
    balance = sum((sum(row[b] for row in h) / len(h)) ** 2 for b in bits) / len(h[0])
    return quantisation, balance


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_values(dtype: torch.dtype) -> None:
    embeddings = (torch.tensor(H, dtype=torch.float64) / math.sqrt(4)).to(dtype)
    for penalty, expected in zip((losses.QuantizationLoss(), losses.BitBalanceLoss()), naive(H), strict=True):
        assert penalty(embeddings, torch.arange(3)).item() == pytest.approx(expected, rel=1e-6)
        x = embeddings.double().requires_grad_()
        assert torch.autograd.gradcheck(penalty, (x,))


def test_they_are_added_to_a_loss() -> None:
    embeddings, labels = torch.tensor(H) / 2, torch.tensor([0, 0, 1])
    loss = losses.MultiSimilarityLoss() + 0.1 * losses.QuantizationLoss() + 0.2 * losses.BitBalanceLoss()
    quantisation, balance = naive(H)
    expected = losses.MultiSimilarityLoss()(embeddings, labels).item() + 0.1 * quantisation + 0.2 * balance
    assert loss(embeddings, labels).item() == pytest.approx(expected, rel=1e-6)
    assert loss(embeddings, labels, sample_weight=torch.ones(3)).item() == pytest.approx(expected, rel=1e-6)


def test_they_are_listed_apart() -> None:
    names = {info.name for info in losses.list_penalties()}
    assert names == {"BitBalanceLoss", "QuantizationLoss"}
    assert not names & {info.name for info in losses.list_losses()}
    for info in losses.list_penalties():
        assert info.summary and info.paper and info.formula and not info.arguments
