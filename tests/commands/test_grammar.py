"""The grammar that all commands share."""

import importlib

import pytest

from nearfar.cli import COMMANDS
from nearfar.commands import compare, study, train
from nearfar.commands.grammar import Parser, whole_number
from nearfar.studies import STUDIES
from nearfar.training.options import ConfigError, all_options


def read(*words: str) -> tuple[list[str], dict[str, object]]:
    """DATA and the settings that `nearfar train` reads from these words."""
    form = train.parser()
    options = form.parse_args(words)
    return options.data, form.settings_of(options)


@pytest.mark.parametrize(
    ("words", "data", "settings"),
    [
        ("photos --freeze", ["photos"], {"model.freeze": True}),
        ("--freeze photos", ["photos"], {"model.freeze": True}),
        ("--freeze true photos", ["photos"], {"model.freeze": True}),
        ("--freeze=false", [], {"model.freeze": False}),
        ("--model.freeze", [], {"model.freeze": True}),
        ("--freeze_batch_norm photos", ["photos"], {"model.freeze_batch_norm": True}),
        ("--freeze-batch-norm photos", ["photos"], {"model.freeze_batch_norm": True}),
        ("--freeze-batch-norm statistics photos", ["photos"], {"model.freeze_batch_norm": "statistics"}),
        ("--optimiser.lr -1", [], {"optimiser.lr": "-1"}),
        ("--lr=-1e-3", [], {"optimiser.lr": "-1e-3"}),
        ("--learning_rate 3", [], {"optimiser.lr": "3"}),
        ("--dim 64 --batch-size 8", [], {"model.dimension": "64", "sampler.batch_size": "8"}),
        ("--loss CircleLoss --loss.gamma=80", [], {"loss": "CircleLoss", "loss.gamma": "80"}),
        ("--loss.class_level photos", ["photos"], {"loss.class_level": True}),
        ("--loss.CircleLoss.class-level x", ["x"], {"loss.CircleLoss.class_level": True}),
        ("--loss.pos-margin -0.5", [], {"loss.pos_margin": "-0.5"}),
        ("--crop_area 0.2,1", [], {"data.crop_area": "0.2,1"}),
    ],
)
def test_words(words: str, data: list[str], settings: dict[str, object]) -> None:
    assert read(*words.split()) == (data, settings)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--frezee", "there is no option --frezee: did you mean --freeze"),
        ("--modle.freeze", "did you mean --model.freeze"),
        ("--xyzzy", "there is no option --xyzzy: --help lists them"),
        ("--size", "--size needs a value"),
        ("--seed 1 --seed 2", "--seed is given twice"),
        ("--lr 1 --optimiser.lr 2", "is given twice"),
        ("--freeze=maybe", "--freeze must be true or false, not 'maybe'"),
        ("-f", "unrecognized arguments: -f"),
    ],
)
def test_mistakes(words: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read(*words.split())


def test_losses_to_compare() -> None:
    def losses(*words: str) -> list[str] | None:
        return compare._names(compare.parser().parse_args(words).losses)

    assert losses("photos", "--trials", "3") is None
    assert losses("--losses=A,B", "--quiet") == ["A", "B"]
    assert losses("x", "--losses", "A", "B") == ["A", "B"]
    for words, message in ((["--losses"], "expected at least one"), (["--losses=,"], "needs names")):
        with pytest.raises(ConfigError, match=message):
            losses(*words)
    with pytest.raises(ConfigError, match="--lr is searched for every loss"):
        losses("--lr", "1")
    with pytest.raises(ConfigError, match="--loss belongs to nearfar train"):
        losses("--loss.gamma", "1")


def test_help_names_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    train.parser().print_help()
    shown = capsys.readouterr().out
    assert all(f"--{(option.short or option.name).replace('_', '-')} " in f"{shown} " for option in all_options())
    assert shown.index("--budget") < shown.index("--layout")  # what people choose first


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_a_parser(command: str) -> None:
    form = importlib.import_module(f"nearfar.commands.{command}").parser()
    assert isinstance(form, Parser)
    assert form.format_help().startswith(f"usage: nearfar {command}")


@pytest.mark.parametrize("name", STUDIES)
def test_every_study_has_a_parser(name: str) -> None:
    assert study.parser(name).format_help().startswith(f"usage: nearfar study {name}")


def test_whole_numbers() -> None:
    assert whole_number("100e6") == 100_000_000
    with pytest.raises(ConfigError, match="--trials must be a whole number"):
        compare.parser().parse_args(["--trials", "1.5"])
