"""What norm the embeddings have that a loss sees in training, and that a model gives."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from nearfar.losses import CircleLoss, MatryoshkaLoss, NPairsLoss, SoftmaxLoss, SumLoss, list_losses
from nearfar.models import Embedder
from nearfar.training.config import ModelConfig
from nearfar.training.norms import described, set_norms
from nearfar.training.train import train
from tests.training.making import SMALL, patterns

FREE = {
    "AdaFaceLoss",
    "CenterLoss",
    "LargeMarginSoftmaxLoss",
    "MagFaceLoss",
    "ModifiedSoftmaxLoss",
    "NPairsLoss",
    "SoftmaxLoss",
    "SphereFaceLoss",
}


class Seen(nn.Module):
    """Keeps what it is called with."""

    def __init__(self, free: bool):
        super().__init__()
        if free:
            self.inner = NPairsLoss()

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        self.embeddings = embeddings.detach()
        return embeddings.sum()


def small() -> Embedder:
    torch.manual_seed(0)
    return Embedder("convnet", weights="random", trunk_options={"width": 4}, dimension=6)


IMAGES = torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(0))
LABELS = torch.tensor([0, 0, 1, 1])


def test_which_losses_are_free() -> None:
    assert {info.name for info in list_losses() if info.free_norm} == FREE


@pytest.mark.parametrize(
    ("normalise", "free", "unit"), [("auto", True, False), ("always", True, True), ("never", False, False)]
)
def test_what_a_loss_sees(normalise: Any, free: bool, unit: bool) -> None:
    embedder, loss = small(), Seen(free)
    set_norms(embedder, loss, ModelConfig(normalise=normalise))
    loss(embedder(IMAGES), LABELS)
    norms = loss.embeddings.norm(dim=1)
    assert torch.allclose(norms, torch.ones(4), atol=1e-6) is unit


def test_a_sum_gives_each_part_what_it_is_defined_on() -> None:
    embedder, own, unit = small(), Seen(True), Seen(False)
    loss = SumLoss([own, SumLoss([unit])])
    for _ in range(2):  # a second call changes nothing
        set_norms(embedder, loss, ModelConfig())
    loss(embedder(IMAGES), LABELS)
    assert not torch.allclose(own.embeddings.norm(dim=1), torch.ones(4), atol=1e-2)
    assert torch.allclose(unit.embeddings, nn.functional.normalize(own.embeddings), atol=1e-6)
    set_norms(embedder, loss, ModelConfig(normalise="always"))
    loss(embedder(IMAGES), LABELS)
    assert torch.allclose(own.embeddings.norm(dim=1), torch.ones(4), atol=1e-6)
    set_norms(embedder, loss, ModelConfig(normalise="never"))
    loss(embedder(IMAGES), LABELS)
    assert torch.equal(own.embeddings, unit.embeddings)


def test_a_model_embeds_to_unit_vectors_whatever_training_sees() -> None:
    embedder = small()
    set_norms(embedder, SoftmaxLoss(2, 6), ModelConfig())
    assert not torch.allclose(embedder(IMAGES).norm(dim=1), torch.ones(4), atol=1e-2)
    assert torch.allclose(embedder.eval()(IMAGES).norm(dim=1), torch.ones(4), atol=1e-6)


def test_a_loss_of_unit_vectors_is_the_same_of_any() -> None:
    # So it makes no difference to them; only sums with others need to be told apart.
    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(CircleLoss()(x, LABELS), CircleLoss()(nn.functional.normalize(x), LABELS), atol=1e-4)


def test_in_words() -> None:
    softmax, circle = SoftmaxLoss(2, 6), CircleLoss()
    assert described(softmax, ModelConfig()) == "of any norm, as SoftmaxLoss is defined"
    assert described(MatryoshkaLoss(softmax, [2, 6]), ModelConfig()).startswith("of any norm")
    both = described(SumLoss([softmax, circle]), ModelConfig())
    assert both == "of any norm, as SoftmaxLoss is defined; of norm 1, as CircleLoss is defined"
    assert described(softmax, ModelConfig(normalise="always")) == "of norm 1, as --normalise always says"


def test_a_run_says_which_it_was(tmp_path: Any) -> None:
    run = train(patterns(), loss="SoftmaxLoss", max_steps=4, out=str(tmp_path / "run"), quiet=True, **SMALL)
    assert run.metrics["norms"] == "of any norm, as SoftmaxLoss is defined"
    assert "of any norm, as SoftmaxLoss is defined" in (run.folder / "report.html").read_text(encoding="utf-8")
    table = patterns()
    assert table.images is not None
    assert np.allclose(np.linalg.norm(run.model().embed(list(table.images)[:4]), axis=1), 1, atol=1e-5)
