"""Where class vectors start."""

import numpy as np
import torch
from torch import nn

from nearfar.losses import CircleLoss, ProxyAnchorLoss, SoftTripleLoss
from nearfar.training.config import TrainConfig
from nearfar.training.start import draw_classes, start_classes
from nearfar.training.train import train
from tests.training.making import SMALL, patterns


def naive_mean(embeddings: np.ndarray, labels: np.ndarray, c: int) -> np.ndarray:
    unit = [x / np.linalg.norm(x) for x, y in zip(embeddings, labels, strict=True) if y == c]
    total = np.sum(unit, 0)
    return total / np.linalg.norm(total)


def test_class_vectors_point_to_their_means():
    rng = np.random.default_rng(0)
    embeddings, labels = rng.normal(size=(20, 6)), rng.integers(0, 4, 20)  # of the fifth class there is none
    loss = ProxyAnchorLoss(5, 6)
    before = loss.weight.detach().numpy().copy()
    start_classes(loss, torch.tensor(embeddings), torch.tensor(labels))
    after = loss.weight.detach().numpy()
    assert np.allclose(np.linalg.norm(after, axis=1), np.linalg.norm(before, axis=1), rtol=1e-5)
    for c in range(4):
        assert np.allclose(after[c] / np.linalg.norm(after[c]), naive_mean(embeddings, labels, c), atol=1e-5)
    assert np.array_equal(after[4], before[4])


def test_class_vectors_of_other_distributions():
    torch.manual_seed(0)
    loss = SoftTripleLoss(30, 20, centers_per_class=10)
    drawn = loss.weight.detach().clone()
    draw_classes(loss, TrainConfig(class_std=0.01))
    torch.testing.assert_close(loss.weight.detach(), drawn * (0.01 / (2 / 300) ** 0.5))
    loss = SoftTripleLoss(30, 20, centers_per_class=10)
    draw_classes(loss, TrainConfig(class_start="uniform"))
    values, bound = loss.weight.detach().flatten().sort().values, 300**-0.5
    evenly = torch.linspace(-bound, bound, len(values))
    assert (values - evenly).abs().max() < 1.95 * 2 * bound / len(values) ** 0.5  # Kolmogorov and Smirnov, one in 1,000
    plain = ProxyAnchorLoss(5, 6)
    before = plain.weight.detach().clone()
    draw_classes(plain, TrainConfig())
    assert torch.equal(plain.weight, before)


def test_several_vectors_of_a_class_stay_apart():
    rng = np.random.default_rng(1)
    embeddings, labels = rng.normal(size=(20, 6)), np.arange(20) % 3
    loss = SoftTripleLoss(3, 6, centers_per_class=4)
    start_classes(loss, torch.tensor(embeddings), torch.tensor(labels))
    unit = nn.functional.normalize(loss.weight.detach()).numpy().reshape(3, 4, 6)
    for c in range(3):
        assert (unit[c] @ naive_mean(embeddings, labels, c) > 0.98).all()
        assert (unit[c] @ unit[c].T - np.eye(4) < 0.99999).all()


def test_losses_without_class_vectors_are_left_alone():
    start_classes(CircleLoss(), torch.randn(4, 3), torch.arange(4))


def test_a_run_starts_at_the_means(tmp_path):
    """With the means, one step's loss is far below that from random proxies."""
    first = []
    for start in ("means", "random"):
        options = {**SMALL, "loss": "ProxyAnchorLoss", "max_steps": 1, "head_start": "pca-whiten", "class_start": start}
        run = train(patterns(), quiet=True, out=str(tmp_path / start), **options)
        assert run.config.class_start == start
        first.append(run.curves[0]["loss"])
    assert first[0] < 0.9 * first[1]
