"""Processes that die, or find the disk full, at a chosen change of a file.

`python -m tests.faults.crash` reads jobs from its standard input, a JSON object a line, and answers each with a line. It
has imported nearfar once; every job is a forked child of it, so that hundreds of crashes cost little more than what
they do:

    {"folder": F, "at": 7, "how": "kill", "words": ["train", ...]}   ->   {"code": -9, "changes": 7}

`at` counts files opened for writing, renamed, removed and folders made below the folder; "kill" is SIGKILL just before
the change, "full" an OSError of a full disk in its place, "none" lets all of them happen and counts them.
"""

import errno
import importlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

How = Literal["kill", "full", "none"]
CHANGES = {
    "os.rename": (0, 1),
    "os.remove": (0,),
    "os.mkdir": (0,),
    "os.rmdir": (0,),
    "os.truncate": (0,),
    "os.link": (1,),
}


class Crasher:
    """The process with nearfar in it; `run` has a child of it do something."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.crash"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"}, cwd=Path(__file__).parents[2],
        )  # fmt: skip

    def run(self, words: Sequence[str], folder: Path, at: int = 0, how: How = "none") -> tuple[int, int]:
        """Exit code (negative: the signal), and how many changes were begun."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        job = {"folder": str(folder), "at": at, "how": how, "words": list(words)}
        self.process.stdin.write(json.dumps(job) + "\n")
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline())
        return answer["code"], answer["changes"]

    def close(self) -> None:
        self.process.communicate(timeout=30)


def watch(folder: str, at: int, how: How, counter: int) -> None:
    """Count changes below a folder into a pipe; at one of them, die or fail."""
    seen = 0

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal seen
        if event == "open":
            path, _, flags = arguments
            paths = (path,) if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) else ()
        else:
            paths = tuple(arguments[i] for i in CHANGES.get(event, ()))
        if not any(isinstance(path, str | os.PathLike) and os.fspath(path).startswith(folder) for path in paths):
            return
        seen += 1
        os.write(counter, b".")
        if seen == at and how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if seen >= at and how == "full":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), os.fspath(paths[0]))

    sys.addaudithook(hook)


def child(job: dict[str, Any], counter: int) -> int:
    from nearfar.cli import main

    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 1)
    os.dup2(silent, 2)
    watch(job["folder"], job["at"], job["how"], counter)
    return main(job["words"])


def serve() -> None:
    """Answer jobs until there are no more."""
    importlib.import_module("nearfar.training.train")  # what every job needs

    for line in sys.stdin:
        job = json.loads(line)
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(reader)
            try:
                code = child(job, writer)
            except BaseException:
                code = 70
            os._exit(code)
        os.close(writer)
        changes = 0
        while some := os.read(reader, 4096):
            changes += len(some)
        os.close(reader)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        print(json.dumps({"code": code, "changes": changes}), flush=True)


if __name__ == "__main__":
    serve()
