"""Which tests reach which lines, and how long each takes: found once, by running the tests under coverage."""

import itertools
import json
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from coverage import Coverage

from benchmarks.mutation.mutants import Mutant
from benchmarks.mutation.trial import forked, run_pytest


@dataclass(frozen=True)
class Reach:
    """The tests that reach every line, and how many seconds of the processor each took when it was traced."""

    tests: list[str]
    seconds: list[float]
    lines: dict[str, dict[int, list[int]]]  # file -> line -> positions in `tests`

    def of(self, path: str, mutant: Mutant, scopes: list[tuple[int, int]]) -> list[str]:
        """The tests to run against a mutant, different ones and fast ones first.

        What is run on import has no test of its own: then those that reach anything in the innermost of the `scopes`
        (first and last lines: functions, classes, the file) around it.
        """
        lines = self.lines.get(path, {})
        around = [(mutant.line, mutant.last_line), *sorted(scopes, key=lambda scope: scope[1] - scope[0])]
        for first, last in around:
            if not first <= mutant.line <= last:
                continue
            found = {test for line in range(first, last + 1) for test in lines.get(line, [])}
            if found:
                return self._in_turn(found)
        return []

    def within(self, tests: list[str], seconds: float) -> list[str]:
        """As many of the tests, from the first on, as took no longer than so many seconds together; at least one."""
        cost = dict(zip(self.tests, self.seconds, strict=True))
        sums = itertools.accumulate(cost[test] for test in tests)
        return tests[: max(1, sum(total <= seconds for total in sums))]

    def _in_turn(self, found: Iterable[int]) -> list[str]:
        """The fastest of every test function, then the second of each, and so on."""
        functions: dict[str, list[int]] = defaultdict(list)
        for test in sorted(found, key=lambda test: self.seconds[test]):
            functions[self.tests[test].split("[")[0]].append(test)
        rounds = [(turn, self.seconds[test], test) for own in functions.values() for turn, test in enumerate(own)]
        return [self.tests[test] for _, _, test in sorted(rounds)]

    def save(self, path: Path) -> None:
        path.write_text(json.dumps([self.tests, self.seconds, self.lines]))

    @classmethod
    def load(cls, path: Path) -> "Reach":
        tests, seconds, lines = json.loads(path.read_text())
        return cls(tests, seconds, {file: {int(k): v for k, v in own.items()} for file, own in lines.items()})


class _Tracing:
    """A pytest plugin that tells coverage which test is running, and notes how long it takes."""

    def __init__(self, coverage: Coverage):
        self.coverage = coverage
        self.seconds: dict[str, float] = {}

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        start = time.process_time()
        self.coverage.switch_context(item.nodeid)
        yield
        self.coverage.switch_context("")
        self.seconds[item.nodeid] = time.process_time() - start


def trace(root: Path, sources: list[str], arguments: list[str], place: Path) -> Reach:
    """Run the tests that pytest's `arguments` choose, all of which must pass, and note what they reach."""

    def traced() -> int:
        coverage = Coverage(data_file=None, source=[str(root / source) for source in sources], branch=False)
        tracing = _Tracing(coverage)
        coverage.start()
        code = run_pytest(arguments, tracing)
        coverage.stop()
        if code == 0:
            _reach(root, coverage, tracing).save(place)
        return code

    code = forked(traced, seconds=3600, quiet=False)
    if code != 0:
        raise RuntimeError(f"without any fault, the tests must pass: pytest ended with {code}")
    return Reach.load(place)


def _reach(root: Path, coverage: Coverage, tracing: _Tracing) -> Reach:
    tests = list(tracing.seconds)
    number = {test: position for position, test in enumerate(tests)}
    data: Any = coverage.get_data()
    lines: dict[str, dict[int, list[int]]] = {}
    for file in sorted(data.measured_files()):
        by_line = data.contexts_by_lineno(file)
        reached = {line: [number[c] for c in contexts if c in number] for line, contexts in by_line.items()}
        lines[str(Path(file).relative_to(root))] = {line: own for line, own in sorted(reached.items()) if own}
    return Reach(tests, [round(tracing.seconds[test], 4) for test in tests], lines)
