"""Which errors are for users, and what the command line makes of those and of bugs."""

import ast
import builtins
import contextlib
import errno
import importlib
import pickle
import pkgutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

import nearfar
import nearfar.commands.env as command
from nearfar.cli import BUG, main
from nearfar.errors import InputError, NearfarError
from nearfar.imaging import BrokenImageError
from nearfar.models import Embedder
from nearfar.training.config import DataConfig, TrainConfig
from nearfar.training.options import to_yaml
from tests.data.making import image

SOURCE = Path(nearfar.__file__).parent


def every_kind(kind: type[NearfarError] = NearfarError) -> Iterator[type[NearfarError]]:
    for below in kind.__subclasses__():
        yield below
        yield from every_kind(below)


for module in pkgutil.walk_packages(nearfar.__path__, "nearfar."):
    with contextlib.suppress(ImportError):  # of a package that is not there
        importlib.import_module(module.name)
KINDS = list(every_kind())


def made(kind: type[NearfarError]) -> NearfarError:
    return kind("a.jpg", "cut off") if issubclass(kind, BrokenImageError) else kind("a.jpg: cut off")


def named(kind: type) -> str:
    return kind.__name__


# The tree


@pytest.mark.parametrize("kind", KINDS, ids=named)
def test_each_is_what_programmers_catch(kind: type[NearfarError]) -> None:
    builtin = [base for base in kind.__mro__ if base.__module__ == "builtins"]
    assert builtin[0] not in (Exception, BaseException, object)
    assert str(made(kind)) == "a.jpg: cut off"


@pytest.mark.parametrize("kind", KINDS, ids=named)
def test_each_survives_the_way_to_another_process(kind: type[NearfarError]) -> None:
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        error = pickle.loads(pickle.dumps(made(kind), protocol))
        assert type(error) is kind and str(error) == "a.jpg: cut off"


# What is printed


def ending(error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """The exit code of a command that fails so, and what it prints."""

    def run(words: list[str]) -> int:
        raise error

    monkeypatch.setattr(command, "run", run)
    return main(["env", "--some", "words"]), capsys.readouterr().err


@pytest.mark.parametrize("kind", KINDS, ids=named)
def test_what_is_for_users_is_one_line(
    kind: type[NearfarError], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, said = ending(made(kind), monkeypatch, capsys)
    assert said == "nearfar env: a.jpg: cut off\n"
    assert code == kind.exit_code


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (FileNotFoundError(errno.ENOENT, "No such file or directory", "x.jpg"), "No such file or directory: 'x.jpg'"),
        (PermissionError(errno.EACCES, "Permission denied", "/home/x"), "Permission denied: '/home/x'"),
        (OSError(errno.ENOSPC, "No space left on device"), "No space left on device"),
        (ModuleNotFoundError("No module named 'faiss'", name="faiss"), "pip install 'nearfar[training]'"),
        (MemoryError(), "out of memory (MemoryError)"),
        (RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB"), "out of memory (CUDA out of memory"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
def test_what_the_system_says_is_one_line(
    error: Exception, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, said = ending(error, monkeypatch, capsys)
    assert code == 2 and said.startswith("nearfar env: ") and message in said and said.count("\n") == 1


BUGS: dict[str, Callable[[], object]] = {
    "int": lambda: int("x"),
    "zip": lambda: list(zip([1], [], strict=True)),
    "numpy": lambda: np.zeros(3) + np.zeros(4),
    "torch": lambda: torch.zeros(2, 3) @ torch.zeros(2, 3),
    "key": lambda: {}["missing"],
    "attribute": lambda: None.nothing,  # type: ignore[attr-defined]
    "system": lambda: (_ for _ in ()).throw(OSError("of no file")),
    "module of ours": lambda: importlib.import_module("nearfar.nothing"),
}


@pytest.mark.parametrize("bug", BUGS.values(), ids=BUGS)
def test_a_bug_shows_its_traceback_and_asks_to_be_reported(
    bug: Callable[[], object], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Though the last frame is one of ours, and what is raised may be a ValueError."""

    def run(words: list[str]) -> int:
        bug()
        return 0

    monkeypatch.setattr(command, "run", run)
    assert main(["env", "--out", "my run"]) == BUG == 70
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "Traceback (most recent call last):" and any("test_errors.py" in line for line in lines)
    assert lines[-2].startswith("This is a bug in nearfar. Please report it") and "nearfar env" in lines[-2]
    assert lines[-1] == "and the command: nearfar env --out 'my run'"


# Commands with bad input


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of an untrained model, and things that are not what they should be."""
    folder = tmp_path_factory.mktemp("place")
    for number in range(24):
        image(folder / "photos" / f"class {number // 3}" / f"{number}.png", 10 * number)
    config = to_yaml(TrainConfig(data=DataConfig(path=str(folder / "photos"))))
    for run in ("run", "bad-config", "bad-model", "bad-index"):
        (folder / run).mkdir()
        (folder / run / "config.yaml").write_text(config)
        Embedder("convnet", trunk_options={"width": 8}, dimension=8).save(folder / run)
    (folder / "bad-config" / "config.yaml").write_text("data: [1, 2\n")
    (folder / "bad-model" / "model.safetensors").write_bytes(b"rubbish" * 99)
    (folder / "bad-index" / "index").mkdir()
    (folder / "bad-index" / "index" / "index.json").write_text("{")
    (folder / "bad.csv").write_bytes(b"path,label\n\xff,1\n")
    (folder / "bad.npz").write_bytes(b"PK\x03\x04rubbish")
    (folder / "cub" / "images").mkdir(parents=True)
    (folder / "cub" / "images.txt").write_text("1 a.jpg\n")
    (folder / "cub" / "image_class_labels.txt").write_text("1 one\n")
    (folder / "weights.pt").write_bytes(b"rubbish")
    return folder


PICTURE = "photos/class 0/0.png"
TRAIN = "train photos --backbone convnet --size 16 --quiet"
MISTAKES = [
    ("evaluate nowhere", "there is no run nowhere"),
    ("evaluate photos", "photos is not a run"),
    ("evaluate run nowhere", "there is no nowhere"),
    ("evaluate run cub", "has 'one' instead of a whole number"),
    ("evaluate run --size 0", "the side of images must be at least 1 pixel, not 0"),
    ("evaluate run --ks 0", "ks must be whole numbers from 1 up"),
    ("evaluate run --device banana", "this machine has no device 'banana'"),
    ("evaluate run --device cuda:99", "this machine has no device 'cuda:99'"),
    ("evaluate bad-config", "config.yaml is not valid YAML"),
    ("evaluate bad-model", "model.safetensors is damaged or not a safetensors file"),
    ("embed run --out x.txt", "embeddings can be written to NAME.parquet or NAME.npz"),
    ("embed run --out /proc/none/x.npz", "/proc/none"),
    ("embed run --out x.npz --split nothing", "there is no split 'nothing'"),
    ("search bad-index PICTURE", "the index is damaged"),
    ("search run PICTURE", "there is no index"),
    ("search run PICTURE --index milvus:", "milvus: needs an address"),
    ("index run --far 2", "far must be above 0"),
    ("index run --index /proc/none", "/proc/none"),
    ("serve run --port 99999", "--port must be a number from 0 to 65535, not 99999"),
    ("serve run --max-upload nan", "--max-upload must be positive"),
    ("duplicates photos --backbone nothing", "there is no trunk 'nothing'"),
    ("export run --rows 0", "rows must be at least 1"),
    ("compare photos --budget .", "--budget . is not a duration"),
    ("compare photos --trials x", "--trials must be a whole number, not 'x'"),
    ("plan --classes 10 --link 0", "link=0.0 must be positive"),
    (f"{TRAIN} --epochs x", "epochs must be a whole number, not 'x'"),
    (f"{TRAIN} --epochs 1e30", "epochs must be a whole number"),
    ("train photos --backbone convnet --size 0 --quiet", "size=0 must be positive"),
    (f"{TRAIN} --workers -1", "workers=-1 must be at least 0"),
    (f"{TRAIN} --seed -1", "seed=-1 must be at least 0"),
    (f"{TRAIN} --devices 0", "devices=0 must be at least 1"),
    (f"{TRAIN} --k 0", "k=0 must be at least 1"),
    (f"{TRAIN} --log_every 0", "log_every=0 must be at least 1"),
    (f"{TRAIN} --parts 0", "parts must be numbers of stripes"),
    (f"{TRAIN} --options nothing", "must be a mapping such as {width: 16}, not 'nothing'"),
    (f"{TRAIN} --options {{\"nothing\":1}}", "convnet cannot be made with the options {'nothing': 1}"),
    (f"{TRAIN} --optimiser.eps -1", "adamw: Invalid epsilon value"),
    (f"{TRAIN} --evaluation.metric recal@1", "did you mean recall@1?"),
    (f"{TRAIN} --accelerator abacus", "there is no accelerator abacus"),
    (f"{TRAIN} --weights weights.pt", "weights.pt cannot be read as tensors"),
    (f"{TRAIN} --loss CircleLoss --loss.gamma x", "loss.gamma must be a number, not 'x'"),
    (f"{TRAIN} --loss CircleLoss --loss.gamma [1]", "loss.gamma must be a number, not [1]"),
    (f"{TRAIN} --loss CircleLoss --loss.gamma -1", "gamma must be a positive number, not -1"),
    (f"{TRAIN} --out PICTURE", "0.png"),
    ("train bad.csv", "bad.csv is not UTF-8 text"),
    ("train bad.npz", "bad.npz is damaged"),
    ("train --config photos", "photos"),
    ("train --config bad.npz", "bad.npz is not valid YAML"),
    ("train --config bad-config/config.yaml", "config.yaml is not valid YAML"),
]  # fmt: skip


@pytest.mark.parametrize(("words", "message"), MISTAKES, ids=[words for words, _ in MISTAKES])
def test_mistakes_are_told_in_one_line(
    words: str, message: str, place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(place)
    before = sorted(path for path in place.rglob("*"))
    code = main([word.replace("PICTURE", PICTURE) for word in words.split()])
    said = capsys.readouterr().err
    assert code == 2 and message in said and said.startswith(f"nearfar {words.split()[0]}: "), said
    assert "Traceback" not in said and len(said) < 800
    assert sorted(path for path in place.rglob("*")) == before  # nothing was begun


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("evaluate bad-model", "nearfar evaluate: bad-model/model.safetensors is damaged"),
        (f"{TRAIN} --epochs x", "nearfar train: epochs must be a whole number, not 'x'"),
        ("evaluate run --size x", "--size must be a whole number, not 'x'"),  # argparse says so, after the usage
    ],
)
def test_of_a_process_too(words: str, message: str, place: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "nearfar.cli", *words.split()], cwd=place, capture_output=True, text=True
    )
    assert done.returncode == 2 and message in done.stderr.splitlines()[-1] and "Traceback" not in done.stderr


# What is left of Python's own

ALLOWED = {
    "__init__.py __getattr__ AttributeError": "Python's protocol",
    # Caught a few lines on, where it becomes an error that names the file
    "data/feature_files.py _about ValueError": "caught",
    "data/plain_pickle.py _pop_from IndexError": "caught",
    "imaging/decoding.py _from_array TypeError": "caught",
    "foundation/run_folder.py RunFolder._read_json ValueError": "caught",
    "retrieval/faiss_index.py _structure FileNotFoundError": "caught: the index is read again",
    "retrieval/store.py Part.from_dict TypeError": "caught",
    "retrieval/texts.py Texts.__init__ ValueError": "caught",
    "serve/server.py open_run.source KeyError": "caught: the gallery says that there is no such image",
    "training/runs.py Run.load_checkpoint ValueError": "caught",
    # What code promises to code: whoever breaks it has a bug to mend
    "compare/journal.py Journal.add ValueError": "a key is added once",
    "compare/leaderboard.py Leaderboard.pair KeyError": "contestants are asked for by their names",
    "compare/spaces.py Range.__post_init__ ValueError": "ranges are written in the code",
    "data/tables.py Table._indices IndexError": "rows are chosen by code",
    "losses/engine/maps.py Map.by TypeError": "only a map's own fields have derivatives",
    "losses/classes.py WithClasses.spec TypeError": "a loss says what it is",
    "losses/registry.py register.decorate ValueError": "losses have different names",
    "losses/catalogue/towers.py TwoTowerLoss.of_rows TypeError": "a loss says what it is",
    "report/page.py Section.table ValueError": "rows are as long as the header",
    "report/page.py Section.figure TypeError": "figures are SVG or PNG",
    "report/page.py Section.markup TypeError": "text is escaped",
    "report/run.py run_page ValueError": "embeddings are of the table's rows",
    "studies/study.py _write_csv ValueError": "rows of a table have the same columns",
    "studies/sweep.py one KeyError": "a cell is there once",
    "training/launch.py launch RuntimeError": "the traceback of a bug in another process",
    "training/lazy.py LazyRows.__init__ TypeError": "the optimisers that can be chosen are known",
    "training/lazy.py LazyRows.__init__ ValueError": "their options too",
    "training/optimisers.py Ema.update RuntimeError": "an average is not averaged",
    "training/optimisers.py Ema.swapped RuntimeError": "nor swapped twice",
    "training/shards.py Shard.__post_init__ ValueError": "a part lies within the whole",
}  # fmt: skip


def raised(node: ast.AST, inside: tuple[str, ...] = ()) -> Iterator[str]:
    """Where Python's own errors are raised, each as `Class.function Error`."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Raise):
            kind = child.exc.func if isinstance(child.exc, ast.Call) else child.exc
            if isinstance(kind, ast.Name) and isinstance(getattr(builtins, kind.id, None), type):
                yield f"{'.'.join(inside)} {kind.id}"
        names = (child.name,) if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) else ()
        yield from raised(child, (*inside, *names))


def test_how_raised_errors_are_found() -> None:
    code = "class A:\n  def f(self):\n    if 1:\n      raise ValueError('x')\n    raise\nraise error\nraise KeyError\n"
    assert list(raised(ast.parse(code))) == ["A.f ValueError", " KeyError"]


def test_what_is_raised_is_for_users_but_for_these() -> None:
    """A new one is either for users, and of `nearfar.errors`; or it is listed above with a reason."""
    found = [
        f"{path.relative_to(SOURCE).as_posix()} {place}"
        for path in sorted(SOURCE.rglob("*.py"))
        for place in raised(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert sorted(found) == sorted(ALLOWED)


def test_catching_what_was_caught() -> None:
    """Those who catch a ValueError still do."""
    with pytest.raises(ValueError, match="must be a positive number"):
        nearfar.losses.CircleLoss(gamma=-1)
    assert issubclass(InputError, ValueError)
