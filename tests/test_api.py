"""What others build on: every public name and its signature, as tests/api.txt has them.

After a change that is meant: `python -m tests.test_api`, and say in CHANGELOG.md what changed.
"""

import enum
import functools
import importlib
import inspect
from pathlib import Path

SNAPSHOT = Path(__file__).parent / "api.txt"
# Modules with their public names; () is all that `__all__` lists.
PUBLIC = {
    "nearfar": ("train",),
    "nearfar.errors": (
        "FileError",
        "InputError",
        "InputTypeError",
        "MissingFileError",
        "MissingPackageError",
        "NearfarError",
        "StateError",
        "UnknownNameError",
    ),
    "nearfar.losses": (),
    "nearfar.losses.classes": ("WithClasses",),
    "nearfar.losses.distributed": (),
    "nearfar.data": (),
    "nearfar.imaging": (),
    "nearfar.models": (),
    "nearfar.evaluation": (),
    "nearfar.training.evaluate": ("evaluate",),
    "nearfar.training.gradcache": ("GradCache",),
    "nearfar.training.runs": ("Run",),
    "nearfar.training.subset": ("SubsetStep",),
    "nearfar.compare.comparison": ("compare",),
    "nearfar.studies.study": ("run_study",),
    "nearfar.retrieval.index": ("About", "Hit", "Index", "Item", "index_exists", "make_index", "open_index"),
    "nearfar.retrieval.encoder": ("Encoder",),
    "nearfar.retrieval.search": ("search",),
    "nearfar.export": (),
    "nearfar.serve.app": ("create_app",),
}


def described(name: str, thing: object) -> list[str]:
    """A line for a function; for a class, one for each of its public methods too, its own and the foundation's."""
    if not callable(thing):
        return [f"{name}: {type(thing).__name__}"]
    if not inspect.isclass(thing):
        return [f"{name}{_arguments(thing)}"]
    lines = [f"class {name}{'' if issubclass(thing, enum.Enum) else _arguments(thing)}"]
    bases = [base for base in thing.__mro__ if base is thing or base.__module__.startswith("nearfar.foundation.")]
    members = {name: value for base in reversed(bases) for name, value in vars(base).items()}
    for method, value in sorted(members.items()):
        if method.startswith("_"):
            continue
        plain = getattr(value, "__func__", value)
        if inspect.isfunction(plain):
            lines.append(f"  .{method}{_arguments(plain)}")
        elif isinstance(value, property | functools.cached_property):
            lines.append(f"  .{method}")
    return lines


def _arguments(thing: object) -> str:
    """Names and defaults; annotations may become more precise without harm."""
    try:
        parameters = inspect.signature(thing).parameters.values()  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return "(...)"
    plain = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in parameters]
    return str(inspect.Signature(plain))


def api() -> str:
    lines: list[str] = []
    for package, names in PUBLIC.items():
        module = importlib.import_module(package)
        for name in sorted(names or module.__all__):
            lines += described(f"{package}.{name}", getattr(module, name))
    return "\n".join(lines) + "\n"


def test_the_public_interface_is_as_it_was() -> None:
    assert api() == SNAPSHOT.read_text(encoding="utf-8"), "python -m tests.test_api writes it anew, if this is meant"


if __name__ == "__main__":
    SNAPSHOT.write_text(api(), encoding="utf-8")
