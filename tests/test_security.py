"""No path that reads files can run what is in them."""

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "nearfar"
MODULES = sorted(SOURCE.rglob("*.py"))

# Readers that execute what they read; and what would run a string.
FORBIDDEN = {
    "pickle.load", "pickle.loads", "pickle.Unpickler", "cPickle.load", "dill.load", "dill.loads", "cloudpickle.load",
    "cloudpickle.loads", "joblib.load", "shelve.open", "marshal.load", "marshal.loads", "pandas.read_pickle",
    "pd.read_pickle", "yaml.load", "yaml.unsafe_load", "yaml.full_load", "torch.jit.load", "torch.package.PackageImporter",
    "os.system", "os.popen", "eval", "exec", "tarfile.open", "shutil.unpack_archive", "zipfile.ZipFile.extractall",
}  # fmt: skip
# What reads back what it has itself just written.
ALLOWED = {"export/torchscript.py": ["torch.jit.load"]}
# Those that are safe with the right argument: (call, argument, its value).
REQUIRED = {
    "torch.load": ("weights_only", True),
    "np.load": ("allow_pickle", False),
    "numpy.load": ("allow_pickle", False),
}


def dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else "?"


def unsafe_calls(source: str) -> list[str]:
    """Calls that could run what they read, each as `line: what is wrong`."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module in ("pickle", "dill", "marshal", "joblib", "shelve"):
            found += [
                f"{node.lineno}: from {node.module} import {name.name}"
                for name in node.names
                if "rror" not in name.name
            ]
        if not isinstance(node, ast.Call):
            continue
        name = dotted(node.func)
        arguments = {keyword.arg: keyword.value for keyword in node.keywords}
        if name in FORBIDDEN:
            found.append(f"{node.lineno}: {name}")
        if name in REQUIRED:
            argument, value = REQUIRED[name]
            given = arguments.get(argument)
            if not (isinstance(given, ast.Constant) and given.value is value):
                found.append(f"{node.lineno}: {name} without {argument}={value}")
        shell = arguments.get("shell")
        if shell is not None and not (isinstance(shell, ast.Constant) and shell.value is False):
            found.append(f"{node.lineno}: {name} with a shell")
    return found


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.relative_to(SOURCE).as_posix())
def test_nothing_unpickles_or_runs_strings(module: Path) -> None:
    found = unsafe_calls(module.read_text(encoding="utf-8"))
    assert [call.partition(": ")[2] for call in found] == ALLOWED.get(module.relative_to(SOURCE).as_posix(), [])


@pytest.mark.parametrize(
    "source",
    [
        "import pickle\npickle.load(file)",
        "from pickle import loads",
        "import torch\ntorch.load(path)",
        "import torch\ntorch.load(path, weights_only=False)",
        "import numpy as np\nnp.load(path, allow_pickle=True)",
        "import numpy as np\nnp.load(path)",
        "import yaml\nyaml.load(text, yaml.Loader)",
        "import subprocess\nsubprocess.run(text, shell=True)",
        "eval(text)",
    ],
)
def test_the_search_finds(source: str) -> None:
    assert unsafe_calls(source)
