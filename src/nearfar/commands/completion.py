"""`nearfar completion`: a script for the shell that completes commands, options, losses and recipes."""

import argparse
import importlib
from collections.abc import Sequence

from nearfar.commands.grammar import Parser
from nearfar.errors import MissingPackageError

SHELLS = ("bash", "fish", "tcsh", "zsh")


def parser() -> Parser:
    """Its words."""
    words = Parser(
        f"completion {'|'.join(SHELLS)}",
        "Print a script that lets the shell complete commands, options, losses and recipes.",
        {
            "completion bash": 'in ~/.bashrc:  eval "$(nearfar completion bash)"',
            "completion zsh": 'in ~/.zshrc:   eval "$(nearfar completion zsh)"',
            "completion fish": "> ~/.config/fish/completions/nearfar.fish",
        },
    )
    words.add_argument("shell", choices=SHELLS, metavar="SHELL", help="|".join(SHELLS))
    return words


def run(words: Sequence[str]) -> int:
    """Print the script."""
    shell = parser().parse_args(words).shell
    try:
        import shtab
    except ImportError as error:
        raise MissingPackageError("completion needs shtab: pip install 'nearfar[training]'") from error
    print(shtab.complete(_whole(), shell))
    return 0


def _whole() -> argparse.ArgumentParser:
    """The commands as subcommands of one parser, which shtab reads."""
    from nearfar.cli import COMMANDS
    from nearfar.losses import list_losses, list_penalties
    from nearfar.training.recipes import list_recipes

    losses = [info.name for info in (*list_losses(), *list_penalties())]
    values = {"loss": losses, "recipe": [recipe.name for recipe in list_recipes()]}
    whole = argparse.ArgumentParser(prog="nearfar", add_help=False)
    commands = whole.add_subparsers()
    for name, summary in COMMANDS.items():
        command: Parser = importlib.import_module(f"nearfar.commands.{name}").parser()
        for action in command._actions:
            if action.dest in values:
                action.choices = values[action.dest]
        commands.add_parser(name, parents=[command], add_help=False, conflict_handler="resolve", help=summary)
    return whole
