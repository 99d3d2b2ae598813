"""The grammar of all commands: argparse, with options made from the configuration's dataclasses.

    nearfar COMMAND [WORDS] [--name value | --name=value | --flag]

Hyphens and underscores in names are the same. A flag needs no value, and takes `true` or `false`. Options of the
configuration may be written with their section (`--model.freeze`) or, where it is clear, without it (`--freeze`).
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

# What people use first; `--help` begins with these.
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
    "loss.NAME.ARGUMENT": (str, "the same where there are several losses"),
    "loss.class_level": (bool, "of losses that have both forms: compare with class vectors, not with samples"),
    "loss.memory": (int, "compare with N samples of past batches as well"),
    "loss.dims": (tuple[int, ...], "dimensions that are trained to work on their own (Matryoshka)"),
    "loss.weight": (float, "factor in the sum of losses"),
}
TRUTH = ("true", "false")
WIDTH = 112


class Flag(argparse.Action):
    """An option without a value, which takes `true` or `false` all the same, or words of its own."""

    def __init__(self, option_strings: Sequence[str], dest: str, words: Sequence[str] = (), **options: Any):
        super().__init__(option_strings, dest, nargs=1, metavar=None, **options)
        self.words = (*TRUTH, *words)

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        setattr(namespace, self.dest, values[0] == "true" if values[0] in TRUTH else values[0])


class Form(argparse.RawDescriptionHelpFormatter):
    """Wide, and without placeholders for the values of flags."""

    def __init__(self, prog: str):
        super().__init__(prog, max_help_position=34, width=WIDTH)

    def _format_args(self, action: argparse.Action, default_metavar: str) -> str:
        return "" if isinstance(action, Flag) else super()._format_args(action, default_metavar)


class Parser(argparse.ArgumentParser):
    """The words of one command."""

    def __init__(self, usage: str, description: str, examples: Mapping[str, str] | None = None):
        """Its usage without "nearfar", such as "search RUN IMAGE ..."; examples with what each does."""
        shown = [f"  nearfar {words:<54}  {text}" for words, text in (examples or {}).items()]
        super().__init__(
            prog=f"nearfar {usage.split()[0]}",
            usage=f"nearfar {usage}",
            description="\n".join([textwrap.fill(description, WIDTH), *([""] if shown else []), *shown]),
            formatter_class=Form,
            allow_abbrev=False,
        )
        self.settings: set[str] = set()
        self.given: set[str] = set()  # of the options, by their destinations, once words are parsed
        self._refused: dict[str, str] = {}

    def flag(self, name: str, *, group: Any = None, default: bool | None = False, **options: Any) -> None:
        """Add a flag."""
        (group or self).add_argument(name, action=Flag, default=default, **options)

    def add_run(self, name: str = "run", **options: Any) -> None:
        """Take the folder of a run."""
        self.add_argument(name, metavar="RUN", type=_run, **{"help": "folder that nearfar train left", **options})

    def add_device(self, what: str = "where the network computes") -> None:
        """Take the device to compute on."""
        self.add_argument("--device", default="cpu", type=_device, help=f"{what} (cpu)")

    def refuse(self, *names: str, because: str) -> None:
        """Say why options are not taken that other commands have."""
        self._refused |= dict.fromkeys(names, because)

    def error(self, message: str) -> NoReturn:
        message = message.removeprefix("argument ")
        for kind, expected in (("int", "a whole number"), ("float", "a number")):
            message = message.replace(f": invalid {kind} value: ", f" must be {expected}, not ")
        raise ConfigError(message)

    def parse_args(self, words: Any = None, namespace: Any = None) -> Any:
        """The values of all options; those of the configuration are in `settings_of`."""
        return super().parse_args(self._normalised(list(words)), namespace)

    # Options of the configuration

    def add_settings(self, without: Collection[str] = (), first: Sequence[str] = FIRST) -> None:
        """Take every option of the configuration but those `without`, which are given by their dotted names."""
        settings = {option.name: option for option in all_options() if option.name not in without}
        chosen = [settings[name] for name in first if name in settings]
        group = self.add_argument_group(
            "what people choose first",
            "--freeze is short for --model.freeze: data, sampler and model may be left out. In YAML, options stand in "
            "their section. Several values are separated by commas.",
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
        says_nothing = option.default in (None, (), {}) or isinstance(option.default, bool)
        text = option.help if says_nothing else f"{option.help} ({_in_words(option.default)})"
        text = text.replace("%", "%%")
        add_named(group, names[0], option.kind, text, option.name)
        for name in (*names[1:], *OTHER_NAMES.get(option.name, ())):
            if not self._knows(name):
                add_named(self, name, option.kind, argparse.SUPPRESS, option.name)
        self.settings.add(option.name)

    def _knows(self, name: str) -> bool:
        return f"--{_folded(name)}" in self._option_string_actions

    def settings_of(self, options: argparse.Namespace) -> dict[str, Any]:
        """Those options of the configuration that are given, by their dotted names."""
        return {name: value for name, value in vars(options).items() if name in self.settings or name[:5] == "loss."}

    # Words

    def _normalised(self, words: list[str]) -> list[str]:
        """Options by the names that argparse knows, their values behind "=": so a value may begin with a dash, and a
        flag does not swallow the word after it.
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
                    self.error(f"{name} is {' or '.join(action.words)}, not {value!r}")
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
            kind = bool if _folded(name).endswith(".class-level") else str  # the losses know the rest
            add_named(self, name[2:], kind, argparse.SUPPRESS, name[2:].replace("-", "_"))
            return self._actions[-1]
        if _folded(name) not in known:
            self.error(f"there is no option {name}: {suggestion(_folded(name), known, HELP)}")
        return known[_folded(name)]


def add_named(group: Any, name: str, kind: Any, text: str, dest: str) -> None:
    """Add `--name`, which is left out of the result where it is not given."""
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
    """From `base`, a file or a recipe, then DATA, then the options."""
    if config is not None and recipe is not None:
        raise ConfigError("give --config or --recipe, not both")
    base = TrainConfig() if base is None else base
    if config is not None:
        base = read_yaml(config)
    elif recipe is not None:
        from nearfar.training.recipes import recipe as named

        base = named(recipe)
    if data is not None and "data.path" in settings:
        raise ConfigError("DATA and --data.path are the same: give one of them")
    # nearfar.data would say so too, but only after seconds of importing torch and Lightning.
    for path in (data, settings.get("data.test")):
        if path is not None and path != TrainConfig().data.path and not Path(path).expanduser().exists():
            raise MissingFileError(f"there is no {path}: give the path of a data set, or 'glyphs', the embedded one")
    if data is not None:
        from nearfar.data.opening import path_of

        settings = {"data.path": path_of(data), **settings}
    return with_options(base, settings)


def _run(word: str) -> str:
    """The folder of a run. What would read it says so too, but only after seconds of imports."""
    if not is_run(word):
        raise MissingFileError(not_a_run(word))
    return word


def _device(word: str) -> str:
    """A device of torch that is here."""
    if word == "cpu":
        return word
    import torch

    try:
        torch.empty(0, device=word)
    except Exception as error:  # its backends raise errors of many kinds
        accelerator = torch.accelerator.current_accelerator(check_available=True)
        there_are = "cpu" if accelerator is None else f"cpu or {accelerator}"
        raise argparse.ArgumentTypeError(f"there is no device {word!r} here: take {there_are}") from error
    return word


def whole_number(word: str) -> int:
    """A whole number, which may be written as 100e6.

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
    """The data set that is named, if any."""
    if len(names) > 1:
        raise ConfigError(f"{command} takes one data set, not {len(names)}: {' '.join(names)}")
    return names[0] if names else None


def _folded(name: str) -> str:
    return name.replace("_", "-")


def _value_kind(kind: Any) -> Any:
    """The type of a value that is given: the first of a union's that is not None."""
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


def _in_words(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(map(_in_words, value))
    return f"{value:g}" if isinstance(value, float) else str(value)
