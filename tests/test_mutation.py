"""The mutation tool: every fault is a real change, is put where it was found, and is judged by the tests' outcome."""

import ast
import itertools
import os
import random
import signal
import sys
import textwrap
import threading
from pathlib import Path

import pytest
from benchmarks.mutation.mutants import Mutant, mutants, mutate
from benchmarks.mutation.reach import Reach
from benchmarks.mutation.run import SUBJECTS, sample
from benchmarks.mutation.trial import CRASHED, TIMEOUT, WAITING, forked, try_mutant

# Python 3.12 and later warn of a fork beside threads, such as those of pytest's own worker processes.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")

ROOT = Path(__file__).parents[1]


def changes(source: str) -> list[str]:
    return [mutant.what for mutant in mutants(source)]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("x = a < b", ["a < b → a <= b"]),
        ("x = a == b != c", ["a == b != c → a != b != c", "a == b != c → a == b == c"]),
        ("x = a + b * c", ["a + b * c → a - b * c", "b * c → b / c"]),
        ("x += y", ["x += y → x -= y"]),
        ("x = not a and b", ["not a and b → not a or b", "not a → a"]),
        ("x = -a", ["-a → a"]),
        ("x = [1, 0.5, 0.0, True, 'a', None]", ["1 → 2", "0.5 → 1.0", "0.0 → 1.0", "True → False"]),
        ("x = s.amax(a)", ["s.amax(a) → s.amin(a)"]),
        ("x = min(a, b)", ["min(a, b) → max(a, b)"]),
        ("x = a if b else c", ["a if b else c → a if not b else c"]),
        ("if a:\n    f(b)", ["if a: → if not a:", "f(b) → pass"]),
        ("def f():\n    return a", ["return a → return None"]),
        ("def f(a: int | None = 3) -> list[int]: ...", ["3 → 4"]),
        ("x = f(a - b).g(c)", ["a - b → a + b"]),
        ("A = Tensor | None\nB = tuple[int | str, ...] | int\nC = isinstance(x, A | B)", []),
        ("x = a | b", ["a | b → a & b"]),
        ("'''1 + 1'''\nassert a < b\nraise E(a + b)\nx = f'{a + b}'\n@f(1)\ndef g(): ...", []),
    ],
)
def test_what_is_changed(source: str, expected: list[str]) -> None:
    assert changes(source) == expected


def test_every_mutant_differs_in_one_place_and_compiles() -> None:
    source = (ROOT / "src/nearfar/losses/engine/maps.py").read_text()
    original = ast.unparse(ast.parse(source)).splitlines()
    found = mutants(source)
    assert len(found) > 100
    for mutant in random.Random(0).sample(found, 30):
        tree = mutate(source, mutant)
        compile(tree, "maps.py", "exec")
        changed = ast.unparse(tree).splitlines()
        assert len(changed) == len(original)
        assert sum(a != b for a, b in zip(original, changed, strict=True)) == 1, mutant


def test_samples_are_of_a_seed() -> None:
    source = "x = [1, 2, 3, 4, 5, 6, 7, 8]"
    assert sample("a.py", source, 3, seed=0) == sample("a.py", source, 3, seed=0)
    assert len({tuple(sample("a.py", source, 3, seed)) for seed in range(9)}) > 1
    assert sample("a.py", source, 100, seed=0) == mutants(source)


def test_tests_that_reach_a_line_come_in_turn_of_their_functions() -> None:
    tests = ["t.py::a[1]", "t.py::a[2]", "t.py::b", "t.py::c"]
    reach = Reach(tests, [0.1, 0.2, 5.0, 1.0], {"f.py": {3: [0, 1, 2], 7: [3]}})
    assert reach.of("f.py", Mutant(3, 3, "", 0, 0), []) == ["t.py::a[1]", "t.py::b", "t.py::a[2]"]
    assert reach.of("f.py", Mutant(5, 5, "", 0, 0), [(1, 9), (4, 8)]) == ["t.py::c"]  # the innermost scope's
    assert reach.of("f.py", Mutant(5, 5, "", 0, 0), [(5, 6)]) == []
    assert reach.of("g.py", Mutant(3, 3, "", 0, 0), [(1, 9)]) == []
    assert reach.within(tests, 0.35) == tests[:2]
    assert reach.within(tests, 0.0) == tests[:1]


def test_reach_is_kept(tmp_path: Path) -> None:
    reach = Reach(["t.py::a"], [0.5], {"f.py": {3: [0]}})
    reach.save(tmp_path / "reach.json")
    assert Reach.load(tmp_path / "reach.json") == reach


def test_what_becomes_of_a_process() -> None:
    assert forked(lambda: 3, 60) == 3
    assert forked(lambda: os.kill(os.getpid(), signal.SIGKILL), 60) == CRASHED
    with pytest.raises(RuntimeError, match="no verdict"):
        forked(lambda: 1 // 0, 60)


def test_a_process_that_is_busy_for_too_long_is_ended() -> None:
    """By the processor's seconds: the clock stands still."""
    assert forked(lambda: sum(0 for _ in range(2 * 10**8)), 1, clock=lambda: 0.0) == TIMEOUT


def test_a_process_that_waits_for_too_long_is_ended() -> None:
    """By the clock, which is at ten times its seconds after so many looks; and nothing of the process is left."""
    looks = itertools.count()
    reader, writer = os.pipe()

    def wait() -> int:
        threading.Event().wait(60)  # for nothing; an end of its own would be seen below
        os.write(writer, b"it went on")
        return 0

    assert forked(wait, 1, clock=lambda: float(next(looks))) == TIMEOUT
    assert next(looks) == WAITING + 1  # one when it began, the last one at the end
    os.close(writer)
    os.set_blocking(reader, False)
    assert os.read(reader, 100) == b""  # the end: nobody holds the other side any more
    os.close(reader)


def test_a_fault_is_seen_by_the_tests_and_by_nobody_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trial of a small module: killed where its test looks, alive where it does not, and the file as it was."""
    source = "def double(x):\n    return x + x\n\ndef unseen(x):\n    return x - 1\n"
    module, test = tmp_path / "doubling.py", tmp_path / "test_doubling.py"
    module.write_text(source)
    test.write_text(
        textwrap.dedent("""
            import doubling

            def test_double():
                assert doubling.double(2) == 4
        """)
    )
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    codes = {
        mutant.what: try_mutant("doubling", module, mutate(source, mutant), ["test_doubling.py::test_double"], 60)
        for mutant in mutants(source)
    }
    assert codes == {
        "return x + x → return None": 1,
        "x + x → x - x": 1,
        "return x - 1 → return None": 0,
        "x - 1 → x + 1": 0,
        "1 → 2": 0,
    }
    assert try_mutant("doubling", module, ast.parse(source), ["test_doubling.py::gone"], 60) == 4
    assert module.read_text() == source
    assert "doubling" not in sys.modules


def test_the_subjects_are_there() -> None:
    for subject in SUBJECTS.values():
        assert (ROOT / subject.sources).is_dir()
        for argument in subject.tests:
            path = argument.removeprefix("--ignore=").removeprefix("--deselect=").split("::")[0]
            assert path.startswith("-k") or (ROOT / path).exists(), argument
        for inside in subject.without:
            assert (ROOT / subject.sources / inside).exists(), inside
