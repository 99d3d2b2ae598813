"""`nearfar`: the command line. Every command is a module of `nearfar.commands`, loaded when it is called."""

import contextlib
import difflib
import importlib
import os
import sys
from collections.abc import Sequence

import nearfar

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
    "doctor": "look at a data set and at one batch of it: what would go wrong in training",
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
        near = difflib.get_close_matches(name, COMMANDS, 1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(COMMANDS)}"
        print(f"nearfar: there is no command {name}: {hint}", file=sys.stderr)
        return 2
    try:
        module = importlib.import_module(f"nearfar.commands.{name}")
        code: int = module.run(words[1:])
        sys.stdout.flush()
    except BrokenPipeError:  # the reader, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (ValueError, OSError, ImportError, RuntimeError, MemoryError) as error:
        said = _explained(name, error)
        if said is None:  # what a user cannot mend: a bug shows its traceback
            raise
        print(f"nearfar {name}: {said}", file=sys.stderr)
        return getattr(error, "exit_code", 2)
    except KeyboardInterrupt:
        print(f"nearfar {name}: interrupted", file=sys.stderr)
        return 130
    return code


def _explained(name: str, error: Exception) -> str | None:
    """What to say of an error where the message is written for the user, by nearfar or by the system about a file, or
    memory has run out; None where it is a bug.
    """
    if _is_ours(type(error).__module__):
        return str(error)
    if isinstance(error, ModuleNotFoundError) and not _is_ours(error.name or ""):
        return f"{error}: pip install 'nearfar[{EXTRAS.get(name, 'training')}]'"
    with contextlib.suppress(ImportError):  # of what embeds and trains
        from nearfar.training.exhausted import advice_to, out_of_memory

        if out_of_memory(error):
            return advice_to(name, error)
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    raised_here = trace is not None and _is_ours(trace.tb_frame.f_globals.get("__name__", ""))
    return str(error) if raised_here or isinstance(error, OSError) else None


def _is_ours(module: str) -> bool:
    return module.partition(".")[0] == "nearfar"


if __name__ == "__main__":
    sys.exit(main())
