"""What is chosen for a loss where the configuration does not say, and what an option puts in its place."""

from typing import Any

import pytest
import torch

from nearfar.cli import main
from nearfar.losses import list_losses
from nearfar.training.build import build_embedder
from nearfar.training.config import LossConfig, TrainConfig
from nearfar.training.defaults import resolve
from nearfar.training.loss_defaults import OF_ALL, OF_LOSS, STARTS, defaults_of, defaults_of_all
from nearfar.training.options import from_dict, loss_info, to_dict, with_options
from tests.training.making import patterns

SCRATCH: dict[str, Any] = {"backbone": "convnet", "accelerator": "cpu"}


def resolved(**options: Any) -> TrainConfig:
    return resolve(with_options(TrainConfig(), {**SCRATCH, **options}), patterns())


def test_the_table_is_of_losses_and_of_their_own_arguments() -> None:
    for name, starts in OF_LOSS.items():
        info = loss_info(name.removesuffix(", class-level"))
        for start, own in starts.items():
            assert start in ("", *STARTS)
            assert set(own) <= set(OF_ALL["scratch"].__dataclass_fields__)
            assert set(own.get("arguments", {})) <= set(info.arguments)


def test_rates_are_absolute() -> None:
    own = OF_ALL["scratch"]
    assert resolved(loss="NormFaceLoss").optimiser.classes == own.classes
    assert resolved(loss="NormFaceLoss", lr=1e-5).optimiser.classes == own.classes
    assert resolved(loss="NormFaceLoss", lr=1e-5).optimiser.lr == 1e-5
    assert resolved(loss="NormFaceLoss", **{"optimiser.classes": 0.5}).optimiser.classes == 0.5


def test_under_sgd_they_are_the_networks() -> None:
    optimiser = resolved(loss="NormFaceLoss", **{"optimiser.name": "sgd", "lr": 0.2}).optimiser
    assert (optimiser.classes, optimiser.scale, optimiser.boundary) == (0.2, 0.2, 0.2)


def test_a_factor_takes_their_place() -> None:
    optimiser = resolved(loss="NormFaceLoss", **{"optimiser.proxies": 100}).optimiser
    assert (optimiser.proxies, optimiser.classes) == (100, None)


def test_what_is_chosen_is_chosen_again() -> None:
    for options in ({}, {"optimiser.proxies": 5}, {"loss": "TripletMarginLoss"}):
        chosen = resolved(**options)
        assert resolve(from_dict(to_dict(chosen)), patterns()) == chosen


def test_a_loss_keeps_the_arguments_it_is_given() -> None:
    assert resolved(loss="TripletMarginLoss").loss[0].arguments == {"mining": "all"}
    assert resolved(loss="TripletMarginLoss", **{"loss.mining": "batch_hard"}).loss[0].arguments == {
        "mining": "batch_hard"
    }


def test_a_sum_has_the_lowest_rates_and_the_longest_warm_up() -> None:
    pair = [LossConfig(name) for name in ("ArcFaceLoss", "NormFaceLoss")]
    both, parts = defaults_of_all(pair, "scratch"), [defaults_of(loss.name, "scratch") for loss in pair]
    assert both.classes == min(own.classes for own in parts)
    assert both.warmup == max(own.warmup for own in parts)


def test_warm_up_is_a_tenth_of_all_steps_at_most() -> None:
    assert resolved(loss="ArcFaceLoss", max_steps=20).schedule.warmup_steps <= 2
    assert resolved(loss="ArcFaceLoss", **{"schedule.warmup_steps": 7}).schedule.warmup_steps == 7


@pytest.mark.parametrize("name", [info.name for info in list_losses() if info.level != "towers"])
def test_the_command_shows_them(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["losses", name]) == 0
    out = capsys.readouterr().out
    assert all(start in out for start in STARTS.values())
    assert f"{defaults_of(name, 'scratch').classes:g}" in out


def test_a_head_scaled_at_the_start_gives_shorter_embeddings() -> None:
    images = torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    norms = []
    for scale in (1.0, 0.3):
        config = resolved(loss="NPairsLoss", head="mlp", dimension=6, head_scale=scale, options={"width": 4})
        torch.manual_seed(0)
        embedder = build_embedder(config).eval()
        norms.append(embedder.project(embedder.features(images), free_norm=True).norm(dim=1))
    assert torch.allclose(0.3 * norms[0], norms[1], rtol=1e-4)
    assert resolved(loss="NPairsLoss").model.head_scale == defaults_of("NPairsLoss", "scratch").head_scale < 1
