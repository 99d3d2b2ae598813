"""Settings: what the constructor of a loss takes, each declared once, in the body of its class.

    class UnifiedLoss(Loss):
        m: float = 0.25                           an argument with its default, and an attribute of the loss
        gamma: Positive = 64.0                    its range is checked by the constructor, and whenever it is assigned
        _: KW_ONLY                                the arguments below are given by name
        num_classes: InitVar[int | None] = None   given to `set_up`, which makes something else of it

Type checkers and editors take these for the fields of a dataclass; at run time they are the constructor's signature.
"""

import functools
import inspect
import math
import operator
import re
from collections.abc import Callable
from dataclasses import KW_ONLY, InitVar, dataclass
from numbers import Real
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, Literal, Union, dataclass_transform, get_args, get_origin

import torch
from torch import Tensor, nn

from nearfar.errors import InputError, InputTypeError
from nearfar.foundation.suggestions import suggestion

REQUIRED = inspect.Parameter.empty


@dataclass(frozen=True)
class Range:
    """The values that a number may have; `holds` tests one, `description` is for the error."""

    description: str
    holds: Callable[[Any], bool]

    def check(self, name: str, value: Any) -> None:
        """Raise `InputError` for a number, or a tensor of numbers, outside the range."""
        for number in torch.aminmax(value) if isinstance(value, Tensor) else (value,):
            if not self.holds(number):
                text = self.description.format(value=number, radians=math.radians(number))
                raise InputError(f"{name} must be {text}")


POSITIVE = Range("a positive number, not {value}", lambda x: 0 < x < math.inf)
_DEGREES = "angles are in radians; if this one is in degrees, math.radians({value}) is {radians:.4g}"
ANGLE = Range("an angle between 0 and pi, not {value}: " + _DEGREES, lambda x: 0 <= x <= math.pi)
Positive = Annotated[float, POSITIVE]
PositiveInt = Annotated[int, POSITIVE]
_NOT_NEGATIVE = Range("a number that is not negative, not {value}", lambda x: 0 <= x < math.inf)
NotNegative = Annotated[float, _NOT_NEGATIVE]
Bytes = Annotated[int, _NOT_NEGATIVE]
BelowOne = Annotated[float, Range("at least 0 and below 1, not {value}", lambda x: 0 <= x < 1)]
Fraction = Annotated[float, Range("between 0 and 1, not {value}", lambda x: 0 <= x <= 1)]
Angle = Annotated[float, ANGLE]
Angles = Annotated[float | Tensor, ANGLE]  # one, or one of every class
AngleFactor = Annotated[float, Range("at least 1, as a factor of angles, not {value}", lambda x: 1 <= x < math.inf)]


@dataclass(frozen=True)
class Setting:
    """One argument of a constructor.

    Args:
        kind: its type.
        default: `REQUIRED` if there is none.
        by_name: it cannot be given by its position.
        attribute: it becomes an attribute; otherwise it is given to `set_up`.
        common: the losses that inherit it show it as part of `**options`.
    """

    name: str
    kind: Any
    default: Any
    by_name: bool
    attribute: bool
    common: bool

    def checked(self, value: Any) -> Any:
        """The value, as a number if it is one in a tensor. Raises an error if it is of another type, out of range, not
        among the choices, or a tensor that takes a gradient where none is learned.
        """
        kinds = _kinds(self.kind)
        if isinstance(value, Tensor) and Tensor not in kinds:
            if value.requires_grad:
                raise InputError(
                    f"{self.name} is not learned as a tensor that is given: give a number, and learnable=True where "
                    "the loss has that"
                )
            if value.numel() != 1:
                raise InputError(f"{self.name} must be a number, not a tensor of shape {tuple(value.shape)}")
        if isinstance(value, Tensor) and value.numel() == 1 and not value.requires_grad and not value.is_meta:
            value = value.item()
        if value is None and (self.default is None or NoneType in kinds):
            return value
        if get_origin(self.kind) is Literal and value not in get_args(self.kind):
            choices = ", ".join(map(repr, get_args(self.kind)))
            raise InputError(f"{self.name} must be one of {choices}, not {value!r}")
        if kinds & {int, float} and not isinstance(value, Real | Tensor):
            raise InputTypeError(f"{self.name} must be a number, not {type(value).__name__}")
        if int in kinds and float not in kinds:
            if value != value // 1:
                raise InputError(f"{self.name} must be a whole number, not {value}")
            value = int(value)
        for condition in self._ranges:
            condition.check(self.name, value)
        return value

    @property
    def _ranges(self) -> list[Range]:
        kinds = self.kind, *get_args(self.kind)  # of `Positive | None`, too
        return [found for kind in kinds for found in getattr(kind, "__metadata__", ()) if isinstance(found, Range)]

    @property
    def range(self) -> str | None:
        """The values that it may have, in words; None if that is not declared."""
        if get_origin(self.kind) is Literal:
            return "one of " + ", ".join(map(repr, get_args(self.kind)))
        return next((re.split(", not|: ", condition.description)[0] for condition in self._ranges), None)

    @property
    def parameter(self) -> inspect.Parameter:
        """As part of a signature."""
        how = inspect.Parameter.KEYWORD_ONLY if self.by_name else inspect.Parameter.POSITIONAL_OR_KEYWORD
        return inspect.Parameter(self.name, how, default=self.default, annotation=_plain(self.kind))


class Listed(type):
    """The type of classes whose `help` shows what their users need, without what losses and torch define inside."""

    def __dir__(cls) -> list[str]:
        names = {name for base in cls.__mro__ if isinstance(base, Listed) for name in vars(base)}
        hidden: frozenset[str] = getattr(cls, "hooks", frozenset())
        return [name for name in names if not name.startswith("_") and name not in hidden]


@dataclass_transform()
class Configured(nn.Module, metaclass=Listed):
    """A module whose constructor takes the settings that its class declares."""

    settings: ClassVar[dict[str, Setting]] = {}
    used: ClassVar[tuple[str, ...]] = ("forward", "training")  # of the names that all losses have, those for users
    hooks: ClassVar[frozenset[str]] = frozenset(  # the others
        ("settings", "used", "hooks", "create_state", "set_up", "extra_repr")
    )

    def __init_subclass__(cls, common: bool = False):
        super().__init_subclass__()
        cls.settings = cls.settings | _declared(cls, common)
        if common:
            cls.hooks = cls.hooks.union(name for name in vars(cls) if name not in cls.used)
        own = vars(cls).get("__init__")
        cls.__init__ = _constructor(cls) if own is None else _completing(cls, own)  # type: ignore[method-assign]

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__()
        self.create_state()
        for name in kwargs.keys() - self.settings.keys():
            known = [n for n in inspect.signature(type(self)).parameters if n != "options"]
            known += [s.name for s in self.settings.values() if s.common and s.name not in known]
            hint = suggestion(name, known, f"it takes {', '.join(known)}")
            raise InputTypeError(f"{type(self).__name__} has no argument {name!r}: {hint}")
        try:
            bound = _signature(self.settings.values()).bind(*args, **kwargs)
        except TypeError as error:
            raise InputTypeError(f"{type(self).__name__}: {error}") from None
        bound.apply_defaults()
        values = {name: self.settings[name].checked(value) for name, value in bound.arguments.items()}
        for name in values:
            if self.settings[name].attribute:
                setattr(self, name, values[name])
        self._arguments = values
        self.set_up(**{name: value for name, value in values.items() if not self.settings[name].attribute})

    def create_state(self) -> None:
        """Create what a module has before its settings are known."""

    def set_up(self, *args: Any, **kwargs: Any) -> None:
        """Finish the construction; takes, by name, the settings that are no attributes."""

    def __setattr__(self, name: str, value: Tensor | nn.Module) -> None:
        """A setting is checked; a number assigned to a parameter or buffer becomes its value; other public names are
        refused once the module is made, unless its class knows them.
        """
        new: Any = value  # numbers are those of declared names, which type checkers look up instead of this function
        setting = self.settings.get(name)
        if setting is not None and (setting.attribute or isinstance(new, Real)):
            new = setting.checked(new)
        tables = [vars(self).get(kind, {}).get(name) for kind in ("_parameters", "_buffers")]
        held = tables[1] if tables[0] is None else tables[0]
        if held is not None and isinstance(new, Real):
            with torch.no_grad():
                held.fill_(new)
            return
        if vars(self).get("_complete") and not (name.startswith("_") or isinstance(new, nn.Module)):
            self._check_name(name)
        super().__setattr__(name, new)

    def _check_name(self, name: str) -> None:
        """Raise an error unless this attribute can be assigned."""
        kind, setting = type(self).__name__, self.settings.get(name)
        state = vars(self)
        if name in state or any(name in state[held] for held in ("_parameters", "_buffers", "_modules")):
            return
        of_class = getattr(type(self), name, None)
        if isinstance(of_class, property) and of_class.fset is None:
            hint = "extend_classes(n) adds classes" if name == "num_classes" else "it follows from others"
            raise InputTypeError(f"{name} of {kind} cannot be assigned: {hint}")
        if setting is not None and not setting.attribute:
            raise InputTypeError(f"{name} of {kind} is fixed when it is made: make another one with this {name}")
        if of_class is None and setting is None:
            known = [n for n, s in self.settings.items() if s.attribute]
            known += [
                n for held in ("_parameters", "_buffers") for n, tensor in state[held].items() if tensor is not None
            ]
            hint = suggestion(name, known, f"it has {', '.join(known)}")
            raise InputTypeError(f"{kind} has no setting {name!r}: {hint} (A name of your own may begin with _)")

    def __dir__(self) -> list[str]:
        """Settings, tensors and what can be asked of the module."""
        inside = self.hooks | (vars(self).keys() - self.settings.keys() - set(self.used))
        names = [*object.__dir__(self), *self._parameters, *self._buffers, *self._modules]
        return [name for name in names if name.startswith("_") or name not in inside]

    def extra_repr(self) -> str:
        own = [s.name for s in self.settings.values() if s.attribute and not s.common]
        values = {name: getattr(self, name) for name in own if name not in self._modules}
        numbers = {
            n: v.item() if isinstance(v, Tensor) and not v.ndim and not v.is_meta else v for n, v in values.items()
        }
        return ", ".join(f"{name}={value}" for name, value in numbers.items() if not isinstance(value, Tensor))


def _declared(cls: type, common: bool) -> dict[str, Setting]:
    """The settings in the body of a class, whose defaults leave the class, where they would hide parameters."""
    kinds: dict[str, Any] = inspect.get_annotations(cls)
    if any(isinstance(kind, str) for kind in kinds.values()):  # from __future__ import annotations
        kinds = inspect.get_annotations(cls, eval_str=True)
    settings: dict[str, Setting] = {}
    by_name = False
    for name, kind in kinds.items():
        if kind is KW_ONLY:
            by_name = True
        elif get_origin(kind) is not ClassVar and kind is not ClassVar:
            attribute = not isinstance(kind, InitVar)
            default = vars(cls).get(name, REQUIRED)
            if default is not REQUIRED:
                delattr(cls, name)
            elif "__init__" in vars(cls):  # an attribute that its own constructor makes
                continue
            settings[name] = Setting(name, kind if attribute else kind.type, default, by_name, attribute, common)
    return settings


def _signature(settings: Any) -> inspect.Signature:
    return inspect.Signature([s.parameter for s in sorted(settings, key=lambda s: s.by_name)])


def _plain(kind: Any) -> Any:
    """The annotation without ranges."""
    if get_origin(kind) is Annotated:
        return get_args(kind)[0]
    is_union = isinstance(kind, UnionType) or get_origin(kind) is Union
    return functools.reduce(operator.or_, map(_plain, get_args(kind))) if is_union else kind


def _kinds(kind: Any) -> set[Any]:
    """The plain types of an annotation: of `Annotated[float, ...] | None`, float and NoneType."""
    plain = _plain(kind)
    return set(get_args(plain)) if isinstance(plain, UnionType) else {plain}


def _completing(cls: type[Configured], constructor: Callable[..., None]) -> Callable[..., None]:
    """The constructor, after which an object of this very class is complete: no more names can be assigned."""

    @functools.wraps(constructor)
    def __init__(self: Configured, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        constructor(self, *args, **kwargs)
        vars(self)["_complete"] = type(self) is cls

    return __init__


def _constructor(cls: type[Configured]) -> Callable[..., None]:
    def __init__(self: Configured, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        super(cls, self).__init__(*args, **kwargs)
        vars(self)["_complete"] = type(self) is cls

    settings = list(cls.settings.values())
    shown = [s for s in settings if not s.common]
    signature = _signature(shown or settings)
    parameters = [inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY), *signature.parameters.values()]
    if shown and len(shown) < len(settings):
        parameters.append(inspect.Parameter("options", inspect.Parameter.VAR_KEYWORD, annotation=Any))
    __init__.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    __init__.__annotations__ = {s.name: s.kind for s in settings}
    __init__.__qualname__, __init__.__module__ = f"{cls.__qualname__}.__init__", cls.__module__
    return __init__
