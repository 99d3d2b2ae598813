"""The parser of all commands: argparse, with options generated from the configuration's dataclasses.

    nearfar COMMAND [ARGUMENTS] [--name value | --name=value | --flag]

Hyphens and underscores in names are equivalent. A flag needs no value, but accepts `true` or `false`. Options of the
configuration may be written with their section (`--model.freeze`) or, if unambiguous, without it (`--freeze`).
"""

import argparse
import textwrap
import types
import typing
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NoReturn

from nearfar.errors import MissingFileError
from nearfar.foundation.run_folder import is_run, not_a_run
from nearfar.foundation.suggestions import suggestion
from nearfar.training.config import LossConfig, TrainConfig
from nearfar.training.options import HELP, ConfigError, Option, all_options, read_yaml, with_options

# The most used options, which `--help` lists first.
FIRST = (
    "loss", "budget", "model.freeze", "model.backbone", "model.dimension", "epochs", "sampler.batch_size",
    "optimiser.lr", "seed", "out",
)  # fmt: skip
OTHER_NAMES = {
    "optimiser.lr": ("learning_rate",),
    "model.dimension": ("dim", "embedding_size"),
    "sampler.batch_size": ("batch",),
    "optimiser.weight_decay": ("weight_decay",),
}
LOSS_OPTIONS: Mapping[str, tuple[Any, str]] = {
    "loss.ARGUMENT": (str, "an argument of the loss, such as --loss.gamma 80; nearfar losses NAME lists them"),
    "loss.NAME.ARGUMENT": (str, "the same with several losses"),
    "loss.class_level": (bool, "for losses with both forms: compare with class vectors, not with samples"),
    "loss.memory": (int, "also compare with N samples of past batches"),
    "loss.dims": (tuple[int, ...], "leading dimensions that are trained to work by themselves (Matryoshka)"),
    "loss.weight": (float, "factor in the sum of losses"),
}
TRUTH = ("true", "false")
WIDTH = 112


class Flag(argparse.Action):
    """An option that needs no value, but accepts `true`, `false` or further words."""

    def __init__(self, option_strings: Sequence[str], dest: str, words: Sequence[str] = (), **options: Any):
        super().__init__(option_strings, dest, nargs=1, metavar=None, **options)
        self.words = (*TRUTH, *words)

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        setattr(namespace, self.dest, values[0] == "true" if values[0] in TRUTH else values[0])


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Formats wide help, without placeholders for the values of flags."""

    def __init__(self, prog: str):
        super().__init__(prog, max_help_position=34, width=WIDTH)

    def _format_args(self, action: argparse.Action, default_metavar: str) -> str:
        return "" if isinstance(action, Flag) else super()._format_args(action, default_metavar)


class Parser(argparse.ArgumentParser):
    """The argument parser of one command."""

    def __init__(self, usage: str, description: str, examples: Mapping[str, str] | None = None):
        """Create the parser.

        Args:
            usage: usage without "nearfar", such as "search RUN IMAGE ...".
            description: what the command does.
            examples: arguments, with what each example does.
        """
        shown = [f"  nearfar {words:<54}  {text}" for words, text in (examples or {}).items()]
        super().__init__(
            prog=f"nearfar {usage.split()[0]}",
            usage=f"nearfar {usage}",
            description="\n".join([textwrap.fill(description, WIDTH), *([""] if shown else []), *shown]),
            formatter_class=HelpFormatter,
            allow_abbrev=False,
        )
        self.settings: set[str] = set()
        self.given: set[str] = set()  # destinations of the options on the command line, after parsing
        self._refused: dict[str, str] = {}

    def flag(self, name: str, *, group: Any = None, default: bool | None = False, **options: Any) -> None:
        """Add a flag."""
        (group or self).add_argument(name, action=Flag, default=default, **options)

    def add_run(self, name: str = "run", **options: Any) -> None:
        """Add an argument for the folder of a run."""
        self.add_argument(name, metavar="RUN", type=_run, **{"help": "run folder, written by nearfar train", **options})

    def add_device(self, what: str = "device of the network") -> None:
        """Add an option for the device."""
        self.add_argument("--device", default="cpu", type=_device, help=f"{what} (cpu)")

    def refuse(self, *names: str, because: str) -> None:
        """Reject options of other commands with a reason."""
        self._refused |= dict.fromkeys(names, because)

    def error(self, message: str) -> NoReturn:
        message = message.removeprefix("argument ")
        for kind, expected in (("int", "a whole number"), ("float", "a number")):
            message = message.replace(f": invalid {kind} value: ", f" must be {expected}, not ")
        raise ConfigError(message)

    def parse_args(self, words: Any = None, namespace: Any = None) -> Any:
        """Parse the arguments; `settings_of` returns the options of the configuration."""
        return super().parse_args(self._normalised(list(words)), namespace)

    # Options of the configuration

    def add_settings(self, without: Collection[str] = (), first: Sequence[str] = FIRST) -> None:
        """Add all options of the configuration except those `without`, by their dotted names."""
        settings = {option.name: option for option in all_options() if option.name not in without}
        chosen = [settings[name] for name in first if name in settings]
        group = self.add_argument_group(
            "most used",
            "--freeze is short for --model.freeze: the sections data, sampler and model may be left out. In YAML, "
            "options are nested in their sections. Separate several values by commas.",
        )
        for option in chosen:
            self._add_setting(group, option)
        sections: dict[str, list[Option]] = {}
        for option in settings.values():
            if option not in chosen:
                sections.setdefault(option.name.rpartition(".")[0], []).append(option)
        if "loss" in settings:
            group = self.add_argument_group("the loss")
            for name, (kind, text) in LOSS_OPTIONS.items():
                add_named(group, name, kind, text, name)
        for section, options in sections.items():
            group = self.add_argument_group(section or "the run")
            for option in options:
                self._add_setting(group, option)

    def _add_setting(self, group: Any, option: Option) -> None:
        names = [option.name] if option.short is None or self._knows(option.short) else [option.short, option.name]
        no_default = option.default in (None, (), {}) or isinstance(option.default, bool)
        text = option.help if no_default else f"{option.help} ({_formatted(option.default)})"
        text = text.replace("%", "%%")
        add_named(group, names[0], option.kind, text, option.name)
        for name in (*names[1:], *OTHER_NAMES.get(option.name, ())):
            if not self._knows(name):
                add_named(self, name, option.kind, argparse.SUPPRESS, option.name)
        self.settings.add(option.name)

    def _knows(self, name: str) -> bool:
        return f"--{_folded(name)}" in self._option_string_actions

    def settings_of(self, options: argparse.Namespace) -> dict[str, Any]:
        """The options of the configuration on the command line, by their dotted names."""
        return {name: value for name, value in vars(options).items() if name in self.settings or name[:5] == "loss."}

    # Arguments

    def _normalised(self, words: list[str]) -> list[str]:
        """Rewrite options to argparse's names with their values after "=", so that a value may begin with a dash, and a
        flag does not consume the next argument.
        """
        result: list[str] = []
        while words:
            word = words.pop(0)
            if not word.startswith("--") or word == "--help":
                result.append(word)
                continue
            name, equals, value = word.partition("=")
            action = self._action(name)
            if action.dest in self.given and not isinstance(action, argparse._AppendAction):
                self.error(f"{name} is given twice")
            self.given.add(action.dest)
            name = action.option_strings[0]
            if isinstance(action, Flag):
                value = value if equals else words.pop(0) if words and words[0] in action.words else "true"
                if value not in action.words:
                    self.error(f"{name} must be {' or '.join(action.words)}, not {value!r}")
                result.append(f"{name}={value}")
            elif action.nargs == "+":
                result += [name, *([value] if equals else [])]
            elif equals or words:
                result.append(f"{name}={value if equals else words.pop(0)}")
            else:
                self.error(f"{name} needs a value")
        return result

    def _action(self, name: str) -> argparse.Action:
        for refused, reason in self._refused.items():
            if _folded(name) == refused or name.startswith(f"{refused}."):
                self.error(f"{refused} {reason}")
        known = {_folded(each): action for each, action in self._option_string_actions.items()}
        if _folded(name) not in known and name.startswith("--loss.") and "loss" in self.settings:
            kind = bool if _folded(name).endswith(".class-level") else str  # options.py converts the others
            add_named(self, name[2:], kind, argparse.SUPPRESS, name[2:].replace("-", "_"))
            return self._actions[-1]
        if _folded(name) not in known:
            self.error(f"there is no option {name}: {suggestion(_folded(name), known, HELP)}")
        return known[_folded(name)]


def add_named(group: Any, name: str, kind: Any, text: str, dest: str) -> None:
    """Add `--name`; the parsed result contains it only if it is on the command line."""
    shown = name.replace("_", "-")
    if _value_kind(kind) is bool:
        words = [word for part in typing.get_args(kind) for word in typing.get_args(part)]
        group.add_argument(f"--{shown}", action=Flag, words=words, dest=dest, default=argparse.SUPPRESS, help=text)
    else:
        group.add_argument(f"--{shown}", metavar=_metavar(kind), dest=dest, default=argparse.SUPPRESS, help=text)


def configuration(
    settings: Mapping[str, Any],
    data: str | None,
    config: str | None = None,
    recipe: str | None = None,
    base: TrainConfig | None = None,
) -> TrainConfig:
    """The configuration from `base`, a file or a recipe, overridden by DATA and the options."""
    if config is not None and recipe is not None:
        raise ConfigError("--config and --recipe exclude each other: leave one of them out")
    base = TrainConfig() if base is None else base
    if config is not None:
        base = read_yaml(config)
    elif recipe is not None:
        from nearfar.training.recipes import recipe as named

        base = named(recipe)
    if data is not None and "data.path" in settings:
        raise ConfigError("DATA and --data.path are the same: set only one of them")
    # Check paths before importing torch and Lightning, which takes seconds.
    for path in (data, settings.get("data.test")):
        if path is not None and path != TrainConfig().data.path and not Path(path).expanduser().exists():
            raise MissingFileError(f"there is no {path}: give the path of a data set, or 'glyphs', the built-in one")
    if data is not None:
        from nearfar.data.opening import path_of

        settings = {"data.path": path_of(data), **settings}
    return with_options(base, settings)


def _run(word: str) -> str:
    """The folder of a run, checked before slow imports."""
    if not is_run(word):
        raise MissingFileError(not_a_run(word))
    return word


def _device(word: str) -> str:
    """A device of torch that this machine has."""
    if word == "cpu":
        return word
    import torch

    try:
        torch.empty(0, device=word)
    except Exception as error:  # backends raise errors of many types
        accelerator = torch.accelerator.current_accelerator(check_available=True)
        available = "cpu" if accelerator is None else f"cpu or {accelerator}"
        raise argparse.ArgumentTypeError(f"this machine has no device {word!r}: use {available}") from error
    return word


def whole_number(word: str) -> int:
    """Parse a whole number, which may be written as 100e6.

    >>> whole_number("100e6")
    100000000
    """
    try:
        number = float(word)
        if number.is_integer():
            return int(number)
    except (ValueError, OverflowError):
        pass
    raise argparse.ArgumentTypeError(f"invalid int value: {word!r}")


def one_data_set(command: str, names: Sequence[str]) -> str | None:
    """The only data set named on the command line, or None."""
    if len(names) > 1:
        raise ConfigError(f"{command} takes one data set, not {len(names)}: {' '.join(names)}")
    return names[0] if names else None


def _folded(name: str) -> str:
    return name.replace("_", "-")


def _value_kind(kind: Any) -> Any:
    """The type of a value: the first type of a union that is not None."""
    if typing.get_origin(kind) in (types.UnionType, typing.Union):
        return next(each for each in typing.get_args(kind) if each is not types.NoneType)
    return kind


def _metavar(kind: Any) -> str:
    kind = _value_kind(kind)
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin is Literal:
        return "|".join(map(str, args))
    if origin is tuple:
        if args[-1] is not Ellipsis:
            return ",".join(map(_metavar, args))
        return _metavar(args[0]) + ("" if args[0] is LossConfig else ",...")
    if origin is Mapping:
        return "{...}"
    return {int: "N", float: "NUMBER", str: "WORD"}.get(kind, "LOSS")


def _formatted(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(map(_formatted, value))
    return f"{value:g}" if isinstance(value, float) else str(value)
