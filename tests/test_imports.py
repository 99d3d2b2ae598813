"""What importing nearfar.losses brings with it, and which parts of nearfar may know which."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "src" / "nearfar"
MAY_IMPORT = {
    "losses": {"losses"},
    "imaging": {"imaging"},
    "data": {"data", "imaging"},
    "models": {"models", "imaging"},
    "evaluation": {"evaluation"},
    "report": {"report", "durations", "data", "evaluation", "imaging", "losses"},
    "planning": {"planning"},
    "training": {"training", "durations", "data", "evaluation", "imaging", "losses", "models", "report"},
    "compare": {"compare", "durations", "training", "data", "evaluation", "imaging", "losses", "models", "report"},
    "studies": {"studies", "compare", "training", "data", "evaluation", "imaging", "losses", "models", "report"},
    "retrieval": {"retrieval", "training", "data", "evaluation", "imaging", "models", "report"},
    "export": {"export", "training", "data", "evaluation", "imaging", "models"},
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


def test_losses_import_quickly() -> None:
    code = """
import time, numpy, torch
start = time.perf_counter()
import nearfar.losses
print(time.perf_counter() - start)
"""
    assert min(float(fresh_python(code)) for _ in range(3)) < 0.3


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
    modules = sorted((PACKAGE / part).rglob("*.py"))
    found = {str(module.relative_to(PACKAGE)): imported(module.read_text(encoding="utf-8")) for module in modules}
    assert any(found.values())
    assert {name: parts - MAY_IMPORT[part] for name, parts in found.items() if parts - MAY_IMPORT[part]} == {}
