"""`nearfar env`."""

import json
from collections.abc import Sequence

from nearfar.commands.grammar import Parser


def parser() -> Parser:
    """The parser of the command."""
    return Parser("env", "Print versions and machine, for bug reports.")


def run(arguments: Sequence[str]) -> int:
    """Print versions and machine."""
    parser().parse_args(arguments)
    from nearfar.training.environment import environment

    print(json.dumps(environment(), indent=2))
    return 0
