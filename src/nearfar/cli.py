"""`nearfar`: the command line. Every command is a module of `nearfar.commands`, imported when it is called."""

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
    "train": "train an embedding on a data set, and evaluate it on unseen classes",
    "compare": "find the best loss for a data set, in a fair comparison",
    "study": "run the analyses of papers on any data",
    "evaluate": "evaluate a run on its test rows or on other data",
    "export": "export the model of a run to ONNX, TorchScript or safetensors, with a model card",
    "embed": "embed images with the model of a run, to a Parquet or npz file",
    "index": "index images for search: FAISS in a folder, or Milvus",
    "search": "find the indexed images most similar to pictures",
    "identify": "identify the enrolled classes of pictures, or that they belong to none",
    "serve": "serve a page to search, and to see the mistakes of the model",
    "duplicates": "find near-identical images, above all between training and test images",
    "report": "write the report of a run again: report.html, for a browser",
    "doctor": "check a data set and its first batch before training",
    "plan": "forecast memory, traffic and time of training on many machines",
    "losses": "list the losses, or show one of them",
    "recipes": "list the protocols of papers, for nearfar train --recipe",
    "completion": "print a shell script that completes commands, options, losses and recipes",
    "env": "print versions and machine, for bug reports",
}

# Commands that need another extra than training.
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

BUG = 70  # exit code for "internal software error" in sysexits.h


def usage() -> str:
    """The text of `nearfar --help`."""
    lines = ["usage: nearfar COMMAND ...      (nearfar COMMAND --help shows its options)", ""]
    lines += [f"  {name:<10} {text}" for name, text in COMMANDS.items()]
    return "\n".join([*lines, "", "  --version  print the version"])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return the exit code."""
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
    _set_up_output()
    try:
        module = importlib.import_module(f"nearfar.commands.{name}")
        code: int = module.run(words[1:])
        sys.stdout.flush()
    except BrokenPipeError:  # the reader, such as head, has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        print(f"nearfar {name}: interrupted", file=sys.stderr)
        return 130
    except Exception as error:
        message = _message_for(name, error)
        if message is None:
            traceback.print_exc()
            print(_bug_report(words), file=sys.stderr)
            return BUG
        print(f"nearfar {name}: {message}", file=sys.stderr)
        return getattr(error, "exit_code", 2)
    return code


def _set_up_output() -> None:
    """Print file names that are not UTF-8 as their bytes, and hide Pillow's warnings about unusual files."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="surrogateescape")
    warnings.filterwarnings("ignore", module=r"PIL\.")


def _message_for(name: str, error: Exception) -> str | None:
    """The message for an error that the user can fix: a `NearfarError`, a missing package, exhausted memory, or an
    error about a file. None for any other error, which is a bug.
    """
    if isinstance(error, NearfarError):
        return str(error)
    if isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] != "nearfar":
        return f"{error}: pip install 'nearfar[{EXTRAS.get(name, 'training')}]'"
    with contextlib.suppress(ImportError):  # without the training extra
        from nearfar.training.memory_errors import advice_to, out_of_memory

        if out_of_memory(error):
            return advice_to(name, error)
    is_file_error = isinstance(error, OSError) and (
        error.filename is not None or error.errno in (errno.ENOSPC, errno.EDQUOT)
    )
    return str(error) if is_file_error else None


def _bug_report(words: Sequence[str]) -> str:
    """The text below the traceback of a bug."""
    return (
        "This is a bug in nearfar. Please report it, with all of the above, the output of nearfar env,\n"
        f"and the command: {shlex.join(['nearfar', *words])}"
    )


if __name__ == "__main__":
    sys.exit(main())
