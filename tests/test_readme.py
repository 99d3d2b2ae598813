"""The pages tell the truth: their code runs, and their tables are those of the registry."""

import argparse
import contextlib
import importlib
import io
import os
import re
import runpy
import shlex
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from nearfar.cli import COMMANDS
from nearfar.losses import list_losses

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
TABLES = runpy.run_path(str(ROOT / "docs" / "tables.py"))
IMPORTED = re.compile(r"^ {4,}from (nearfar[\w.]*) import ([\w, ]+)$", re.MULTILINE)
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def python_blocks(page: Path) -> list[tuple[int, str]]:
    """The page's python blocks, each with the line it begins on."""
    text = page.read_text(encoding="utf-8")
    return [(text.count("\n", 0, block.start(1)) + 1, block[1]) for block in BLOCK.finditer(text)]


ALL_PAGES = [README, ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/**/*.md"))]
PAGES = [page for page in ALL_PAGES if python_blocks(page)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_python_block_runs(page: Path) -> None:
    torch.manual_seed(0)
    namespace: dict[str, Any] = {}
    for line, code in python_blocks(page):
        exec(compile("\n" * (line - 1) + code, str(page), "exec"), namespace)  # an error names the page's own line


def test_code_that_is_not_run_imports_what_there_is() -> None:
    """Indented code needs data or a network; what it imports of nearfar must be there all the same."""
    shown = [line for page in ALL_PAGES for line in IMPORTED.findall(page.read_text(encoding="utf-8"))]
    assert len(shown) > 5
    missing = [
        f"{module}.{name}"
        for module, names in shown
        for name in names.split(", ")
        if not hasattr(importlib.import_module(module), name)
    ]
    assert missing == []


# `nearfar ...` in a line of its own, with what it does after two spaces or a #; or within a sentence.
SHOWN = re.compile(r"^ {4,}(?:srun |\$ )?nearfar (?P<line>\S.*)$|`nearfar (?P<inline>[^`]+)`", re.MULTILINE)
STANDING_FOR = {  # what NAME is, after these words
    "--loss": "CircleLoss",
    "losses": "CircleLoss",
    "study": "sensitivity",
    "recipes": "cub/proxy-anchor",
    "--recipe": "cub/proxy-anchor",
}


def commands_of(page: Path) -> list[tuple[int, list[str]]]:
    """The commands that a page shows, each with its line."""
    text = re.sub(r"\\\n *", lambda joint: " " * len(joint[0]), page.read_text(encoding="utf-8"))
    found = []
    for shown in SHOWN.finditer(text):
        line = text.count("\n", 0, shown.start("line" if shown["line"] else "inline")) + 1
        words = re.split(r"(?<=\S) {2,}(?=[^ -])| #", shown["line"] or " ".join(shown["inline"].split()))[0]
        found.append((line, [word for word in shlex.split(words) if word not in ("...", "…")]))
    return found


# Files, and options that are only named.
NOT_HERE = re.compile("there is no (configuration|run) |--config needs a value")
WORK = {
    "training.train": "train",
    "checkup.checkup": "check_up",
    "compare.comparison": "compare",
    "studies.study": "run_study",
}


class UnderstoodError(Exception):
    """The words of a command were read, and its work would begin."""


@pytest.fixture
def without_work(monkeypatch: pytest.MonkeyPatch) -> None:
    def begin(*_: Any, **__: Any) -> None:
        raise UnderstoodError

    read = argparse.ArgumentParser.parse_args

    def read_only(parser: argparse.ArgumentParser, words: Any = None, namespace: Any = None) -> None:
        read(parser, words, namespace)
        raise UnderstoodError

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", read_only)
    # Where the work begins of those commands that read their words themselves.
    for module, name in WORK.items():
        monkeypatch.setattr(importlib.import_module(f"nearfar.{module}"), name, begin)


def refusal(words: list[str]) -> str:
    """What a command says to words that it does not understand; nothing, if it does."""
    if words[0] in ("COMMAND", "--version", "--help"):
        return ""
    if words[0] not in COMMANDS:
        return "there is no such command"
    if len(words) == 1:  # named, not called
        return ""
    given = [STANDING_FOR[last] if word == "NAME" and last in STANDING_FOR else word for last, word in pairwise(words)]
    told = io.StringIO()
    try:
        with contextlib.redirect_stdout(told), contextlib.redirect_stderr(told):
            importlib.import_module(f"nearfar.commands.{words[0]}").run(given)
    except SystemExit as stop:
        return told.getvalue() if stop.code else ""
    except ValueError as error:
        return "" if NOT_HERE.match(str(error)) else str(error)
    except (UnderstoodError, FileNotFoundError):  # no data set of a page is here
        return ""
    return ""


@pytest.mark.parametrize(
    "page", [page for page in ALL_PAGES if commands_of(page)], ids=lambda page: page.relative_to(ROOT).as_posix()
)
@pytest.mark.usefixtures("without_work")
def test_every_command_is_understood(page: Path) -> None:
    refused = {f"line {line}: nearfar {' '.join(words)}": refusal(words) for line, words in commands_of(page)}
    assert {command: why for command, why in refused.items() if why} == {}


@pytest.mark.usefixtures("without_work")
def test_a_command_that_is_misspelt_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "Say `nearfar plan\n--clases 3`:\n\n    nearfar train photos --lr 1 \\\n        --freeze   # head\n"
    )
    assert commands_of(page) == [(1, ["plan", "--clases", "3"]), (4, ["train", "photos", "--lr", "1", "--freeze"])]
    assert [bool(refusal(words)) for _, words in commands_of(page)] == [True, False]
    assert refusal(["trian"]) and "did you mean --freeze" in refusal(["train", "photos", "--frezee"])


def test_the_mathematics_has_every_loss() -> None:
    text = (ROOT / "docs" / "math.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    named = set(re.findall(r"`(\w+Loss)`", "".join(rows)))
    in_words = {"AngularLoss", "LiftedStructureLoss"}  # with their formulas in a line of their own
    assert {info.name for info in list_losses()} - named == in_words
    assert all(re.search(rf"^\*\*.*\(`{name}`\):", text, re.MULTILINE) for name in in_words)


def test_the_site_builds_without_a_broken_link(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="needs pip install 'nearfar[docs]'")
    command = [
        sys.executable,
        "-W",
        "ignore",
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "--quiet",
        "--site-dir",
        str(tmp_path),
    ]
    built = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    )
    assert built.returncode == 0, built.stderr
    assert "CircleLoss" in (tmp_path / "reference" / "losses" / "index.html").read_text(encoding="utf-8")


def test_readme_shows_code_soon() -> None:
    line, code = python_blocks(README)[0]
    assert line <= 40
    assert "backward()" in code


def test_table_of_losses_is_up_to_date() -> None:
    text = README.read_text(encoding="utf-8")
    assert TABLES["updated"](text) == text, "make docs-tables writes it anew"
    table = text.partition("<!-- losses:begin -->")[2].partition("<!-- losses:end -->")[0]
    for info in list_losses():
        assert table.count(f"\n| `{info.name}` |") == 1


def test_table_of_losses_is_a_table() -> None:
    rows = TABLES["losses_table"]().splitlines()
    assert len(rows) == 2 + len(list_losses())
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {5}  # four cells each
