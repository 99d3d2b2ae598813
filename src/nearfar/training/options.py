"""Conversion of the configuration from and to plain values: YAML, dictionaries and command-line arguments.

An unknown name or a value of the wrong type raises `ConfigError`, which says where and suggests the nearest valid one.
"""

import re
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any, Literal

from nearfar.errors import InputError, NearfarError
from nearfar.foundation.suggestions import closest, suggestion
from nearfar.training.config import LossConfig, TrainConfig

SHORT_SECTIONS = ("data", "sampler", "model")  # their options may be written without the section
SHORT = {"lr": "optimiser.lr", "keep": "evaluation.keep"}
_LONG = ("sampler.kind",)  # ambiguous without the section
_LOSS_OPTIONS = ("weight", "class_level", "memory", "dims")
LARGEST = 2**63  # the limit of integers in numpy and torch
_WORDS = {"true": True, "yes": True, "false": False, "no": False}
HELP = "--help lists them"


class ConfigError(NearfarError, ValueError):
    """The configuration has an unknown name or an invalid value."""


@dataclass(frozen=True)
class Option:
    """One option of the tree: its dotted name, type, default and help text."""

    name: str
    kind: Any
    default: Any
    help: str

    @property
    def short(self) -> str | None:
        """The name without the section, if that is allowed."""
        section, _, short = self.name.partition(".")
        if SHORT.get(short) == self.name:
            return short
        return short if section in SHORT_SECTIONS and self.name not in _LONG else None


def all_options(config: type = TrainConfig, prefix: str = "") -> Iterator[Option]:
    """All options of the tree in order, without the arguments of losses."""
    hints = typing.get_type_hints(config)
    for field in fields(config):
        kind = hints[field.name]
        if is_dataclass(kind):
            yield from all_options(typing.cast(type, kind), f"{prefix}{field.name}.")
        else:
            default = field.default_factory() if field.default_factory is not MISSING else field.default
            yield Option(prefix + field.name, kind, default, field.metadata["help"])


def from_dict(values: Mapping[str, Any]) -> TrainConfig:
    """Build the configuration from nested plain values; missing ones keep their defaults."""
    config = _read(TrainConfig, values, "")
    assert isinstance(config, TrainConfig)
    return config


def to_dict(config: Any) -> Any:
    """Convert the configuration to nested plain values, the inverse of `from_dict`."""
    if isinstance(config, LossConfig):
        values = {name: to_dict(getattr(config, name)) for name in _LOSS_OPTIONS}
        changed = {
            f.name: values[f.name] for f in fields(LossConfig) if f.name in values and values[f.name] != f.default
        }
        return {"name": config.name, **changed, **to_dict(config.arguments)}
    if is_dataclass(config):
        return {field.name: to_dict(getattr(config, field.name)) for field in fields(config)}
    if isinstance(config, Mapping):
        return {name: to_dict(value) for name, value in config.items()}
    return [to_dict(value) for value in config] if isinstance(config, (list, tuple)) else config


def read_yaml(path: str | PathLike[str]) -> TrainConfig:
    """Read a configuration file."""
    import yaml

    try:
        values = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"there is no configuration file {path}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid YAML: {error}") from error
    try:
        return from_dict({} if values is None else values)
    except (ConfigError, InputError) as error:
        raise ConfigError(f"{path}: {error}") from error


def to_yaml(config: TrainConfig) -> str:
    """Convert the configuration to the text that `read_yaml` reads."""
    import yaml

    text = yaml.safe_dump(to_dict(config), sort_keys=False, allow_unicode=True, default_flow_style=None, width=120)
    return str(text)


def with_options(config: TrainConfig, values: Mapping[str, Any]) -> TrainConfig:
    """Change options of the configuration by their dotted or short names, as on the command line.

    >>> from nearfar.training.config import TrainConfig
    >>> changed = with_options(TrainConfig(), {"loss": "CircleLoss", "loss.gamma": "80", "size": 64, "lr": "1e-3"})
    >>> changed.loss[0].arguments, changed.data.size, changed.optimiser.lr
    ({'gamma': 80}, 64, 0.001)
    """
    if "loss" in values:
        config = replace(config, loss=read_losses(values["loss"], "loss"))
    for name, value in values.items():
        if name.startswith("loss."):
            config = replace(config, loss=_with_loss_option(config.loss, name.removeprefix("loss."), value))
        elif name != "loss":
            chosen = find_option(name)
            if chosen.name == "evaluation.keep" and _is_number(
                value
            ):  # words mean evaluation.keep, numbers select_keep
                chosen = find_option("select_keep")
            config = _with_value(config, chosen.name.split("."), convert(value, chosen.kind, chosen.name))
    return config


def find_option(name: str) -> Option:
    """Find an option by its dotted or short name."""
    known = {option.name: option for option in all_options()}
    known |= {option.short: option for option in known.values() if option.short is not None}
    if name not in known:
        raise ConfigError(f"there is no option {name}: {suggestion(name, known, HELP)}")
    return known[name]


# Losses


def read_losses(value: Any, where: str) -> tuple[LossConfig, ...]:
    """Read losses from 'ProxyAnchorLoss + 0.5 * CircleLoss', a mapping {name, weight, ..., arguments}, or a list.

    >>> [(loss.name, loss.weight) for loss in read_losses("ProxyAnchorLoss + 0.5 * CircleLoss", "loss")]
    [('ProxyAnchorLoss', 1.0), ('CircleLoss', 0.5)]
    """
    if isinstance(value, LossConfig):
        return (_checked(value),)
    if isinstance(value, str):
        return tuple(_checked(_term(term)) for term in value.split("+"))
    if isinstance(value, Mapping):
        return (_read_loss(value, where),)
    if isinstance(value, (list, tuple)):
        return tuple(loss for item in value for loss in read_losses(item, where))
    raise ConfigError(f"{where} must be a loss, such as CircleLoss, or a list of them, not {value!r}")


def _term(text: str) -> LossConfig:
    match = re.fullmatch(r"\s*(?:([0-9.eE+-]+)\s*\*\s*)?([A-Za-z_]\w*)\s*", text)
    if match is None:
        raise ConfigError(
            f"{text.strip()!r} is not a loss: write CircleLoss, or a sum such as 'CircleLoss + 0.5 * ArcFaceLoss'"
        )
    weight, name = match.groups()
    return LossConfig(name, weight=1.0 if weight is None else convert(weight, float, "the factor of a loss"))


def _read_loss(values: Mapping[str, Any], where: str) -> LossConfig:
    rest = dict(values)
    if not isinstance(rest.get("name"), str):
        raise ConfigError(f"{where} needs a name, such as name: CircleLoss")
    loss = LossConfig(rest.pop("name"))
    for name, value in rest.items():
        loss = _with_loss_field(loss, name, value)
    return _checked(loss)


def _checked(loss: LossConfig) -> LossConfig:
    """Check the name and the arguments of a loss, and convert the arguments to their types."""
    from nearfar.losses.loss import Loss
    from nearfar.losses.registry import COMMON_OPTIONS

    info = loss_info(loss.name)
    kinds = typing.get_type_hints(Loss.__init__) | typing.get_type_hints(info.loss.__init__)
    arguments = {}
    known = [*info.arguments, *COMMON_OPTIONS, *_LOSS_OPTIONS]
    for name, value in loss.arguments.items():
        if name not in known:
            hint = suggestion(name, known, f"it takes {', '.join(known)}")
            raise ConfigError(f"{loss.name} has no argument {name}: {hint}")
        if name in ("num_classes", "embedding_size"):
            raise ConfigError(f"{name} of {loss.name} comes from the data and the model: leave it out")
        read = convert(value, kinds[name], f"loss.{name}")
        arguments[name] = value if read == value and type(value) is int else read  # keeps 80 as 80, not as 80.0
    return replace(loss, arguments=arguments)


def loss_info(name: str) -> Any:
    """The registry's entry of a loss or penalty."""
    from nearfar.losses import list_losses, list_penalties

    known = {info.name: info for info in (*list_losses(), *list_penalties())}
    if name not in known:
        meant = name if closest(name, known) else f"{name}Loss"
        raise ConfigError(f"there is no loss {name}: {suggestion(meant, known, 'nearfar losses lists them')}")
    return known[name]


def _with_loss_option(losses: tuple[LossConfig, ...], name: str, value: Any) -> tuple[LossConfig, ...]:
    """Set `gamma` of the only loss, or `CircleLoss.gamma` of one of several."""
    if not losses:
        raise ConfigError(f"loss.{name} needs a loss: choose one, such as --loss CircleLoss")
    chosen, _, argument = name.rpartition(".")
    names = [loss.name for loss in losses]
    if not chosen and len(losses) > 1:
        candidates = " or ".join(f"--loss.{loss}.{argument}" for loss in names)
        raise ConfigError(f"loss.{argument} is ambiguous: write {candidates}")
    if chosen and chosen not in names:
        raise ConfigError(f"loss.{name}: {chosen} is not one of the losses: {suggestion(chosen, names)}")
    i = names.index(chosen) if chosen else 0
    return (*losses[:i], _checked(_with_loss_field(losses[i], argument, value)), *losses[i + 1 :])


def _with_loss_field(loss: LossConfig, name: str, value: Any) -> LossConfig:
    if name in _LOSS_OPTIONS:
        kind = typing.get_type_hints(LossConfig)[name]
        return replace(loss, **{name: convert(value, kind, f"loss.{name}")})
    return replace(loss, arguments={**loss.arguments, name: plain(value)})


# Values


def plain(value: Any) -> Any:
    """Parse a command-line argument as a number, list or mapping; return other values unchanged."""
    import yaml

    if not isinstance(value, str):
        return value
    try:
        parsed = yaml.safe_load(value)
    except yaml.YAMLError:
        return value
    if isinstance(parsed, str):  # YAML 1.1 reads 1e-3, without a point, as a string
        try:
            return float(parsed)
        except ValueError:
            return parsed
    return parsed


def _is_number(value: Any) -> bool:
    return isinstance(plain(value), (int, float))


def convert(value: Any, kind: Any, where: str) -> Any:
    """Convert a value to an option's type, or raise `ConfigError`."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return value
    if kind == tuple[LossConfig, ...]:
        return read_losses(value, where)
    if origin in (types.UnionType, typing.Union):
        return _convert_union(value, args, where)
    if origin is Literal:
        if value in args:
            return value
        near = closest(str(value), map(str, args))
        hint = f": did you mean {near}?" if near else ""
        raise ConfigError(f"{where} must be {_listed(args)}, not {value!r}{hint}")
    if origin is tuple:
        return _convert_tuple(value, args, where)
    if origin is Mapping:
        value = plain(value)
        if not isinstance(value, Mapping):
            raise ConfigError(f"{where} must be a mapping such as {{width: 16}}, not {value!r}")
        return dict(value)
    return _convert_scalar(value, kind, where)


def _convert_scalar(value: Any, kind: type, where: str) -> Any:
    if kind is bool:
        value = _WORDS.get(value.lower(), value) if isinstance(value, str) else value
        if isinstance(value, bool):
            return value
        raise ConfigError(f"{where} must be true or false, not {value!r}")
    if kind is str and isinstance(value, (str, int, float, PathLike)) and not isinstance(value, bool):
        return str(value)
    if kind in (int, float) and isinstance(value, (str, int, float)) and not isinstance(value, bool):
        try:
            number = float(value)
            if kind is float:
                return number
            if number.is_integer() and abs(number) < LARGEST:
                return int(number)
        except (ValueError, OverflowError):
            pass
    names = {int: "a whole number", float: "a number", str: "a word"}
    raise ConfigError(f"{where} must be {names[kind]}, not {value!r}")


def _convert_union(value: Any, kinds: tuple[Any, ...], where: str) -> Any:
    if types.NoneType in kinds and (value is None or value in ("none", "null", "None")):
        return None
    kinds = tuple(kind for kind in kinds if kind is not types.NoneType)
    for kind in kinds[:-1]:
        try:
            return convert(value, kind, where)
        except ConfigError:
            continue
    return convert(value, kinds[-1], where)


def _convert_tuple(value: Any, kinds: tuple[Any, ...], where: str) -> tuple[Any, ...]:
    if isinstance(value, str):
        value = [word.strip() for word in value.strip("[]()").split(",") if word.strip()]
    elif not isinstance(value, (list, tuple)):
        value = [value]
    if kinds[-1] is Ellipsis:
        return tuple(convert(item, kinds[0], where) for item in value)
    if len(value) != len(kinds):
        raise ConfigError(f"{where} must be {len(kinds)} values, such as 1,2, not {value!r}")
    return tuple(convert(item, kind, where) for item, kind in zip(value, kinds, strict=True))


def _listed(values: Iterable[Any]) -> str:
    *others, last = map(str, values)
    return f"{', '.join(others)} or {last}" if others else last


# The tree


def _read(kind: Any, values: Any, where: str) -> Any:
    if not isinstance(values, Mapping):
        raise ConfigError(f"{where.rstrip('.') or 'the configuration'} must be a mapping, not {values!r}")
    hints = typing.get_type_hints(kind)
    read = {}
    for name, value in values.items():
        if name not in hints:
            everything = [o.name for o in all_options()] + [where + known for known in hints]
            raise ConfigError(f"there is no option {where}{name}: {suggestion(f'{where}{name}', everything, HELP)}")
        if is_dataclass(hints[name]):
            read[name] = _read(hints[name], value, f"{where}{name}.")
        else:
            read[name] = convert(value, hints[name], where + name)
    return kind(**read)


def _with_value(config: Any, path: list[str], value: Any) -> Any:
    if len(path) > 1:
        value = _with_value(getattr(config, path[0]), path[1:], value)
    return replace(config, **{path[0]: value})
