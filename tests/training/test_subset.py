"""Steps that backpropagate a part of the batch."""

import copy
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from nearfar import losses
from nearfar.training.subset import SubsetStep, chosen, drawn, inclusion
from nearfar.training.train import train
from tests.training.making import SMALL, patterns

LABELS = torch.arange(16) % 4


def made() -> tuple[nn.Module, nn.Module, Tensor]:
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(5, 9), nn.Tanh(), nn.Linear(9, 6)).double()
    return model, losses.ProxyAnchorLoss(4, 6).double(), torch.randn(16, 5, dtype=torch.float64)


def whole(model: nn.Module, loss: nn.Module, inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The loss, its gradient at the embeddings, and that of the first layer: all written out."""
    embeddings = model(inputs)
    embeddings.retain_grad()
    value = loss(embeddings, LABELS)
    value.backward()
    assert embeddings.grad is not None
    return value.detach(), embeddings.grad, model[0].weight.grad


def test_hard_is_the_gradient_of_the_heaviest_samples() -> None:
    model, loss, inputs = made()
    other_model, other_loss = copy.deepcopy((model, loss))
    value, at_embeddings, _ = whole(model, loss, inputs)
    weights = at_embeddings.norm(dim=1)
    rows = weights.argsort(descending=True)[:4].sort().values
    other_copy = copy.deepcopy(other_model)
    step = SubsetStep(other_model, other_loss, "hard", 0.25)
    found = step.step(inputs, LABELS)
    assert torch.equal(step.kept, rows)
    torch.testing.assert_close(found, value)
    torch.testing.assert_close(other_loss.weight.grad, loss.weight.grad)  # of all candidates
    scale = weights.sum() / weights[rows].sum()
    (other_copy(inputs[rows]) * at_embeddings[rows] * scale).sum().backward()
    torch.testing.assert_close(other_model[0].weight.grad, other_copy[0].weight.grad)


@pytest.mark.parametrize("select", ["weighted", "random"])
def test_drawn_parts_have_the_gradient_of_the_whole_on_average(select: str) -> None:
    model, loss, inputs = made()
    expected = whole(*copy.deepcopy((model, loss)), inputs)[2]
    torch.manual_seed(0)
    found = []
    for _ in range(600):
        model.zero_grad()
        SubsetStep(model, loss, select, 0.5).step(inputs, LABELS)
        found.append(model[0].weight.grad.clone())
    gradients = torch.stack(found)
    error = (gradients.mean(0) - expected) / (gradients.std(0) / 600**0.5)
    assert error.abs().max() < 4.5  # standard errors, of 45 numbers
    assert gradients.std(0).max() > 0.005 * expected.abs().max()  # else every step would be the whole


def test_weighted_parts_vary_less_than_random_ones() -> None:
    model, loss, inputs = made()
    inputs[:10] *= 0.1  # embeddings beside each other, whose weights differ from the others'
    spread = {}
    for select in ("weighted", "random"):
        torch.manual_seed(1)
        found = []
        for _ in range(200):
            model.zero_grad()
            SubsetStep(model, loss, select, 0.25).step(inputs, LABELS)
            found.append(model[0].weight.grad.clone())
        spread[select] = torch.stack(found).var(0).sum()
    assert spread["weighted"] < spread["random"]


def test_inclusion_and_drawing() -> None:
    weights = torch.tensor([10.0, 4.0, 1.0, 1.0, 1.0, 1.0, 0.0], dtype=torch.float64)
    probabilities = inclusion(weights, 4)
    torch.testing.assert_close(probabilities, torch.tensor([1, 1, 0.5, 0.5, 0.5, 0.5, 0], dtype=torch.float64))
    torch.manual_seed(2)
    counts = torch.zeros(7, dtype=torch.float64)
    for _ in range(2000):
        rows = drawn(probabilities)
        assert len(rows) == 4 and rows.unique().equal(rows)
        counts[rows] += 1
    torch.testing.assert_close(counts / 2000, probabilities, atol=0.05, rtol=0)


def test_samples_without_weight_are_never_taken() -> None:
    weights = torch.tensor([0.0, 2.0, 0.0, 1.0])
    for select in ("hard", "weighted"):
        rows, factors = chosen(weights, select, 3)
        assert rows.tolist() == [1, 3] and factors.tolist() == [1, 1]
    rows, factors = chosen(torch.zeros(4), "hard", 2)
    assert not len(rows) and not len(factors)
    nothing = lambda embeddings, labels: 0 * embeddings.sum()  # noqa: E731
    model = nn.Linear(5, 6)
    SubsetStep(model, nothing).step(torch.randn(8, 5), LABELS[:8])
    assert model.weight.grad is None


def test_running_statistics_are_of_the_candidates() -> None:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(5, 9), nn.BatchNorm1d(9), nn.Linear(9, 6))
    other = copy.deepcopy(model)
    inputs = torch.randn(16, 5)
    for part in inputs.split(8):
        other(part)
    SubsetStep(model, losses.CircleLoss(), "hard", 0.25, chunk=8).step(inputs, LABELS)
    torch.testing.assert_close(dict(model.named_buffers()), dict(other.named_buffers()))


class Counting(nn.Module):
    """Counts the samples that it keeps activations of."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.graphs, self.without = nn.Linear(5, 6), [], []

    def forward(self, x: Tensor) -> Tensor:
        (self.graphs if torch.is_grad_enabled() else self.without).append(len(x))
        return self.layer(x)


def test_only_the_part_has_a_graph() -> None:
    model = Counting()
    SubsetStep(model, losses.CircleLoss(), "random", 0.25).step(torch.randn(16, 5), LABELS)
    assert (model.without, model.graphs) == ([4] * 4, [4])
    model = Counting()
    SubsetStep(model, losses.CircleLoss(), "hard", 0.5, chunk=6).step(torch.randn(16, 5), LABELS)
    assert (model.without, model.graphs) == ([6, 6, 4], [6, 2])


def test_wrong_settings() -> None:
    model = nn.Linear(5, 6)
    with pytest.raises(ValueError, match="keep=1 must be a share"):
        SubsetStep(model, losses.CircleLoss(), keep=1.0)
    with pytest.raises(ValueError, match="select must be one of hard, weighted, random, not 'easy'"):
        SubsetStep(model, losses.CircleLoss(), "easy")


def test_a_run_learns_from_parts(tmp_path: Path) -> None:
    from nearfar.training.config import TrainConfig
    from nearfar.training.options import with_options

    config = with_options(TrainConfig(), {"select": "hard", "keep": "0.5"})
    assert (config.select, config.select_keep, config.evaluation.keep) == ("hard", 0.5, None)
    assert with_options(TrainConfig(), {"evaluation.keep": "0.5"}).select_keep == 0.5  # as the command line has it
    assert with_options(TrainConfig(), {"keep": "trained"}).evaluation.keep == "trained"
    options = {**SMALL, "epochs": 10, "loss": "MultiSimilarityLoss", "validation": 0, "keep": 0.5, "quiet": True}
    run = train(patterns(), out=str(tmp_path / "run"), select="hard", **options)
    assert run.config.select == "hard" and run.config.select_keep == 0.5
    values = [row["loss"] for row in run.curves if row["loss"] is not None]
    assert values[-1] < 0.7 * values[0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"keep": 1.5}, "keep=1.5 must be a share"),
        ({"devices": 2}, "select works on one device"),
        ({"precision": "16-mixed"}, "select needs precision"),
    ],
)
def test_a_run_refuses_what_does_not_go_with_it(tmp_path: Path, options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        train(patterns(), out=str(tmp_path / "run"), select="hard", **{**SMALL, **options})
