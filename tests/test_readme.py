"""The pages tell the truth: their code runs, and their tables are those of the registry."""

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from nearfar.losses import list_losses

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
TABLES = runpy.run_path(str(ROOT / "docs" / "tables.py"))
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def python_blocks(page: Path) -> list[tuple[int, str]]:
    """The page's python blocks, each with the line it begins on."""
    text = page.read_text(encoding="utf-8")
    return [(text.count("\n", 0, block.start(1)) + 1, block[1]) for block in BLOCK.finditer(text)]


PAGES = [page for page in [README, *sorted(ROOT.glob("docs/**/*.md"))] if python_blocks(page)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_python_block_runs(page: Path) -> None:
    torch.manual_seed(0)
    namespace: dict[str, Any] = {}
    for line, code in python_blocks(page):
        exec(compile("\n" * (line - 1) + code, str(page), "exec"), namespace)  # an error names the page's own line


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
