"""`nearfar completion`: a shell script that completes commands, options, losses and recipes."""

import argparse
import importlib
from collections.abc import Sequence

from nearfar.commands.grammar import Parser
from nearfar.errors import MissingPackageError

SHELLS = ("bash", "fish", "tcsh", "zsh")


def parser() -> Parser:
    """The parser of the command."""
    command = Parser(
        f"completion {'|'.join(SHELLS)}",
        "Print a shell script that completes commands, options, losses and recipes.",
        {
            "completion bash": 'in ~/.bashrc:  eval "$(nearfar completion bash)"',
            "completion zsh": 'in ~/.zshrc:   eval "$(nearfar completion zsh)"',
            "completion fish": "> ~/.config/fish/completions/nearfar.fish",
        },
    )
    command.add_argument("shell", choices=SHELLS, metavar="SHELL", help="|".join(SHELLS))
    return command


def run(arguments: Sequence[str]) -> int:
    """Print the script."""
    shell = parser().parse_args(arguments).shell
    try:
        import shtab
    except ImportError as error:
        raise MissingPackageError("completion needs shtab: pip install 'nearfar[training]'") from error
    print(shtab.complete(_combined_parser(), shell))
    return 0


def _combined_parser() -> argparse.ArgumentParser:
    """The parser that has all commands as subcommands, for shtab."""
    from nearfar.cli import COMMANDS
    from nearfar.losses import list_losses, list_penalties
    from nearfar.training.recipes import list_recipes

    losses = [info.name for info in (*list_losses(), *list_penalties())]
    values = {"loss": losses, "recipe": [recipe.name for recipe in list_recipes()]}
    combined = argparse.ArgumentParser(prog="nearfar", add_help=False)
    commands = combined.add_subparsers()
    for name, summary in COMMANDS.items():
        command: Parser = importlib.import_module(f"nearfar.commands.{name}").parser()
        for action in command._actions:
            if action.dest in values:
                action.choices = values[action.dest]
        commands.add_parser(name, parents=[command], add_help=False, conflict_handler="resolve", help=summary)
    return combined
