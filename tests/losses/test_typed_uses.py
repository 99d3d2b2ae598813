"""Type checkers find misspelt and mistyped arguments of the losses, and nothing else."""

import re
import subprocess
import sys
from pathlib import Path

USES = Path(__file__).parent / "typed_uses.py"
ROOT = USES.parents[2]


def test_mypy_finds_the_wrong_uses_and_no_others() -> None:
    lines = USES.read_text(encoding="utf-8").splitlines()
    wrong = {number for number, line in enumerate(lines, 1) if line.endswith("# wrong")}
    assert len(wrong) >= 20
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--no-error-summary",
        str(USES),
    ]  # with the cache of `make test`
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    found = {int(number) for number in re.findall(rf"{USES.name}:(\d+): error", run.stdout)}
    assert found == wrong, (run.stdout, run.stderr)
