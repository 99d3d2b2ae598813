"""`nearfar completion`: a script for the shell that completes commands, options, losses and recipes."""

import argparse
import contextlib
import importlib
import io
import re
from collections.abc import Mapping, Sequence

OPTION = re.compile(r"--[a-z][\w.-]*[a-z0-9]")


def run(words: Sequence[str]) -> int:
    """Print the script."""
    parser = argparse.ArgumentParser(
        prog="nearfar completion",
        description="A script that lets the shell complete commands, options, losses and recipes.",
        epilog='For bash: eval "$(nearfar completion bash)" in ~/.bashrc. For zsh: the same in ~/.zshrc. '
        "For fish: nearfar completion fish > ~/.config/fish/completions/nearfar.fish",
    )
    parser.add_argument("shell", choices=sorted(SCRIPTS))
    shell = parser.parse_args(words).shell
    print(SCRIPTS[shell](_options(), _values()))
    return 0


def _options() -> dict[str, list[str]]:
    """The options of every command, as its own help tells them."""
    from nearfar.cli import COMMANDS

    found = {}
    for name in COMMANDS:
        told = io.StringIO()
        with contextlib.redirect_stdout(told), contextlib.suppress(SystemExit):
            importlib.import_module(f"nearfar.commands.{name}").run(["--help"])
        found[name] = sorted({"--help", *OPTION.findall(told.getvalue())})
    return found


def _values() -> dict[str, list[str]]:
    """What may follow some options."""
    from nearfar.losses import list_losses, list_penalties
    from nearfar.training.recipes import list_recipes

    names = [info.name for info in (*list_losses(), *list_penalties())]
    return {"--loss": names, "--recipe": [recipe.name for recipe in list_recipes()]}


def _bash(options: Mapping[str, Sequence[str]], values: Mapping[str, Sequence[str]]) -> str:
    after = "\n".join(f'    {name}) words="{" ".join(some)}" ;;' for name, some in values.items())
    of = "\n".join(f'      {name}) words="{" ".join(some)}" ;;' for name, some in options.items())
    return f"""\
_nearfar() {{
  local word="${{COMP_WORDS[COMP_CWORD]}}" before="${{COMP_WORDS[COMP_CWORD-1]}}" words=""
  if [ "$COMP_CWORD" -eq 1 ]; then
    COMPREPLY=( $(compgen -W "{" ".join(options)}" -- "$word") )
    return
  fi
  case "$before" in
{after}
  esac
  if [ -z "$words" ] && [ "${{word:0:1}}" = "-" ]; then
    case "${{COMP_WORDS[1]}}" in
{of}
    esac
  fi
  if [ -n "$words" ]; then
    COMPREPLY=( $(compgen -W "$words" -- "$word") )
  else
    COMPREPLY=( $(compgen -f -- "$word") )
  fi
}}
complete -o filenames -F _nearfar nearfar"""


def _zsh(options: Mapping[str, Sequence[str]], values: Mapping[str, Sequence[str]]) -> str:
    return f"autoload -U +X bashcompinit && bashcompinit\n{_bash(options, values)}"


def _fish(options: Mapping[str, Sequence[str]], values: Mapping[str, Sequence[str]]) -> str:
    lines = [f'complete -c nearfar -n __fish_use_subcommand -f -a "{" ".join(options)}"']
    for name, some in options.items():
        for option in some:
            choice = f' -x -a "{" ".join(values[option])}"' if option in values else ""
            lines.append(f'complete -c nearfar -n "__fish_seen_subcommand_from {name}" -l {option[2:]}{choice}')
    return "\n".join(lines)


SCRIPTS = {"bash": _bash, "fish": _fish, "zsh": _zsh}
