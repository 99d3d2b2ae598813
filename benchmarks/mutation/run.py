"""The sample, the table, and the rows of results/mutation.csv."""

import ast
import csv
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from benchmarks.mutation.mutants import Mutant, mutants, mutate
from benchmarks.mutation.reach import Reach, trace
from benchmarks.mutation.trial import TIMEOUT, try_mutant

ROOT = Path(__file__).resolve().parents[2]
CSV = ROOT / "benchmarks" / "results" / "mutation.csv"
TRIES = 3.0, 20.0  # seconds of tests: few tests kill most mutants, and the others get a second try
SLOW, START = 5, 20.0  # a try may take so many times as long, and so many seconds to import and collect


@dataclass(frozen=True)
class Subject:
    """Files, and the tests that should notice their faults."""

    sources: str  # a folder of src
    tests: tuple[str, ...]  # pytest's arguments
    without: tuple[str, ...] = ()  # files that need other processes, which tracing does not follow


# Of the tests of the losses, for time: three kinds of inputs of twelve, one tile size of three and one budget of three;
# no half precision, no fuzzing, no finite differences, nothing that measures memory.
SUBJECTS = {
    "losses": Subject(
        "src/nearfar/losses",
        (
            "tests/losses",
            "--ignore=tests/losses/distributed/test_worlds.py",
            "--ignore=tests/losses/test_fuzz.py",
            "--ignore=tests/losses/test_precision.py",
            "-k=not test_memory_stays and not test_gradcheck",
        ),
        ("distributed/", "engine/memory.py"),
    ),
    "evaluation": Subject(
        "src/nearfar/evaluation",
        (
            "tests/evaluation",
            "--deselect=tests/evaluation/test_distributed.py::test_three_processes_find_what_one_finds",
            "--ignore=tests/evaluation/test_retrieval_benchmark.py",
        ),
        ("distributed.py", "workers.py"),
    ),
}


@dataclass(frozen=True)
class Verdict:
    """What became of one mutant."""

    seed: int
    file: str
    line: int
    change: str
    verdict: str  # killed, timeout (noticed too), survived, unreached
    tests: int  # that were run against it


def measure(names: list[str], number: int, seed: int, only: list[str], out: Path, reach_folder: Path | None) -> int:
    """Try a sample of `number` mutants of every file, and print the table; 1 if any survived."""
    _import_what_the_tests_share()
    verdicts: list[Verdict] = []
    for name in names:
        subject = SUBJECTS[name]
        with tempfile.TemporaryDirectory() as folder:
            os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = folder
            place = (reach_folder or Path(folder)) / f"reach-{name}.json"
            reach = Reach.load(place) if place.exists() else trace(ROOT, [subject.sources], [*subject.tests], place)
            for verdict in _verdicts(subject, reach, number, seed, only):
                verdicts.append(verdict)
                _append(verdict, out)
    _print_table(verdicts)
    return int(any(v.verdict in ("survived", "unreached") for v in verdicts))


def sample(path: str, source: str, number: int, seed: int) -> list[Mutant]:
    """Up to `number` of a file's mutants, the same ones for the same seed."""
    everything = mutants(source)
    chosen = random.Random(f"{seed} {path}").sample(everything, min(number, len(everything)))
    return sorted(chosen, key=lambda mutant: (mutant.line, mutant.node))


def _verdicts(subject: Subject, reach: Reach, number: int, seed: int, only: list[str]) -> Iterator[Verdict]:
    for path in sorted((ROOT / subject.sources).rglob("*.py")):
        inside = str(path.relative_to(ROOT / subject.sources))
        if inside.startswith(subject.without) or not any(text in inside for text in only):
            continue
        file, source = str(path.relative_to(ROOT)), path.read_text()
        chosen = sample(file, source, number, seed)
        if chosen and file in reach.lines:
            _check(reach, file, source)
        for mutant in chosen:
            start = time.monotonic()
            verdict, tests = _try(reach, file, source, mutant)
            print(
                f"{verdict:10} {file}:{mutant.line}  {mutant.what}  ({tests} tests, {time.monotonic() - start:.1f} s)",
                file=sys.stderr,
                flush=True,
            )
            yield Verdict(seed, file, mutant.line, mutant.what, verdict, tests)


def _try(reach: Reach, file: str, source: str, mutant: Mutant) -> tuple[str, int]:
    tests = reach.of(file, mutant, _scopes(source))
    if not tests:
        return "unreached", 0
    tree, tried = mutate(source, mutant), 0
    for seconds in TRIES:
        some = reach.within(tests, seconds)
        if len(some) == tried:
            break
        code, tried = try_mutant(_module(file), ROOT / file, tree, some, START + SLOW * seconds), len(some)
        if code != 0:
            return "timeout" if code == TIMEOUT else "killed", tried
    return "survived", tried


def _check(reach: Reach, file: str, source: str) -> None:
    """The way a mutant is tried must let the code pass as it is."""
    everywhere = Mutant(1, source.count("\n") + 1, "", 0, 0)
    tests = reach.within(reach.of(file, everywhere, []), TRIES[0])
    code = try_mutant(_module(file), ROOT / file, ast.parse(source), tests, START + SLOW * TRIES[0])
    if code != 0:
        raise RuntimeError(f"without any fault, {file} fails its tests: pytest ended with {code}")


def _module(file: str) -> str:
    return ".".join(Path(file).relative_to("src").with_suffix("").parts).removesuffix(".__init__")


def _scopes(source: str) -> list[tuple[int, int]]:
    """First and last line of every function and class, and of the file."""
    kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, kinds)]
    own = [(min([node.lineno, *(d.lineno for d in node.decorator_list)]), node.end_lineno or 0) for node in nodes]
    return [*own, (1, source.count("\n") + 1)]


def _import_what_the_tests_share() -> None:
    """Once, for all trials: what is slow to import. Nothing of nearfar, which the trials import with their faults."""
    import hypothesis  # noqa: F401
    import scipy.stats  # noqa: F401
    import sklearn.metrics  # noqa: F401
    import torch

    torch.set_num_threads(1)  # a process with threads cannot be forked safely
    loaded = [name for name in sys.modules if name.split(".")[0] == "nearfar"]
    if loaded:
        raise RuntimeError(f"{loaded[0]} is imported already: run `python -m benchmarks.mutation` by itself")


def _append(verdict: Verdict, path: Path) -> None:
    new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Verdict)], lineterminator="\n")
        if new:
            writer.writeheader()
        writer.writerow(asdict(verdict))


def _print_table(verdicts: list[Verdict]) -> None:
    print(f"{'file':48}{'mutants':>8}{'killed':>8}{'survived':>10}")
    for file in sorted({v.file for v in verdicts}):
        own = [v for v in verdicts if v.file == file]
        alive = [v for v in own if v.verdict in ("survived", "unreached")]
        print(f"{file:48}{len(own):8}{len(own) - len(alive):8}{len(alive):10}")
        for v in alive:
            print(f"    {v.line}: {v.change}" + ("  (no test reaches it)" if v.verdict == "unreached" else ""))
    alive_of_all = sum(v.verdict in ("survived", "unreached") for v in verdicts)
    print(f"{'all':48}{len(verdicts):8}{len(verdicts) - alive_of_all:8}{alive_of_all:10}")
