import math

import numpy as np
import pytest
import torch

from nearfar import losses
from nearfar.models import Embedder, EvalTransform, HashingHead, HashingPenalty, pack_codes


def test_outputs_sharpen_with_progress():
    torch.manual_seed(0)
    head, x = HashingHead(5, 16), torch.randn(8, 5)
    z = head.linear(x).double()
    for fraction, sharpness in ((0.0, 1.0), (0.5, math.sqrt(10)), (1.0, 10.0)):
        head.set_progress(fraction)
        torch.testing.assert_close(head(x).double(), torch.tanh(sharpness * z) / 4, atol=1e-5, rtol=1e-5)
    assert head.state_dict()["sharpness"] == 10
    assert head(1e6 * x).norm(dim=1).sub(1).abs().max() < 1e-5
    with pytest.raises(ValueError, match="fraction between 0 and 1"):
        head.set_progress(1.5)
    with pytest.raises(ValueError, match="sharpness must be two positive numbers"):
        HashingHead(5, 16, (2.0, 1.0))


def test_penalty():
    h = np.array([[0.5, -1.0, 1.0, 0.0], [-0.5, -1.0, 1.0, 0.0]])
    # (|h| - 1)^2: 0.25, 0, 0, 1 in both rows; column means: 0, -1, 1, 0
    penalty = HashingPenalty(quantisation=2.0, balance=3.0)
    got = penalty(torch.tensor(h / 2), torch.zeros(2))
    assert got.item() == pytest.approx(2 * 2.5 / 8 + 3 * 2 / 4)
    assert HashingPenalty()(torch.tensor([[0.5, 0.5, -0.5, -0.5], [-0.5, -0.5, 0.5, 0.5]])) == 0
    with pytest.raises(ValueError, match="must not be negative"):
        HashingPenalty(balance=-1)


def test_codes_are_packed_signs():
    embeddings = np.random.default_rng(0).normal(size=(4, 11)).astype(np.float32)
    codes = pack_codes(embeddings)
    for row, code in zip(embeddings, codes, strict=True):
        assert "".join(f"{byte:08b}" for byte in code) == "".join("1" if v > 0 else "0" for v in row) + "0" * 5
    assert np.array_equal(pack_codes(torch.tensor(embeddings)), codes)
    embeddings[0, 0] = np.nan
    with pytest.raises(ValueError, match="broken images"):
        pack_codes(embeddings)


@pytest.mark.parametrize(
    "make_loss",
    [
        lambda: losses.CircleLoss(m=0.25, gamma=16),
        lambda: losses.ProxyAnchorLoss(4, 16),
        lambda: losses.SoftmaxLoss(4, 16),
    ],
    ids=["circle", "proxy-anchor", "softmax"],
)
def test_any_loss_learns_codes(make_loss):
    """Four classes, each a direction and noise: after training the codes of a class agree, the bits are balanced."""
    torch.manual_seed(0)
    labels = torch.arange(4).repeat(16)
    x = torch.nn.functional.one_hot(labels, 8).float() * 2 + torch.randn(64, 8) * 0.3
    model = Embedder(
        torch.nn.Flatten(),
        preprocess=EvalTransform((1, 8), None, False, (0.0,), (1.0,), channels="L"),
        head="hash",
        dimension=16,
    )
    images = x[:, None, None, :]
    together = make_loss() + HashingPenalty(1.0, 1.0)
    optimiser = torch.optim.Adam([*model.parameters(), *together.parameters()], 0.05)
    steps = 120
    for step in range(steps):
        model.set_progress(step / (steps - 1))
        optimiser.zero_grad()
        together(model(images), labels).backward()
        optimiser.step()
    h = model(images).detach() * 4
    assert (h.abs() > 0.9).float().mean() > 0.9
    assert h.mean(0).abs().mean() < 0.5
    codes = model.codes(images)
    assert codes.shape == (64, 2)
    bits = np.unpackbits(codes, axis=1)
    distance = (bits[:, None] != bits).sum(2)
    same = (labels[:, None] == labels).numpy()
    assert distance[same].mean() < 2 < 4 < distance[~same].mean()


def test_parts_share_the_bits():
    model = Embedder("convnet", head="hash", dimension=24, parts=(1, 2))
    model.set_progress(1)
    e = model(torch.randn(2, 3, 32, 32) * 1e4)
    assert e.shape == (2, 24) and e.norm(dim=1).max() <= 1 + 1e-6
    assert model.codes(torch.randn(2, 3, 32, 32)).shape == (2, 3)
