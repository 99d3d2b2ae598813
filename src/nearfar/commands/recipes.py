"""`nearfar recipes`."""

from collections.abc import Sequence

from nearfar.commands.grammar import Parser


def parser() -> Parser:
    """Its words."""
    words = Parser("recipes [NAME]", "List the papers' protocols, or print the configuration of one.")
    words.add_argument("name", nargs="?", metavar="NAME", help="of one recipe")
    return words


def run(words: Sequence[str]) -> int:
    """List the recipes, or print the configuration of one."""
    chosen = parser().parse_args(words).name
    from nearfar.training.options import to_yaml
    from nearfar.training.recipes import list_recipes, recipe

    if chosen is not None:
        print(to_yaml(recipe(chosen)), end="")
        return 0
    recipes = list_recipes()
    width = max(len(info.name) for info in recipes)
    for info in recipes:
        print(f"{info.name:<{width}}  {info.aim}")
    print("\nnearfar train DATA --recipe NAME runs one; nearfar recipes NAME prints its configuration")
    return 0
