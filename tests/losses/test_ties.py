"""Of pairs that are equally hard the first counts, however the work is cut into tiles."""

import pytest
import torch
from torch import Tensor

from nearfar import losses
from nearfar.losses.engine.plan import Sizes


@pytest.mark.parametrize("mining", ["batch_hard", "easy_positive"])
@pytest.mark.parametrize("size", [1, 9, 30])
def test_ties_are_broken_alike_in_tiles(mining: str, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Axes as embeddings: every similarity is exactly 0, so that all pairs are tied."""
    labels = torch.arange(24) % 4
    axes = torch.eye(54, dtype=torch.float64)
    x = (axes[:24] * 2).requires_grad_()

    def gradient(**call: Tensor) -> Tensor:
        loss = losses.TripletMarginLoss(mining=mining, distance="cosine", margin=0.4)
        return torch.autograd.grad(loss(x, labels, **call), x)[0]

    references = {"ref_emb": axes[24:], "ref_labels": torch.arange(30) % 4}
    whole = gradient(), gradient(**references)
    monkeypatch.setattr(losses.Loss, "sizes", Sizes(tile=size))
    assert all(bool(g.abs().sum() > 0) for g in whole)
    assert torch.allclose(gradient(), whole[0], rtol=0, atol=1e-15)
    assert torch.allclose(gradient(**references), whole[1], rtol=0, atol=1e-15)
