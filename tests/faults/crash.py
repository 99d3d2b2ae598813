"""Processes that die, or find the disk full, at a chosen change of a file.

`python -m tests.faults.crash` reads jobs from its standard input, a JSON object a line, and answers each with a line. It
has imported nearfar once; every job is a forked child of it, so that hundreds of crashes cost little more than what
they do:

    {"folder": F, "at": 7, "how": "kill", "words": ["train", ...]}   ->   {"code": -9, "changes": 7, "said": "..."}

`words` are those of a command; with `call`, such as "tests.faults.jobs:fill_cache", they are the arguments of a
function. `at` counts, below the folder: files opened for writing, flushed to the disk, renamed, linked, removed; folders
made and removed. At that change

    kill        SIGKILL, just before it
    full        an OSError of a full disk in place of it and of all later ones, but for removing
    short       from then on files can be opened and not written: the first byte is an error
    readonly    an OSError of a file system that can only be read, in place of it and of all later ones
    none        nothing: all changes happen, and are counted
"""

import errno
import importlib
import json
import mmap
import os
import random
import resource
import signal
import struct
import subprocess
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

LONG = bool(os.environ.get("NEARFAR_LONG"))
How = Literal["kill", "full", "short", "readonly", "none"]
FAULTS: tuple[How, ...] = ("kill", "full", "short", "readonly")
CHANGES = {
    "os.rename": (0, 1),
    "os.remove": (0,),
    "os.mkdir": (0,),
    "os.rmdir": (0,),
    "os.truncate": (0,),
    "os.link": (1,),
    "fsync": (0,),
}
REMOVING = ("os.remove", "os.rmdir")  # needs no room
# What jobs import when they need it: once here, instead of in every child.
PREPARED = (
    "matplotlib.backends.backend_svg", "nearfar.commands.index", "nearfar.commands.report", "nearfar.commands.train",
    "nearfar.report.run", "nearfar.retrieval.build", "nearfar.retrieval.calibration", "nearfar.retrieval.faiss_index",
    "nearfar.retrieval.recall", "nearfar.retrieval.search", "nearfar.training.evaluate", "nearfar.training.train",
    "sklearn.manifold", "tests.faults.jobs",
)  # fmt: skip
WORDS_OF = {errno.ENOSPC: "No space left", errno.EFBIG: "File too large", errno.EROFS: "Read-only file system"}


class Outcome(NamedTuple):
    """Exit code (negative: the signal), how many changes were begun, and what was printed."""

    code: int
    changes: int
    said: str


class Crasher:
    """The process with nearfar in it; `run` and `call` have a child of it do something."""

    def __init__(self) -> None:
        self.done: Counter[How] = Counter()  # jobs, by what happened to them
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.crash"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"}, cwd=Path(__file__).parents[2],
        )  # fmt: skip

    def run(self, words: Sequence[str], folder: Path, at: int = 0, how: How = "none") -> Outcome:
        """Run `nearfar` with these words."""
        return self._ask({"folder": str(folder), "at": at, "how": how, "words": list(words)})

    def call(self, function: str, *arguments: Any, folder: Path, at: int = 0, how: How = "none") -> Outcome:
        """Call a function of `tests.faults.jobs`; code 1 says that it raised."""
        job = {"folder": str(folder), "at": at, "how": how, "call": f"tests.faults.jobs:{function}"}
        return self._ask({**job, "words": list(arguments)})

    def _ask(self, job: dict[str, Any]) -> Outcome:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(job) + "\n")
        self.process.stdin.flush()
        self.done[job["how"]] += 1
        return Outcome(**json.loads(self.process.stdout.readline()))

    def close(self) -> None:
        with self.process:  # which closes the pipes, and waits
            self.process.kill()  # the end of its input may never come: whatever was forked here meanwhile holds it open


def points(changes: int, few: int, seed: str) -> list[int]:
    """The changes to fail at: with NEARFAR_LONG every one, else a few that the seed decides."""
    every = range(1, changes + 1)
    return list(every) if LONG else sorted(random.Random(seed).sample(every, min(few, changes)))


def watch(folder: str, at: int, how: How, count: Callable[[], None]) -> None:
    """Count changes below a folder; at one of them, die or fail."""
    seen = 0

    def changed(event: str, *paths: Any) -> None:
        nonlocal seen
        if not any(isinstance(path, str | os.PathLike) and os.fspath(path).startswith(folder) for path in paths):
            return
        seen += 1
        count()
        if seen == at and how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if seen == at and how == "short":
            resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
        if seen >= at and ((how == "full" and event not in REMOVING) or how == "readonly"):
            number = errno.ENOSPC if how == "full" else errno.EROFS
            raise OSError(number, os.strerror(number), os.fspath(paths[0]))

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = arguments
            if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
                changed(event, path)
        elif event in CHANGES:
            changed(event, *(arguments[i] for i in CHANGES[event]))

    flush = os.fsync

    def fsync(file: Any) -> None:  # which Python does not announce
        number = file if isinstance(file, int) else file.fileno()
        changed("fsync", os.readlink(f"/proc/self/fd/{number}"))
        flush(number)

    if os.path.isdir("/proc/self/fd"):
        os.fsync = fsync
    sys.addaudithook(hook)


def child(job: dict[str, Any], count: Callable[[], None]) -> int:
    if "call" in job:
        module, _, name = job["call"].partition(":")
        function = getattr(importlib.import_module(module), name)
        watch(job["folder"], job["at"], job["how"], count)
        try:
            function(*job["words"])
        except Exception as error:
            print(f"{type(error).__name__}: {error}")
            return 1
        return 0
    from nearfar.cli import main

    watch(job["folder"], job["at"], job["how"], count)
    return main(job["words"])


def fork(job: dict[str, Any]) -> Outcome:
    """Have a child do a job."""
    counter = mmap.mmap(-1, 8)  # shared with the child, and there when it is killed

    def count() -> None:
        counter[:8] = struct.pack("q", struct.unpack("q", counter[:8])[0] + 1)

    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        os.dup2(writer, 1)
        os.dup2(writer, 2)
        try:
            code = child(job, count)
        except BaseException:
            traceback.print_exc()
            code = 70
        sys.stdout.flush()
        os._exit(code)
    os.close(writer)
    said = b""
    while some := os.read(reader, 65536):
        said += some
    os.close(reader)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return Outcome(code, struct.unpack("q", counter[:8])[0], said.decode(errors="replace"))


def serve() -> None:
    """Answer jobs until there are no more."""
    for needed in PREPARED:
        importlib.import_module(needed)
    for line in sys.stdin:
        print(json.dumps(fork(json.loads(line))._asdict()), flush=True)
    os._exit(0)  # nothing here is worth the seconds of taking it down


if __name__ == "__main__":
    serve()
