"""`nearfar recipes`."""

import argparse
from collections.abc import Sequence


def run(words: Sequence[str]) -> int:
    """List the recipes, or print the configuration of one."""
    parser = argparse.ArgumentParser(
        prog="nearfar recipes", description="List the papers' protocols, or print the configuration of one."
    )
    parser.add_argument("name", nargs="?", metavar="NAME", help="of one recipe")
    chosen = parser.parse_args(words).name
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
