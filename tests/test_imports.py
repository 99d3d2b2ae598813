"""What importing nearfar.losses brings with it, which parts of nearfar may know which, and what no test may know."""

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "src" / "nearfar"
FOUNDATION = {"errors", "foundation"}  # which everyone may import
MAY_IMPORT = {
    "errors": set(),
    "foundation": {"errors", "foundation"},
    "losses": {"losses"},
    "imaging": {"imaging"},
    "data": {"data", "imaging"},
    "models": {"models", "imaging"},
    "evaluation": {"evaluation"},
    "report": {"report", "data", "evaluation", "imaging", "losses"},
    "planning": {"planning"},
    "training": {"training", "data", "evaluation", "imaging", "losses", "models", "report"},
    "compare": {"compare", "training", "data", "evaluation", "imaging", "losses", "models", "report"},
    "studies": {"studies", "compare", "training", "data", "evaluation", "imaging", "losses", "models", "report"},
    "retrieval": {"retrieval", "training", "data", "evaluation", "imaging", "models", "report"},
    "export": {"export", "training", "data", "evaluation", "imaging", "models"},
    "checkup": {"checkup", "retrieval", "training", "data", "evaluation", "imaging", "losses", "models", "report"},
    "serve": {"serve", "retrieval", "training", "data", "evaluation", "imaging", "models", "report"},
}


def fresh_python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout


def third_party(imports: str) -> set[str]:
    """The top-level modules, not of the standard library, that a fresh interpreter has loaded after `imports`."""
    loaded = json.loads(fresh_python(f"{imports}\nimport json, sys\nprint(json.dumps(list(sys.modules)))"))
    return {name.partition(".")[0] for name in loaded} - set(sys.stdlib_module_names)


def test_losses_need_torch_and_numpy_alone() -> None:
    loaded = third_party("import nearfar.losses")
    assert {"nearfar", "torch"} <= loaded
    assert loaded - third_party("import numpy, torch") == {"nearfar"}


def test_packages_are_imported_when_they_are_used() -> None:
    code = """
import json, sys, nearfar
shown, before = dir(nearfar), "torch" in sys.modules
loss = nearfar.losses.CircleLoss()
print(json.dumps([shown, before, "nearfar.models" in sys.modules, nearfar.models.Embedder.__name__]))
"""
    shown, torch_before, models_before, embedder = json.loads(fresh_python(code))
    assert shown == ["__version__", "data", "evaluation", "losses", "models", "train"]
    assert (torch_before, models_before, embedder) == (False, False, "Embedder")


def test_losses_import_quickly() -> None:
    """Nothing is loaded beside torch but the losses themselves, not even more of torch, and little is done meanwhile."""
    code = """
import json, sys, numpy, torch
there, calls = set(sys.modules), 0
def count(frame, event, argument):
    global calls
    calls += event in ("call", "c_call")
sys.setprofile(count)
import nearfar.losses
sys.setprofile(None)
print(json.dumps([calls, sorted(set(sys.modules) - there)]))
"""
    calls, loaded = json.loads(fresh_python(code))
    rooms = ("*.py", "engine/*.py", "catalogue/*.py")  # not what is distributed
    files = [path.relative_to(PACKAGE.parent) for room in rooms for path in (PACKAGE / "losses").glob(room)]
    own = {".".join(path.with_suffix("").parts).removesuffix(".__init__") for path in files}
    founded = {"nearfar.foundation", "nearfar.foundation.suggestions"}
    assert (
        {"nearfar", "nearfar.losses"} <= set(loaded) <= {"nearfar", "nearfar.errors", *founded, "nearfar.losses", *own}
    )
    assert calls < 100_000  # some 23,000, most of them dataclasses


def imported(source: str) -> set[str]:
    """The parts of nearfar that a module imports, anywhere in it; "." stands for a relative import."""
    parts = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names] if node.level == 0 else ["nearfar.."]
        else:
            continue
        parts |= {name.split(".", 2)[1] or "." for name in names if name.startswith("nearfar.")}
    return parts


@pytest.mark.parametrize(
    ("source", "parts"),
    [
        ("import nearfar.data.tables as t, torch", {"data"}),
        ("from nearfar import losses, models", {"losses", "models"}),
        ("def f():\n    from nearfar.training.checks import check", {"training"}),
        ("from ..data import tables", {"."}),
        ("import torch\nfrom collections import abc", set()),
    ],
)
def test_imported_parts_are_found(source: str, parts: set[str]) -> None:
    assert imported(source) == parts


@pytest.mark.parametrize("part", MAY_IMPORT)
def test_imports_point_one_way(part: str) -> None:
    allowed = MAY_IMPORT[part] | (FOUNDATION if part not in FOUNDATION else set())
    modules = sorted((PACKAGE / part).rglob("*.py")) or [PACKAGE / f"{part}.py"]
    found = {str(module.relative_to(PACKAGE)): imported(module.read_text(encoding="utf-8")) for module in modules}
    assert any(found.values()) or not allowed
    assert {name: parts - allowed for name, parts in found.items() if parts - allowed} == {}


# The rooms of the losses: what each may import of them when it is loaded. The frame is what lies beside the rooms.
ROOMS = {
    "engine": {"engine"},
    "frame": {"frame", "engine"},
    "catalogue": {"catalogue", "frame", "engine"},
    "distributed": {"distributed", "catalogue", "frame", "engine"},
}


def loaded_rooms(source: str) -> set[str]:
    """The rooms that a module imports as it is loaded: not within functions, nor for the types."""
    rooms = set()
    for node in ast.parse(source).body:
        if isinstance(node, ast.ImportFrom) and node.module is not None and node.module.startswith("nearfar.losses"):
            within = node.module.split(".")[2:] or [alias.name for alias in node.names]
            rooms |= {name if name in ROOMS else "frame" for name in within[:1]}
    return rooms


@pytest.mark.parametrize("room", ROOMS)
def test_imports_between_the_rooms_of_the_losses_point_one_way(room: str) -> None:
    folder = PACKAGE / "losses" / ("" if room == "frame" else room)
    modules = [path for path in sorted(folder.glob("*.py")) if path != PACKAGE / "losses" / "__init__.py"]
    found = {path.name: loaded_rooms(path.read_text(encoding="utf-8")) for path in modules}
    assert any(found.values())
    assert {name: rooms - ROOMS[room] for name, rooms in found.items() if rooms - ROOMS[room]} == {}


# A machine that has other things to do must fail no test: they count, or bring a clock of their own. Here also in the
# texts that other processes run.
CLOCK = re.compile(r"^ *(from (time|timeit) import|import (\w[\w.]*, )*(time|timeit)\b)", re.MULTILINE)


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import sys, time", True),
        ("def f():\n    from timeit import timeit", True),
        ('CODE = """\nimport time, torch\n"""', True),
        ("import datetime\nfrom nearfar.planning.timing import time_of", False),
    ],
)
def test_clocks_are_found(source: str, found: bool) -> None:
    assert bool(CLOCK.search(source)) == found


def test_no_test_looks_at_a_clock() -> None:
    tests = sorted(Path(__file__).parent.rglob("*.py"))
    assert len(tests) > 100
    assert [str(path) for path in tests if CLOCK.search(path.read_text(encoding="utf-8"))] == []
