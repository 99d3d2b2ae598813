"""The configuration: read, written, changed; misspelt and wrong values are refused with the nearest right name."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from nearfar.training.config import DataConfig, LossConfig, ModelConfig, TrainConfig
from nearfar.training.defaults import resolve
from nearfar.training.options import (
    ConfigError,
    all_options,
    convert,
    from_dict,
    read_yaml,
    to_dict,
    to_yaml,
    with_options,
)
from tests.training.making import patterns

EXAMPLE = TrainConfig(
    data=DataConfig("photos", size=(256, 128), crop_area=(0.5, 1.0)),
    model=ModelConfig("convnet", parts=(1, 2), options={"width": 8}),
    loss=(
        LossConfig("CircleLoss", {"gamma": 80, "m": 0.4}, weight=0.5, memory=64),
        LossConfig("ArcFaceLoss", {"margin": 0.3}),
    ),
    loggers=("tensorboard",),
    epochs=3,
)


def test_yaml_there_and_back(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(to_yaml(EXAMPLE), encoding="utf-8")
    assert read_yaml(path) == EXAMPLE
    assert read_yaml(path) != replace(EXAMPLE, epochs=4)


def test_an_empty_file_is_the_default(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("", encoding="utf-8")
    assert read_yaml(path) == TrainConfig()


def test_arguments_of_a_loss_stand_beside_the_rest() -> None:
    written = yaml.safe_load(to_yaml(EXAMPLE))["loss"]
    assert written[0] == {"name": "CircleLoss", "weight": 0.5, "memory": 64, "gamma": 80, "m": 0.4}
    assert from_dict({"loss": written[0]}).loss == EXAMPLE.loss[:1]


def test_yaml_numbers_without_a_point() -> None:
    """YAML 1.1 reads 1e-3 as a word."""
    assert yaml.safe_load("1e-3") == "1e-3"
    config = from_dict(yaml.safe_load("{optimiser: {lr: 1e-3}, loss: {name: SupConLoss, temperature: 5e-2}}"))
    assert config.optimiser.lr == 1e-3
    assert config.loss[0].arguments == {"temperature": 0.05}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"epoch": 3}, "there is no option epoch: did you mean epochs"),
        ({"data": {"sise": 3}}, r"there is no option data\.sise: did you mean data\.size"),
        ({"freeze": True}, r"there is no option freeze: did you mean model\.freeze"),
        ({"data": {"size": "large"}}, r"data\.size must be 2 values"),
        ({"epochs": 2.5}, "epochs must be a whole number, not 2.5"),
        ({"epochs": True}, "epochs must be a whole number"),
        ({"model": {"freeze": 1}}, r"model\.freeze must be true or false"),
        ({"model": {"options": 3}}, r"model\.options must be a mapping"),
        ({"model": 3}, "model must be a mapping"),
        ({"sampler": {"kind": "plan"}}, r"sampler\.kind must be auto, pk, .* not 'plan': did you mean plain"),
        ({"loggers": ["tensorbord"]}, "did you mean tensorboard"),
        ({"data": {"crop_area": [0.1]}}, r"data\.crop_area must be 2 values"),
        ({"loss": "CircelLoss"}, "there is no loss CircelLoss: did you mean CircleLoss"),
        ({"loss": "circle"}, "there is no loss circle: did you mean CircleLoss"),
        ({"loss": "zzz"}, "nearfar losses lists them"),
        ({"loss": {"name": "CircleLoss", "gama": 3}}, "CircleLoss has no argument gama: did you mean gamma"),
        ({"loss": {"gamma": 3}}, "loss needs a name"),
        ({"loss": 3}, "must be a loss"),
        ({"loss": {"name": "ArcFaceLoss", "num_classes": 3}}, "comes from the data and the model"),
        ({"loss": "ArcFaceLoss - CircleLoss"}, "is not a loss: write"),
    ],
)
def test_refusals(values: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        from_dict(values)


def test_errors_in_a_file_name_it(tmp_path: Path) -> None:
    path = tmp_path / "my.yaml"
    path.write_text("epoch: 3", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"my\.yaml: there is no option epoch"):
        read_yaml(path)
    path.write_text("a: [", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"my\.yaml is not valid YAML"):
        read_yaml(path)
    with pytest.raises(ConfigError, match="there is no configuration"):
        read_yaml(tmp_path / "none.yaml")


def test_every_option_can_be_set_by_its_name() -> None:
    """With its default, so that nothing changes; and the tree has nothing that the options lack."""
    config = TrainConfig()
    for option in all_options():
        assert with_options(config, {option.name: to_dict(option.default)}) == config, option.name
        assert option.help, option.name
    leaves = [f"{a}.{b}" for a, v in to_dict(config).items() if isinstance(v, dict) for b in v]
    assert set(leaves) <= {option.name for option in all_options()}


def test_short_names_mean_one_option_each() -> None:
    shorts = [option.short for option in all_options() if option.short]
    assert len(shorts) == len(set(shorts))
    assert not set(shorts) & {option.name for option in all_options()}
    assert {"freeze", "backbone", "size", "batch_size", "lr"} <= set(shorts)
    assert "kind" not in shorts


def test_options_of_losses() -> None:
    both = with_options(TrainConfig(), {"loss": "0.5 * CircleLoss + ArcFaceLoss", "loss.CircleLoss.gamma": "64"})
    assert [(loss.name, loss.weight, loss.arguments) for loss in both.loss] == [
        ("CircleLoss", 0.5, {"gamma": 64}),
        ("ArcFaceLoss", 1.0, {}),
    ]
    with pytest.raises(ConfigError, match=r"write --loss\.CircleLoss\.gamma or --loss\.ArcFaceLoss\.gamma"):
        with_options(both, {"loss.gamma": 3})
    with pytest.raises(ConfigError, match=r"not one of the losses: did you mean CircleLoss"):
        with_options(both, {"loss.CircelLoss.gamma": 3})
    with pytest.raises(ConfigError, match=r"loss\.alpha needs a loss: choose one"):
        with_options(TrainConfig(), {"loss.alpha": 16})
    level = with_options(TrainConfig(), {"loss": "CircleLoss", "loss.class_level": True, "loss.dims": "8,16"})
    assert level.loss[0].class_level
    assert level.loss[0].dims == (8, 16)


@pytest.mark.parametrize(
    ("value", "kind", "result"),
    [
        ("3", int, 3),
        (3.0, int, 3),
        ("1e3", int, 1000),
        ("1e-4", float, 1e-4),
        ("yes", bool, True),
        (7, str, "7"),
        ("null", int | None, None),
        ("224", int | tuple[int, int] | None, 224),
        ("256,128", int | tuple[int, int] | None, (256, 128)),
        ("1,2,4", tuple[int, ...], (1, 2, 4)),
        (5, tuple[int, ...], (5,)),
    ],
)
def test_values(value: object, kind: object, result: object) -> None:
    assert convert(value, kind, "x") == result


@pytest.mark.parametrize("name", ["model.dimension", "epochs", "data.flip", "data.pad"])
@pytest.mark.parametrize(("data", "told"), [("photos", r"default: ([\d.]+)"), ("glyphs", r"for glyphs ([\d.]+)")])
def test_help_tells_the_defaults_that_are_taken(name: str, data: str, told: str) -> None:
    found: object = resolve(TrainConfig(), replace(patterns(4, 2), embedded=data == "glyphs"))
    for part in name.split("."):
        found = getattr(found, part)
    help_text = next(option.help for option in all_options() if option.name == name)
    number = re.search(told, help_text)
    assert number is not None and float(number[1]) == found
