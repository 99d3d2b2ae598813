"""Groups, optimisers, schedules, clipping and averages, against what they say in plain arithmetic."""

import copy
import io
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from nearfar import losses
from nearfar.models import Embedder
from nearfar.training.optimisers import Ema, Rates, clip, make_optimiser, make_schedule, parameter_groups


def embedder(**options: Any) -> Embedder:
    torch.manual_seed(0)
    return Embedder("convnet", dimension=6, trunk_options={"width": 8}, **options)


def by_name(groups: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    assert len({group["name"] for group in groups}) == len(groups)
    return {group["name"]: group for group in groups}


# Groups


def test_every_parameter_is_in_one_group_with_its_rate() -> None:
    model, loss = embedder(pool="gem"), losses.ProxyAnchorLoss(4, 6) + losses.MarginLoss(learn_beta=True, num_classes=4)
    rates = Rates(base=1e-3, trunk=0.1, head=2, proxies=50)
    groups = by_name(parameter_groups(model, loss, rates, weight_decay=0.01))
    assert {name: group["lr"] for name, group in groups.items()} == pytest.approx(
        {
            "trunk": 1e-4,
            "trunk/no-decay": 1e-4,
            "head": 2e-3,
            "head/no-decay": 2e-3,
            "proxies": 5e-2,
            "boundary/no-decay": 5e-2,
        }
    )
    listed = [id(p) for group in groups.values() for p in group["params"]]
    assert sorted(listed) == sorted(id(p) for module in (model, loss) for p in module.parameters())
    for name, group in groups.items():
        assert group["weight_decay"] == (0 if name.endswith("no-decay") else 0.01)
    decayed = {id(p) for name, group in groups.items() if "/" not in name for p in group["params"]}
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            assert id(module.weight) not in decayed
            assert id(module.bias) not in decayed
        elif isinstance(module, (nn.Conv2d, nn.Linear)):
            assert id(module.weight) in decayed
            assert module.bias is None or id(module.bias) not in decayed
    assert id(model.pooling.p) not in decayed
    assert id(loss.losses["ProxyAnchorLoss"].weight) in decayed
    assert id(loss.losses["MarginLoss"].beta) not in decayed


def test_proxies_learn_a_hundred_times_as_fast_unless_told() -> None:
    groups = by_name(parameter_groups(embedder(), losses.ProxyAnchorLoss(4, 6), Rates(base=1e-4)))
    assert groups["proxies"]["lr"] == pytest.approx(1e-2)
    assert groups["trunk"]["lr"] == groups["head"]["lr"] == 1e-4


def test_each_kind_of_what_a_loss_learns_has_its_rate() -> None:
    kinds = Rates(base=1e-3, classes=2e-2, scale=3e-2, boundary=4e-2)
    loss = losses.L2SoftmaxLoss(4, 6, learnable=True) + losses.MarginLoss(learn_beta=True)
    groups = by_name(parameter_groups(embedder(), loss, kinds))
    found = {name: groups[name]["lr"] for name in groups if name.split("/")[0] not in ("trunk", "head")}
    assert found == {
        "proxies": 2e-2,
        "proxies/no-decay": 2e-2,
        "scale/no-decay": 3e-2,
        "boundary/no-decay": 4e-2,
    }
    factor = by_name(parameter_groups(embedder(), loss, replace(kinds, proxies=7)))
    assert {factor[name]["lr"] for name in found} == {7e-3}


def test_everything_is_decayed_where_that_is_wished() -> None:
    groups = by_name(parameter_groups(embedder(), losses.ProxyAnchorLoss(4, 6), Rates(), 0.1, decay_all=True))
    assert set(groups) == {"trunk", "head", "proxies"}
    assert {group["weight_decay"] for group in groups.values()} == {0.1}
    assert {p.ndim for p in groups["head"]["params"]} == {1, 2}


def test_a_frozen_trunk_is_left_out_and_one_that_waits_is_not() -> None:
    pair = losses.CircleLoss()
    frozen = by_name(parameter_groups(embedder(freeze_trunk=True, head_start="random"), pair, Rates()))
    assert set(frozen) == {"head", "head/no-decay"}
    waiting = embedder(warmup_epochs=1)
    assert not any(p.requires_grad for p in waiting.trunk_parameters())
    groups = by_name(parameter_groups(waiting, pair, Rates()))
    assert {"trunk", "trunk/no-decay"} <= set(groups)
    with pytest.raises(ValueError, match="there is nothing to train: the trunk is frozen"):
        parameter_groups(Embedder("convnet", head=None, trunk_options={"width": 8}, freeze_trunk=True), pair, Rates())


def test_parameters_of_the_loss_that_are_not_learned_are_left_out() -> None:
    fixed, learned = losses.InfoNCELoss(learnable=False), losses.InfoNCELoss()
    assert "scale/no-decay" not in by_name(parameter_groups(embedder(), fixed, Rates()))
    assert by_name(parameter_groups(embedder(), learned, Rates()))["scale/no-decay"]["params"] == [learned.logit_scale]


def test_the_trunk_starts_when_its_warm_up_ends() -> None:
    """Warm-up epochs move head and proxies alone; then the trunk moves too, by the same optimiser."""
    model, loss = embedder(warmup_epochs=1), losses.ProxyAnchorLoss(4, 6)
    optimiser = make_optimiser("adamw", parameter_groups(model, loss, Rates(), weight_decay=0.1))
    images, labels = torch.randn(8, 3, 16, 16), torch.arange(8) % 4
    for epoch in range(2):
        model.start_epoch(epoch)
        before = copy.deepcopy((dict(model.trunk.named_parameters()), model.heads, loss))
        optimiser.zero_grad()
        loss(model(images), labels).backward()
        optimiser.step()
        moved = any(not torch.equal(p, before[0][name]) for name, p in model.trunk.named_parameters())
        assert moved == (epoch == 1)
        assert not torch.equal(model.heads[0].linear.weight, before[1][0].linear.weight)
        assert not torch.equal(loss.weight, before[2].weight)


@pytest.mark.parametrize("rates", [{"base": -1}, {"proxies": -1}, {"head": math.inf}, {"trunk": math.nan}])
def test_bad_rates(rates: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=f"the rate {next(iter(rates))}=.* must be a finite number, not negative"):
        Rates(**rates)


# Optimisers


def one(value: float = 1.0, decay: float = 0.0) -> tuple[nn.Parameter, list[dict[str, Any]]]:
    parameter = nn.Parameter(torch.tensor([value], dtype=torch.float64))
    return parameter, [{"name": "it", "params": [parameter], "lr": 0.1, "weight_decay": decay}]


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        # by hand: x = 1, gradient 4, rate 0.1, decay 0.5
        ("sgd", {}, 1 - 0.1 * (4 + 0.5)),
        ("adam", {}, 1 - 0.1),  # the first step is the sign of the gradient
        ("adamw", {}, 1 - 0.1 * 0.5 - 0.1),
        ("adam", {"eps": 4.5}, 1 - 0.1 * 4.5 / (4.5 + 4.5)),
        ("rmsprop", {"momentum": 0.0}, 1 - 0.1 * 4.5 / (0.01 * 4.5**2) ** 0.5),
    ],
)
def test_the_first_step_by_hand(name: Any, options: dict[str, float], expected: float) -> None:
    parameter, groups = one(decay=0.5)
    optimiser = make_optimiser(name, groups, **options)
    parameter.grad = torch.tensor([4.0], dtype=torch.float64)
    optimiser.step()
    assert parameter.item() == pytest.approx(expected, abs=1e-6)
    assert optimiser.param_groups[0]["name"] == "it"


def test_momentum_is_of_sgd() -> None:
    parameter, groups = one(0.0)
    optimiser = make_optimiser("sgd", groups, momentum=0.5)
    for _ in range(2):
        parameter.grad = torch.ones(1, dtype=torch.float64)
        optimiser.step()
    assert parameter.item() == pytest.approx(-0.1 - 0.1 * 1.5)


def test_unknown_names() -> None:
    with pytest.raises(ValueError, match="there is no optimiser 'adamW': did you mean adamw"):
        make_optimiser("adamW", one()[1])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="there is no optimiser 'lion': there are adamw, adam, sgd, rmsprop"):
        make_optimiser("lion", one()[1])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="sgd has no eps"):
        make_optimiser("sgd", one()[1], eps=1.0)
    with pytest.raises(ValueError, match="there is no schedule 'cosin': did you mean cosine"):
        make_schedule(make_optimiser("sgd", one()[1]), "cosin", total_steps=3)  # type: ignore[arg-type]


# Schedules


def rates_of(kind: Any, steps: int, **options: Any) -> list[float]:
    optimiser = make_optimiser("sgd", one()[1])
    schedule = make_schedule(optimiser, kind, **options)
    rates = []
    for _ in range(steps):
        rates.append(optimiser.param_groups[0]["lr"] / 0.1)
        optimiser.step()
        schedule.step()
    return rates


def test_schedules_by_hand() -> None:
    assert rates_of("constant", 3) == pytest.approx([1, 1, 1])
    assert rates_of("constant", 4, warmup_steps=2) == pytest.approx([1 / 3, 2 / 3, 1, 1])
    assert rates_of("step", 5, milestones=(1, 3), gamma=0.5) == pytest.approx([1, 0.5, 0.5, 0.25, 0.25])
    assert rates_of("cosine", 5, total_steps=4) == pytest.approx([1, (1 + 0.5**0.5) / 2, 0.5, (1 - 0.5**0.5) / 2, 0])
    half = (1 + math.cos(math.pi / 2)) / 2
    assert rates_of("cosine", 4, warmup_steps=1, total_steps=3) == pytest.approx([0.5, 1, half, 0])
    assert rates_of("cosine", 6, total_steps=2)[2:] == pytest.approx([0] * 4)  # and never up again


def test_all_groups_keep_their_proportion() -> None:
    model, loss = embedder(), losses.ProxyAnchorLoss(4, 6)
    optimiser = make_optimiser("sgd", parameter_groups(model, loss, Rates(base=0.1, proxies=7)))
    schedule = make_schedule(optimiser, "cosine", total_steps=10)
    for _ in range(5):
        optimiser.step()
        schedule.step()
    rates = {group["name"]: group["lr"] for group in optimiser.param_groups}
    assert rates["head"] == pytest.approx(0.05)
    assert rates["proxies"] == pytest.approx(0.35)


@pytest.mark.parametrize("kind", ["constant", "cosine", "step"])
def test_a_run_goes_on_from_its_state(kind: Any) -> None:
    options = {"warmup_steps": 2, "total_steps": 9, "milestones": (4, 6)}

    def run(parameter: nn.Parameter, optimiser: Any, schedule: Any, steps: range) -> None:
        for step in steps:
            parameter.grad = torch.full((1,), 1.0 + step, dtype=torch.float64)
            optimiser.step()
            schedule.step()

    def start() -> tuple[nn.Parameter, Any, Any]:
        parameter, groups = one()
        optimiser = make_optimiser("adamw", groups)
        return parameter, optimiser, make_schedule(optimiser, kind, **options)

    whole = start()
    run(*whole, range(9))
    first, second = start(), start()
    run(*first, range(5))
    file = io.BytesIO()
    torch.save([first[0].data, first[1].state_dict(), first[2].state_dict()], file)
    file.seek(0)
    weights, optimiser_state, schedule_state = torch.load(file, weights_only=True)
    second[0].data.copy_(weights)
    second[1].load_state_dict(optimiser_state)
    second[2].load_state_dict(schedule_state)
    run(*second, range(5, 9))
    assert torch.equal(second[0], whole[0])
    assert second[1].param_groups[0]["lr"] == whole[1].param_groups[0]["lr"]


def test_bad_schedules() -> None:
    optimiser = make_optimiser("sgd", one()[1])
    with pytest.raises(ValueError, match="warmup_steps=-1 must not be negative"):
        make_schedule(optimiser, warmup_steps=-1)
    with pytest.raises(ValueError, match="a cosine needs an end: total_steps=None"):
        make_schedule(optimiser, "cosine")
    with pytest.raises(ValueError, match="total_steps=5 must exceed warmup_steps=5"):
        make_schedule(optimiser, "cosine", warmup_steps=5, total_steps=5)


# Clipping


def with_gradients() -> list[nn.Parameter]:
    a, b, c = (nn.Parameter(torch.zeros(2)) for _ in range(3))
    a.grad, b.grad = torch.tensor([3.0, -20.0]), torch.tensor([4.0, 0.5])
    return [a, b, c]


def test_clip_by_value_by_norm_and_both() -> None:
    a, b, c = with_gradients()
    assert clip([a, b, c]) is None
    assert a.grad is not None and a.grad.tolist() == [3.0, -20.0]
    assert clip(iter([a, b, c]), by_value=10) is None
    assert (a.grad.tolist(), b.grad.tolist(), c.grad) == ([3.0, -10.0], [4.0, 0.5], None)

    a, b, c = with_gradients()
    norm = math.sqrt(9 + 400 + 16 + 0.25)
    assert float(clip([a, b, c], by_norm=2)) == pytest.approx(norm)
    assert torch.cat([a.grad, b.grad]).norm().item() == pytest.approx(2, rel=1e-4)
    assert a.grad[0].item() == pytest.approx(3 * 2 / norm, rel=1e-4)

    a, b, c = with_gradients()
    clipped = math.sqrt(0.5**2 * 4)
    assert float(clip([a, b, c], by_value=0.5, by_norm=1000)) == pytest.approx(clipped)
    with pytest.raises(ValueError, match="by_norm=0 must be positive, or None for no clipping"):
        clip([a], by_norm=0)


# Averages


class Small(nn.Module):
    def __init__(self, value: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([value]))
        self.register_buffer("mean", torch.tensor([2 * value]))
        self.register_buffer("count", torch.tensor(0))


def test_an_average_by_hand() -> None:
    model = Small(1.0)
    ema = Ema(model, decay=0.25)
    expected = 1.0
    for updates, value in enumerate((2.0, 4.0, -3.0, 8.0), start=1):
        with torch.no_grad():
            model.weight.fill_(value)
            model.mean.fill_(2 * value)
            model.count += 1
        ema.update()
        kept = min(0.25, (1 + updates) / (10 + updates))
        expected = kept * expected + (1 - kept) * value
    with ema.swapped():
        assert model.weight.item() == pytest.approx(expected)
        assert model.mean.item() == pytest.approx(2 * expected)
        assert model.count.item() == 4
    assert (model.weight.item(), model.mean.item()) == (8.0, 16.0)


def test_the_weights_come_back_whatever_happens() -> None:
    model = Small(1.0)
    ema = Ema(model)
    with torch.no_grad():
        model.weight.fill_(5.0)

    def fail() -> None:
        with ema.swapped():
            assert model.weight.item() == 1.0
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert model.weight.item() == 5.0
    with ema.swapped():
        with pytest.raises(RuntimeError, match="must not be averaged again"):
            ema.update()
        with pytest.raises(RuntimeError, match="does not nest"), ema.swapped():
            pass
    assert model.weight.item() == 5.0


def test_an_average_goes_on_from_its_state() -> None:
    def train(model: Small, ema: Ema, values: range) -> None:
        for value in values:
            with torch.no_grad():
                model.weight.fill_(float(value))
            ema.update()

    whole, part, later = Small(0.0), Small(0.0), Small(9.0)
    averages = Ema(whole), Ema(part), Ema(later)
    train(whole, averages[0], range(6))
    train(part, averages[1], range(3))
    file = io.BytesIO()
    torch.save(averages[1].state_dict(), file)
    file.seek(0)
    averages[2].load_state_dict(torch.load(file, weights_only=True))
    train(later, averages[2], range(3, 6))
    assert averages[2].state_dict()["updates"] == 6
    assert torch.equal(averages[2].state_dict()["average"]["weight"], averages[0].state_dict()["average"]["weight"])


def test_bad_averages() -> None:
    with pytest.raises(ValueError, match="decay=1 must be at least 0 and below 1"):
        Ema(Small(0.0), decay=1)
    with pytest.raises(ValueError, match="another model: only one of the two has bias"):
        Ema(Small(0.0)).load_state_dict(Ema(nn.Linear(1, 1)).state_dict())
    with pytest.raises(ValueError, match=r"weight has shape \(3, 2\) in them, \(3, 5\) in this one"):
        Ema(nn.Linear(5, 3)).load_state_dict(Ema(nn.Linear(2, 3)).state_dict())
