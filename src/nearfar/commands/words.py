"""The words of a command line as options of the configuration, and the help on them."""

import textwrap
import types
import typing
from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from nearfar.errors import MissingFileError
from nearfar.foundation.suggestions import suggestion
from nearfar.training.config import TrainConfig
from nearfar.training.options import HELP, ConfigError, Option, all_options, find_option, read_yaml, with_options

WIDTH = 110
COLUMN = 34  # where the explanations begin


def parse(words: Sequence[str], own: Mapping[str, type]) -> tuple[list[str], dict[str, Any], dict[str, Any]]:
    """Positional words; the command's own options; options of the configuration.

    `--name value` and `--name=value` are the same; a truth value may be left out: `--freeze` is `--freeze true`.

    >>> parse(["photos", "--freeze", "--loss", "CircleLoss", "--loss.gamma=80", "--quiet"], {"quiet": bool})
    (['photos'], {'quiet': True}, {'freeze': True, 'loss': 'CircleLoss', 'loss.gamma': '80'})
    """
    positional: list[str] = []
    taken: dict[str, Any] = {}
    options: dict[str, Any] = {}
    queue = list(words)
    while queue:
        word = queue.pop(0)
        if not word.startswith("--"):
            if word.startswith("-") and len(word) > 1:
                raise ConfigError(f"there is no option {word}: options begin with two dashes")
            positional.append(word)
            continue
        name, given, value = word[2:].partition("=")
        kind = _kind(name, own)
        if not given:
            if kind is bool:
                value = queue.pop(0) if queue and queue[0].lower() in ("true", "false") else "true"
            elif not queue:
                raise ConfigError(f"--{name} needs a value")
            else:
                value = queue.pop(0)
        target = taken if name in own else options
        if name in target:
            raise ConfigError(f"--{name} is given twice")
        target[name] = {"true": True, "false": False}.get(value.lower(), value) if kind is bool else value
    return positional, taken, options


def _kind(name: str, own: Mapping[str, type]) -> Any:
    if name in own:
        return own[name]
    if name.startswith("loss."):
        return bool if name.rpartition(".")[2] == "class_level" else str
    known = [f"--{option}" for option in own]
    known += [f"--{part}" for option in all_options() for part in (option.name, option.short) if part]
    try:
        return _given(find_option(name).kind)
    except ConfigError:
        raise ConfigError(f"there is no option --{name}: {suggestion(f'--{name}', known, HELP)}") from None


def configuration(taken: Mapping[str, Any], options: Mapping[str, Any], data: str | None) -> TrainConfig:
    """From --config or --recipe, then DATA, then the options."""
    if "config" in taken and "recipe" in taken:
        raise ConfigError("give --config or --recipe, not both")
    config = TrainConfig()
    if "config" in taken:
        config = read_yaml(taken["config"])
    elif "recipe" in taken:
        from nearfar.training.recipes import recipe

        config = recipe(taken["recipe"])
    if data is not None:
        if {"path", "data.path"} & set(options):
            raise ConfigError("DATA and --data.path are the same: give one of them")
        options = {"data.path": data, **options}
    config = with_options(config, options)
    # Said here, at once: nearfar.data would say it too, after seconds of loading torch and Lightning.
    if data is not None and data != TrainConfig().data.path and not Path(data).expanduser().exists():
        raise MissingFileError(f"there is no {data}: give the path of a data set, or 'glyphs', the embedded one")
    return config


def options_help(without: Container[str] = ()) -> str:
    """Every option, section by section, but those that a command does not take: `without` has their dotted names."""
    sections: dict[str, list[Option]] = {"": []}
    for option in all_options():
        if option.name in without:
            continue
        section, dot, _ = option.name.rpartition(".")
        sections.setdefault(section if dot else "", []).append(option)
    lines = []
    for section, members in sections.items():
        lines.append(f"\n{section or 'the run'}:")
        for option in members:
            lines += entry(option)
        if section == "" and "loss" not in without:
            lines += _loss_entries()
    return "\n".join(lines)


def _loss_entries() -> list[str]:
    return [
        *_described(
            "--loss.ARGUMENT VALUE", "an argument of the loss, such as --loss.gamma 80; nearfar losses NAME lists them"
        ),
        *_described("--loss.NAME.ARGUMENT VALUE", "the same where there are several losses"),
        *_described(
            "--loss.class_level", "of losses that come in both forms: compare with class weights, not with samples"
        ),
        *_described("--loss.memory N", "compare with so many samples of past batches too"),
        *_described("--loss.dims N,N,...", "dimensions that shall work alone (Matryoshka)"),
        *_described("--loss.weight NUMBER", "factor in the sum"),
    ]


def entry(option: Option) -> list[str]:
    """What `--help` says of one option."""
    default = option.default
    shown = f" ({_plain(default)})" if default not in (None, (), {}) and not isinstance(default, bool) else ""
    return _described(f"--{option.short or option.name} {_metavar(option.kind)}".rstrip(), option.help + shown)


def _described(head: str, text: str) -> list[str]:
    lines = textwrap.wrap(text, WIDTH - COLUMN)
    first = f"  {head}"
    if len(first) >= COLUMN:
        return [first, *(" " * COLUMN + line for line in lines)]
    return [first.ljust(COLUMN) + lines[0], *(" " * COLUMN + line for line in lines[1:])]


def _metavar(kind: Any) -> str:
    kind = _given(kind)
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if kind is bool:
        return ""
    if origin is Literal:
        return "|".join(map(str, args))
    if origin is tuple:
        return f"{_metavar(args[0])},..." if args[-1] is Ellipsis else ",".join(map(_metavar, args))
    if origin is Mapping:
        return "{...}"
    return {int: "N", float: "NUMBER", str: "WORD"}.get(kind, "LOSS")


def _given(kind: Any) -> Any:
    """The type of a value that is given: the first of a union's that is not None."""
    if typing.get_origin(kind) in (types.UnionType, typing.Union):
        return next(arg for arg in typing.get_args(kind) if arg is not types.NoneType)
    return kind


def _plain(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(map(_plain, value))
    return f"{value:g}" if isinstance(value, float) else str(value)
