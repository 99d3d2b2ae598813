"""`nearfar`: the command line. Every command is a module of `nearfar.commands`, loaded when it is called."""

import contextlib
import errno
import importlib
import io
import os
import shlex
import sys
import traceback
import warnings
from collections.abc import Sequence

import nearfar
from nearfar.errors import NearfarError
from nearfar.foundation.suggestions import suggestion

COMMANDS = {
    "train": "train an embedding on a data set, and measure it on unseen classes",
    "compare": "which loss is best on a data set, decided fairly",
    "study": "the papers' analyses, on any data",
    "evaluate": "measure a trained run, on its own test rows or on other data",
    "export": "write the model of a run for others: ONNX, TorchScript or safetensors, with a model card",
    "embed": "embed images with the model of a run, to a Parquet or npz file",
    "index": "index images for search: FAISS in a folder, or Milvus",
    "search": "find the indexed images that are nearest to pictures",
    "identify": "say which enrolled class pictures are of, or that they are of none",
    "serve": "a page to search, and to see what the model gets wrong",
    "duplicates": "find near-identical images, above all between training and test images",
    "report": "write the report of a run anew: report.html, to be opened in a browser",
    "doctor": "look at every file of a data set and at one batch of it: what to do before training",
    "plan": "memory, traffic and time of training on many machines, before it is begun",
    "losses": "list the losses, or show one of them",
    "recipes": "list the papers' protocols, for nearfar train --recipe",
    "completion": "a script that lets the shell complete commands, options, losses and recipes",
    "env": "versions and machine, for reports",
}

# Where a command needs packages of another extra than training.
EXTRAS = {
    "compare": "compare",
    "study": "compare",
    "export": "export",
    "embed": "retrieval",
    "index": "retrieval",
    "search": "retrieval",
    "identify": "retrieval",
    "duplicates": "retrieval",
    "serve": "serve",
}

BUG = 70  # the exit code that sysexits.h has for "internal software error"


def usage() -> str:
    """What `nearfar --help` prints."""
    lines = ["usage: nearfar COMMAND ...      (nearfar COMMAND --help says more)", ""]
    lines += [f"  {name:<10} {text}" for name, text in COMMANDS.items()]
    return "\n".join([*lines, "", "  --version  print it"])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; what it returns is the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or words[0] in ("-h", "--help", "help"):
        print(usage())
        return 0 if words else 2
    if words[0] == "--version":
        print(f"nearfar {nearfar.__version__}")
        return 0
    name = words[0]
    if name not in COMMANDS:
        print(f"nearfar: there is no command {name}: {suggestion(name, COMMANDS)}", file=sys.stderr)
        return 2
    _let_names_through()
    try:
        module = importlib.import_module(f"nearfar.commands.{name}")
        code: int = module.run(words[1:])
        sys.stdout.flush()
    except BrokenPipeError:  # the reader, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        print(f"nearfar {name}: interrupted", file=sys.stderr)
        return 130
    except Exception as error:
        said = _explained(name, error)
        if said is None:
            traceback.print_exc()
            print(_request(words), file=sys.stderr)
            return BUG
        print(f"nearfar {name}: {said}", file=sys.stderr)
        return getattr(error, "exit_code", 2)
    return code


def _let_names_through() -> None:
    """Names of files come out as the bytes that they are, even if they are no UTF-8. What Pillow remarks on odd files,
    beside reading or refusing them, is not for users.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="surrogateescape")
    warnings.filterwarnings("ignore", module=r"PIL\.")


def _explained(name: str, error: Exception) -> str | None:
    """What to say of an error that a user can do something about: one whose message is written for that, the system's
    about a file, a package that is not there, or no memory left. None for any other, which is a bug.
    """
    if isinstance(error, NearfarError):
        return str(error)
    if isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] != "nearfar":
        return f"{error}: pip install 'nearfar[{EXTRAS.get(name, 'training')}]'"
    with contextlib.suppress(ImportError):  # of what embeds and trains
        from nearfar.training.exhausted import advice_to, out_of_memory

        if out_of_memory(error):
            return advice_to(name, error)
    about_a_file = isinstance(error, OSError) and (
        error.filename is not None or error.errno in (errno.ENOSPC, errno.EDQUOT)
    )
    return str(error) if about_a_file else None


def _request(words: Sequence[str]) -> str:
    """What to say below the traceback of a bug."""
    return (
        "This is a bug in nearfar. Please report it, with all of the above, the output of nearfar env,\n"
        f"and the command: {shlex.join(['nearfar', *words])}"
    )


if __name__ == "__main__":
    sys.exit(main())
