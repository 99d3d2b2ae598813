"""One mutant against tests, in a forked process: the module is imported with its fault, the file stays as it is."""

import ast
import contextlib
import importlib.abc
import importlib.machinery
import math
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from importlib.util import spec_from_file_location
from pathlib import Path
from types import CodeType, ModuleType

import pytest

MEMORY = 12 * 2**30  # of a trial: a fault may make it ask for more and more
WAITING = 10  # a process that waits for something is given so many times its seconds
# What `forked` returns if the process takes too long, dies of a signal, or fails outside pytest.
TIMEOUT, CRASHED, BROKEN = -1, -2, 70


class Faulty(importlib.abc.MetaPathFinder):
    """An import hook: one module comes from the given tree instead of its file."""

    def __init__(self, module: str, path: Path, tree: ast.Module):
        self.module, self.path, self.tree = module, path, tree

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self.module:
            return None
        inside = [str(self.path.parent)] if self.path.name == "__init__.py" else None
        loader = _TreeLoader(fullname, str(self.path), self.tree)
        return spec_from_file_location(fullname, self.path, loader=loader, submodule_search_locations=inside)


class _TreeLoader(importlib.machinery.SourceFileLoader):
    def __init__(self, fullname: str, path: str, tree: ast.Module):
        super().__init__(fullname, path)
        self.tree = tree

    def get_code(self, fullname: str) -> CodeType:
        return compile(self.tree, self.path, "exec")


class _Chosen:
    """A pytest plugin: of what is collected, the chosen tests alone, in their order."""

    def __init__(self, tests: Sequence[str]):
        self.tests = tests

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        found = {item.nodeid: item for item in items}
        missing = [test for test in self.tests if test not in found]
        if missing:  # the fault has changed what there is to test
            raise pytest.UsageError(f"{len(missing)} tests are not there any more, such as {missing[0]}")
        items[:] = [found[test] for test in self.tests]


def run_pytest(arguments: Sequence[str], *plugins: object) -> int:
    """Pytest in this process, on its own and without other packages' plugins; its exit code."""
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # loading them takes longer than most trials
    options = ["-q", "-p", "no:cacheprovider", "--no-header", "--tb=no"]
    return int(pytest.main([*options, *arguments], plugins=list(plugins)))


def try_mutant(module: str, path: Path, tree: ast.Module, tests: Sequence[str], seconds: float) -> int:
    """Pytest's exit code with that module faulty, stopping at the first failure; TIMEOUT if it takes too long."""

    def faulty() -> int:
        if module in sys.modules:
            raise RuntimeError(f"{module} was imported before the fork: its fault would not be seen")
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        sys.meta_path.insert(0, Faulty(module, path, tree))
        files = sorted({test.split("::")[0] for test in tests})
        return run_pytest(["-x", *files], _Chosen(tests))

    return forked(faulty, seconds)


def forked(
    function: Callable[[], int], seconds: float, quiet: bool = True, clock: Callable[[], float] = time.monotonic
) -> int:
    """What the function returns, called in a forked process.

    TIMEOUT if it takes more than so many seconds of the processor (a busy machine is no fault), or many times as long
    without, by the clock; CRASHED if a signal ended it.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    process = os.fork()
    if process == 0:
        code = BROKEN
        try:
            os.setpgid(0, 0)  # so that what the tests start ends with them
            resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(seconds), math.ceil(seconds) + 5))
            if quiet:
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, 1)
                os.dup2(nowhere, 2)
            code = function()
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    with contextlib.suppress(OSError):  # the process may not have come to it yet, or be gone
        os.setpgid(process, process)
    end = clock() + WAITING * seconds
    while clock() < end:
        done, status = os.waitpid(process, os.WNOHANG)
        if done:
            code = os.waitstatus_to_exitcode(status)
            if code < 0:
                return TIMEOUT if -code == signal.SIGXCPU else CRASHED
            if code == BROKEN:
                raise RuntimeError("a trial failed outside pytest: this is no verdict")
            return code
        time.sleep(0.02)
    os.killpg(process, signal.SIGKILL)
    os.waitpid(process, 0)
    return TIMEOUT
