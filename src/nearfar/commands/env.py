"""`nearfar env`."""

import json
from collections.abc import Sequence

from nearfar.commands.grammar import Parser


def parser() -> Parser:
    """Its words."""
    return Parser("env", "Versions and machine, for reports.")


def run(words: Sequence[str]) -> int:
    """Print versions and machine."""
    parser().parse_args(words)
    from nearfar.training.environment import environment

    print(json.dumps(environment(), indent=2))
    return 0
