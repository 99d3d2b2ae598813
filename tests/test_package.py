"""The wheel and the sdist: what is in them, and what the wheel can do beside torch and numpy alone.

Building takes its time: `NEARFAR_LONG=1` runs it.
"""

import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from collections.abc import Iterator
from email.parser import Parser
from importlib import metadata
from pathlib import Path

import pytest

from nearfar import __version__
from nearfar.cli import COMMANDS

pytestmark = pytest.mark.skipif(not os.environ.get("NEARFAR_LONG"), reason="NEARFAR_LONG=1 builds the package")
ROOT = Path(__file__).parent.parent
INFO = f"nearfar-{__version__}.dist-info"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with both; the wheel is made from the sdist."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    (path,) = built.glob("*.whl")
    return path


def tracked(folder: str = ".") -> set[str]:
    """The files of the project, as git has them or would take them."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", folder]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    return {name for name in listed if (ROOT / name).is_file()}


# What is in them


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    assert wheel.name == f"nearfar-{__version__}-py3-none-any.whl"
    names = set(zipfile.ZipFile(wheel).namelist())
    own = {name.removeprefix("src/") for name in tracked("src")}
    about = {f"{INFO}/{name}" for name in ("METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE")}
    assert names == own | about
    for needed in ("py.typed", "report/page.css", "report/page.js", "serve/page/index.html", "serve/page/app.js",
                   "serve/page/style.css", "serve/page/icon.svg", "training/recipes/__init__.py"):  # fmt: skip
        assert f"nearfar/{needed}" in names


def test_the_sdist_holds_the_project_and_nothing_else(built: Path) -> None:
    (path,) = built.glob("*.tar.gz")
    top = f"nearfar-{__version__}/"
    with tarfile.open(path) as archive:
        members = archive.getmembers()
    assert all(member.name.startswith(top) and (member.isfile() or member.isdir()) for member in members)
    names = {member.name.removeprefix(top) for member in members if member.isfile()}
    assert names == tracked() | {"PKG-INFO"}


def test_what_it_says_of_itself(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    about = Parser().parsestr(archive.read(f"{INFO}/METADATA").decode())
    assert about["Name"] == "nearfar" and about["Version"] == __version__
    assert about["License-Expression"] == "Apache-2.0" and about["Requires-Python"] == ">=3.11"
    assert archive.read(f"{INFO}/licenses/LICENSE") == (ROOT / "LICENSE").read_bytes()
    assert "nearfar = nearfar.cli:main" in archive.read(f"{INFO}/entry_points.txt").decode()
    core = {re.split(r"[^\w-]", line)[0] for line in about.get_all("Requires-Dist", []) if "extra ==" not in line}
    assert core == {"torch", "numpy"}
    extras = set(about.get_all("Provides-Extra", []))
    named = {
        extra
        for name in archive.namelist()
        if name.endswith(".py")
        for found in re.findall(r"nearfar\[([\w,-]+)\]", archive.read(name).decode())
        for extra in found.split(",")
    }
    assert named and named <= extras  # no error names an extra that there is not


# What it can do alone


def needed(*names: str) -> set[str]:
    """Distributions, with what they require on this machine, and what that requires."""
    from packaging.requirements import Requirement

    found: set[str] = set()
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        found.add(name)
        for line in metadata.requires(name) or []:
            wanted = Requirement(line)
            if wanted.marker is None or wanted.marker.evaluate({"extra": ""}):
                waiting.append(wanted.name.lower())
    return found


def top_level(name: str) -> Iterator[str]:
    """What a distribution has put into site-packages."""
    for file in metadata.files(name) or []:
        if file.parts[0] not in ("..", "__pycache__"):
            yield file.parts[0]


@pytest.fixture(scope="module")
def alone(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh environment with the wheel, torch, numpy and what those two require: linked, not copied, since torch is
    large. pip is asked whether anything is missing.
    """
    folder = tmp_path_factory.mktemp("venv") / "venv"
    venv.create(folder, with_pip=True, symlinks=True)
    python = folder / "bin" / "python"
    here, there = (Path(sysconfig.get_paths(vars=vars_)["purelib"]) for vars_ in (None, {"base": str(folder)}))
    for entry in {entry for name in needed("torch", "numpy") for entry in top_level(name)}:
        if not (there / entry).exists():
            (there / entry).symlink_to(here / entry)
    install = [python, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", str(wheel)]
    for command in (install, [python, "-m", "pip", "check"]):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    return folder


def run(alone: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """In a folder of its own, where nothing but the environment can be imported from."""
    names = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    env = {name: value for name, value in os.environ.items() if name not in names}
    return subprocess.run([str(alone / "bin" / words[0]), *words[1:]], cwd=alone, env=env | {"OMP_NUM_THREADS": "1"},
                          capture_output=True, text=True, check=False, timeout=900)  # fmt: skip


LOSS = """
import importlib.util, torch, nearfar, nearfar.losses
assert nearfar.__file__.startswith({folder!r}), nearfar.__file__
for other in ("PIL", "lightning", "scipy", "faiss", "yaml", "safetensors", "matplotlib", "fastapi", "onnx"):
    assert importlib.util.find_spec(other) is None, other
x = torch.randn(8, 4, requires_grad=True)
nearfar.losses.CircleLoss()(x, torch.arange(8) % 3).backward()
print(bool(x.grad.abs().sum() > 0))
"""


def test_losses_with_torch_and_numpy_alone(alone: Path) -> None:
    done = run(alone, "python", "-W", "error", "-c", LOSS.format(folder=str(alone)))
    assert done.stdout == "True\n", done.stderr
    listed = run(alone, "nearfar", "losses")
    assert listed.returncode == 0 and "CircleLoss" in listed.stdout and not listed.stderr
    assert run(alone, "nearfar", "losses", "ProxyAnchorLoss").returncode == 0
    assert run(alone, "nearfar", "--version").stdout == f"nearfar {__version__}\n"
    assert all(name in run(alone, "nearfar", "--help").stdout for name in COMMANDS)


WORDS = {
    "train": ("glyphs",),
    "compare": ("glyphs",),
    "study": ("gradients",),
    "evaluate": ("run",),
    "export": ("run",),
    "embed": ("run", "--out", "x.npz"),
    "index": ("run",),
    "search": ("run", "x.png"),
    "serve": ("run",),
    "duplicates": ("glyphs",),
    "report": ("run",),
    "doctor": ("glyphs",),
}
ALONE = {"plan", "losses", "recipes", "completion", "env"}  # commands that need nothing more


def test_every_command_is_either_or() -> None:
    assert WORDS.keys() | ALONE == COMMANDS.keys() and not WORDS.keys() & ALONE


@pytest.mark.parametrize("command", WORDS)
def test_commands_that_need_more_say_what(command: str, alone: Path) -> None:
    done = run(alone, "nearfar", command, *WORDS[command])
    assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr
    assert re.search(r"pip install 'nearfar\[\w+\]'", done.stderr), done.stderr


@pytest.mark.parametrize("command", sorted(ALONE))
def test_commands_that_need_nothing_more(command: str, alone: Path) -> None:
    words = {"completion": ("bash",), "plan": ("--help",)}
    done = run(alone, "nearfar", command, *words.get(command, ()))
    assert done.returncode == 0 and done.stdout, done.stderr
