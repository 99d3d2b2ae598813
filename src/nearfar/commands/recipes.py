"""`nearfar recipes`."""

import textwrap
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from nearfar.commands.grammar import WIDTH, Parser

if TYPE_CHECKING:
    from nearfar.training.recipes import Recipe


def parser() -> Parser:
    """The parser of the command."""
    command = Parser(
        "recipes [NAME]",
        "List the protocols of papers, or print one: its source, deviations, required data and weights, and its "
        "configuration, as a file for nearfar train --config.",
    )
    command.add_argument("name", nargs="?", metavar="NAME", help="the recipe to print")
    return command


def run(arguments: Sequence[str]) -> int:
    """List the recipes, or print one."""
    chosen = parser().parse_args(arguments).name
    from nearfar.training.options import to_yaml
    from nearfar.training.recipes import find_recipe, list_recipes

    if chosen is not None:
        info = find_recipe(chosen)
        print("\n".join(f"# {line}".rstrip() for line in _described(info)))
        print(to_yaml(info.config), end="")
        return 0
    recipes = list_recipes()
    width = max(len(info.name) for info in recipes)
    for info in recipes:
        print(f"{info.name:<{width}}  {info.aim}")
    print(
        "\nnearfar train DATA --recipe NAME runs one; nearfar recipes NAME prints its source, deviations and settings"
    )
    return 0


def _described(info: "Recipe") -> Iterator[str]:
    """The description above a configuration."""
    yield info.name + (f" (formerly {info.formerly})" if info.formerly else "")
    yield from _entry("aim", info.aim)
    yield from _entry("source", info.source)
    for title, texts in (("deviations", info.ours), ("needs", [str(download) for download in info.needs])):
        yield f"{title}:"
        for text in texts:
            yield from _wrapped(f"  - {text}", "    ")
    if info.config.model.weights != "random":
        yield from _entry(
            "weights", "pass the file with --weights FILE, or start from random weights: --weights random"
        )
    yield ""


def _entry(title: str, text: str) -> list[str]:
    return _wrapped(f"{title}: {text}", "  ")


def _wrapped(text: str, indent: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
