"""What is chosen for a loss where the configuration does not say, and what an option puts in its place."""

from typing import Any

import pytest
import torch

from nearfar.cli import main
from nearfar.losses import list_losses
from nearfar.training.build import build_embedder
from nearfar.training.config import LossConfig, TrainConfig
from nearfar.training.defaults import resolve
from nearfar.training.loss_defaults import CLASS_LEVEL, COMMON, EXCEPTIONS, STARTS, Start, defaults_of, defaults_of_sum
from nearfar.training.options import from_dict, loss_info, to_dict, with_options
from tests.training.making import patterns

SCRATCH: dict[str, Any] = {"backbone": "convnet", "accelerator": "cpu"}


def resolved(**options: Any) -> TrainConfig:
    return resolve(with_options(TrainConfig(), {**SCRATCH, **options}), patterns())


FORMS = [
    (info.name, class_level)
    for info in list_losses()
    if info.level != "towers"
    for class_level in ((False, True) if info.level == "pair or class" else (False,))
]


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize(("name", "class_level"), FORMS)
def test_every_loss_has_defaults_that_it_takes(name: str, class_level: bool, start: Start) -> None:
    defaults, info = defaults_of(name, start, class_level), loss_info(name)
    assert min(defaults.lr, defaults.classes, defaults.scale, defaults.boundary, defaults.head_scale) > 0
    assert min(defaults.warmup, defaults.margin_warmup) >= 0
    if defaults.arguments:
        sizes = {"num_classes": 3, "embedding_size": 2}
        sizes = {name: size for name, size in sizes.items() if name in info.arguments}
        loss = info.loss(**sizes, **defaults.arguments)
        for argument, value in defaults.arguments.items():
            assert getattr(loss, argument) == value != info.arguments[argument]
        assert defaults.why


def test_exceptions_are_of_registered_losses() -> None:
    names = {f"{name}{CLASS_LEVEL}" if class_level else name for name, class_level in FORMS}
    assert set(EXCEPTIONS) <= names
    assert all(set(starts) <= {"any", *STARTS} for starts in EXCEPTIONS.values())


def test_rates_are_absolute() -> None:
    classes = COMMON["scratch"].classes
    assert resolved(loss="NormFaceLoss").optimiser.classes == classes
    assert resolved(loss="NormFaceLoss", lr=1e-5).optimiser.classes == classes
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


def test_the_batch_is_of_the_loss() -> None:
    assert resolved(loss="NPairsLoss", **{"sampler.kind": "plain"}).sampler.batch_size == 64
    assert resolved(loss="NTXentLoss", **{"sampler.kind": "plain"}).sampler.batch_size == 128
    assert resolved(loss="NPairsLoss", batch_size=32).sampler.batch_size == 32
    both = defaults_of_sum([LossConfig("NTXentLoss"), LossConfig("NPairsLoss")], "scratch")
    assert both.batch_size == defaults_of("NPairsLoss", "scratch").batch_size


def test_a_sum_has_the_lowest_rates_and_the_longest_warm_up() -> None:
    pair = [LossConfig(name) for name in ("ArcFaceLoss", "NormFaceLoss")]
    both, parts = defaults_of_sum(pair, "scratch"), [defaults_of(loss.name, "scratch") for loss in pair]
    assert both.classes == min(part.classes for part in parts)
    assert both.warmup == max(part.warmup for part in parts)
    assert both.margin_warmup == defaults_of("ArcFaceLoss", "scratch").margin_warmup > 0


def test_warm_up_is_a_tenth_of_all_steps_at_most() -> None:
    assert resolved(loss="ArcFaceLoss", max_steps=20).schedule.warmup_steps <= 2
    assert resolved(loss="ArcFaceLoss", **{"schedule.warmup_steps": 7}).schedule.warmup_steps == 7


def test_the_margin_rises_in_a_third_of_all_steps_at_most() -> None:
    assert resolved(loss="ArcFaceLoss", max_steps=6).schedule.margin_warmup_steps == 2
    assert resolved(loss="ArcFaceLoss", **{"schedule.margin_warmup_steps": 9}).schedule.margin_warmup_steps == 9
    assert resolved(loss="CosFaceLoss").schedule.margin_warmup_steps == 0


@pytest.mark.parametrize(("name", "class_level"), FORMS)
def test_the_command_shows_them(name: str, class_level: bool, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["losses", name]) == 0
    lines = capsys.readouterr().out.splitlines()
    if class_level:
        lines = lines[lines.index("compared with class weights:") :]
    for start, words in STARTS.items():
        defaults = defaults_of(name, start, class_level)
        row = next(line for line in lines if line.strip().startswith(words))
        numbers = [float(number) for number in row.replace(words, "").split()]
        assert numbers[:4] == [defaults.lr, defaults.classes, defaults.scale, defaults.boundary]
        assert numbers[4:] == [defaults.warmup, defaults.margin_warmup, defaults.head_scale, defaults.batch_size]
        for argument, value in defaults.arguments.items():
            assert any(line.strip().startswith(f"--loss.{argument} {str(value).lower()}") for line in lines)
        assert not defaults.why or f"  ({defaults.why})" in lines


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
