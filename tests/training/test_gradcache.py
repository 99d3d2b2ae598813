"""GradCache against the plain step that it must equal: all chunks embedded with a graph, one loss, one backward."""

import copy
import weakref

import pytest
import torch
from torch import Tensor, nn

from nearfar import losses
from nearfar.training.gradcache import GradCache

LABELS = torch.arange(22) % 5
LOSSES = {
    "circle": lambda: losses.CircleLoss(m=0.4, gamma=20),
    "multi-similarity": lambda: losses.MultiSimilarityLoss(),
    "triplet": lambda: losses.TripletMarginLoss(),
    "proxy-anchor": lambda: losses.ProxyAnchorLoss(5, 6),
    "arcface": lambda: losses.ArcFaceLoss(5, 6, scale=8),
    "sum": lambda: losses.CircleLoss(gamma=8) + 0.5 * losses.SoftTripleLoss(5, 6, centers_per_class=2),
    "drawn": lambda: losses.MarginLoss(learn_beta=True, sampling="distance_weighted", nonzero_loss_cutoff=2.0),
    "memory": lambda: losses.CrossBatchMemory(losses.ContrastiveLoss(), 6, memory_size=40),
}


def convnet(dropout: float = 0.4) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1),
        nn.BatchNorm2d(4).eval(),
        nn.GELU(),
        nn.Dropout2d(dropout),
        nn.Conv2d(4, 5, 3, stride=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Dropout(dropout),
        nn.Linear(45, 6),
    )


def made(name: str) -> tuple[nn.Sequential, nn.Module, Tensor]:
    torch.manual_seed(3)
    return convnet().double(), LOSSES[name]().double(), torch.randn(22, 3, 8, 8, dtype=torch.float64)


def gradients(*modules: nn.Module) -> dict[str, Tensor | None]:
    return {f"{i}.{name}": p.grad for i, module in enumerate(modules) for name, p in module.named_parameters()}


@pytest.mark.parametrize("chunk", [1, 5, 11, 21, 22, 100])  # 22 = 4 x 5 + 2: the last may be short
@pytest.mark.parametrize("name", LOSSES)
def test_it_leaves_the_gradients_of_the_whole_batch(name: str, chunk: int) -> None:
    model, loss, inputs = made(name)
    plain_model, plain_loss = copy.deepcopy((model, loss))
    for _ in range(2):  # gradients add up, and the loss's own state moves on
        torch.manual_seed(7)
        embeddings = torch.cat([plain_model(part) for part in inputs.split(chunk)])
        expected = plain_loss(embeddings, LABELS)
        expected.backward()
        drawn_next = torch.rand(3)

        cache = GradCache(model, loss, chunk)
        torch.manual_seed(7)
        value = cache.step(inputs, LABELS)
        assert torch.equal(torch.rand(3), drawn_next)  # the generator is where the plain step left it
        assert not value.requires_grad
        assert not cache.embeddings.requires_grad
        torch.testing.assert_close(value, expected.detach(), rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(cache.embeddings, embeddings.detach(), rtol=1e-12, atol=1e-12)
        found, wanted = gradients(model, loss), gradients(plain_model, plain_loss)
        assert sum(g is not None for g in wanted.values()) >= 8
        torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(dict(loss.named_buffers()), dict(plain_loss.named_buffers()), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["circle", "proxy-anchor"])
def test_without_dropout_it_is_the_whole_batch_embedded_at_once(name: str) -> None:
    model, loss, inputs = made(name)
    model.eval()
    plain_model, plain_loss = copy.deepcopy((model, loss))
    plain_loss(plain_model(inputs), LABELS).backward()
    GradCache(model, loss, 4).step(inputs, LABELS)
    torch.testing.assert_close(gradients(model, loss), gradients(plain_model, plain_loss), rtol=1e-12, atol=1e-12)


def test_it_is_not_the_mean_of_small_batches() -> None:
    """Else everything above would hold for gradient accumulation, too."""
    model, loss, inputs = made("circle")
    model.eval()
    GradCache(model, loss, 11).step(inputs, LABELS)
    accumulated = copy.deepcopy(model)
    accumulated.zero_grad()
    (sum(loss(accumulated(x), y) for x, y in zip(inputs.split(11), LABELS.split(11), strict=True)) / 2).backward()
    assert not torch.allclose(model[0].weight.grad, accumulated[0].weight.grad, rtol=0.05)


def test_batch_statistics_are_refused() -> None:
    model, loss, inputs = made("circle")
    model.train()
    with pytest.raises(ValueError, match=r"statistics of its batch \(1\).*freeze_batch_norm=True"):
        GradCache(model, loss, 4).step(inputs, LABELS)
    untracked = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(192, track_running_stats=False), nn.Linear(192, 6)).double()
    with pytest.raises(ValueError, match="statistics of its batch"):
        GradCache(untracked.eval(), loss, 4).step(inputs, LABELS)
    several = nn.Sequential(*(nn.BatchNorm2d(3) for _ in range(4)))
    with pytest.raises(ValueError, match=r"\(0 and 3 more\)"):
        GradCache(several, loss, 4).step(inputs, LABELS)


def test_a_refused_step_changes_nothing() -> None:
    model, loss, inputs = made("circle")
    model.train()
    state = copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError):
        GradCache(model, loss, 4).step(inputs, LABELS)
    torch.testing.assert_close(model.state_dict(), state)
    assert all(p.grad is None for p in model.parameters())


class Counting(nn.Module):
    """Moves a buffer with every forward pass, and lets it matter."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=torch.float64))
        self.linear = nn.Linear(192, 6)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.calls += 1
        return self.linear(x.flatten(1)) + self.calls * x.flatten(1)[:, :6]


def test_buffers_move_once() -> None:
    torch.manual_seed(0)
    model, inputs = Counting().double(), torch.randn(22, 3, 8, 8, dtype=torch.float64)
    plain, loss = copy.deepcopy(model), losses.CircleLoss(gamma=10)
    embeddings = torch.cat([plain(part) for part in inputs.split(5)])
    loss(embeddings, LABELS).backward()
    cache = GradCache(model, loss, 5)
    cache.step(inputs, LABELS)
    assert model.calls == plain.calls == 5
    torch.testing.assert_close(cache.embeddings, embeddings.detach())
    torch.testing.assert_close(gradients(model), gradients(plain), rtol=1e-12, atol=1e-12)


def test_backward_is_called_once_and_its_scale_reaches_everything() -> None:
    model, loss, inputs = made("proxy-anchor")
    model.eval()
    plain_model, plain_loss = copy.deepcopy((model, loss))
    (1024 * plain_loss(plain_model(inputs), LABELS)).backward()
    seen = []

    def scaled(value: Tensor) -> None:
        seen.append(value)
        (1024 * value).backward()

    GradCache(model, loss, 4).step(inputs, LABELS, backward=scaled)
    assert len(seen) == 1
    torch.testing.assert_close(gradients(model, loss), gradients(plain_model, plain_loss), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("outside", [False, True])
def test_autocast(outside: bool) -> None:
    """Given to it, or around it: then too the weights that the first pass casts must not serve the second."""
    torch.manual_seed(0)
    model, loss, inputs = convnet(0.0), losses.CircleLoss(gamma=10), torch.randn(22, 3, 8, 8)
    plain = copy.deepcopy(model)
    with torch.autocast("cpu", torch.bfloat16):
        embeddings = torch.cat([plain(part) for part in inputs.split(5)])
        expected = loss(embeddings, LABELS)
    expected.backward()
    if outside:
        cache = GradCache(model, loss, 5)
        with torch.autocast("cpu", torch.bfloat16):
            value = cache.step(inputs, LABELS)
    else:
        cache = GradCache(model, loss, 5, autocast=lambda: torch.autocast("cpu", torch.bfloat16))
        value = cache.step(inputs, LABELS)
    assert cache.embeddings.dtype == torch.bfloat16
    torch.testing.assert_close(value, expected.detach())
    torch.testing.assert_close(gradients(model), gradients(plain), rtol=0.02, atol=0.02)


def test_a_frozen_model_trains_the_loss_alone() -> None:
    model, loss, inputs = made("proxy-anchor")
    model.requires_grad_(False)
    GradCache(model, loss, 5).step(inputs, LABELS)
    assert loss.weight.grad.abs().sum() > 0
    assert all(p.grad is None for p in model.parameters())


def test_bad_input() -> None:
    model, loss, inputs = made("circle")
    with pytest.raises(ValueError, match="chunk=0 must be at least 1 sample"):
        GradCache(model, loss, 0)
    with pytest.raises(ValueError, match=r"the loss has shape \(22,\).*set a reduction"):
        GradCache(model, losses.CircleLoss(reduction="none"), 4).step(inputs, LABELS)


class Kept:
    """Counts the bytes that graphs hold for backward, while they hold them."""

    def __init__(self) -> None:
        self.bytes = self.most = 0

    def pack(self, tensor: Tensor) -> "Saved":
        saved = Saved(tensor)
        size = tensor.numel() * tensor.element_size()
        self.bytes += size
        self.most = max(self.most, self.bytes)
        weakref.finalize(saved, self._drop, size)
        return saved

    def _drop(self, size: int) -> None:
        self.bytes -= size


class Saved:
    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


def test_memory_is_that_of_a_chunk() -> None:
    def most(chunk: int) -> int:
        torch.manual_seed(0)
        model, inputs = convnet(), torch.randn(256, 3, 8, 8)
        kept = Kept()
        with torch.autograd.graph.saved_tensors_hooks(kept.pack, lambda saved: saved.tensor):
            GradCache(model, losses.CircleLoss(), chunk).step(inputs, torch.arange(256) % 16)
        assert kept.bytes == 0
        return kept.most

    whole, eighth, small = most(256), most(32), most(8)
    assert whole > 1_000_000
    assert eighth < 0.15 * whole
    assert small < 0.04 * whole
