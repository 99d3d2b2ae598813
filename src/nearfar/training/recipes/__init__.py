"""The protocols of papers, each with its losses: configurations, and the published figures.

    retrieval.py   CUB-200-2011, Cars196, Stanford Online Products, In-Shop
    reid.py        Market-1501, MSMT17
    faces.py       MS-Celeb-1M and similar data

    nearfar recipes                                    lists them
    nearfar recipes cub/proxy-anchor                   source, deviations, needs, and all settings
    nearfar train DATA --recipe cub/proxy-anchor       runs one

>>> recipe("cub/proxy-anchor").optimiser.proxies
100.0
"""

from nearfar.foundation.suggestions import suggestion
from nearfar.training.config import TrainConfig
from nearfar.training.options import ConfigError
from nearfar.training.recipes import faces, reid, retrieval
from nearfar.training.recipes.recipe import Recipe

__all__ = ["Recipe", "find_recipe", "list_recipes", "recipe"]

PROTOCOLS = ("-pa-protocol", "-fastreid-protocol", "-circle-protocol")  # suffixes that earlier names lacked


def list_recipes() -> list[Recipe]:
    """All recipes, by data set."""
    return [*retrieval.recipes(), *reid.recipes(), *faces.recipes()]


def find_recipe(name: str) -> Recipe:
    """Find a recipe by its name, or by its earlier name without the protocol."""
    known = {info.name: info for info in list_recipes()}
    for protocol in ("", *PROTOCOLS):
        if name + protocol in known:
            return known[name + protocol]
    raise ConfigError(f"there is no recipe {name!r}: {suggestion(name, known, 'nearfar recipes lists them')}")


def recipe(name: str) -> TrainConfig:
    """The configuration that `--recipe NAME` starts from."""
    return find_recipe(name).config
