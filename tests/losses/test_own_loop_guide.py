"""The scripts of docs/guides/own-loop.md run, where the library that they show is installed."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "guides" / "own-loop.md"
SCRIPTS = dict(
    re.findall(r'^```python title="([\w.]+)"\n(.*?)^```$', PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
)
END = 'print("the end", flush=True)'
NEEDS = {"accelerated.py": "accelerate", "lightning_module.py": "lightning"}


@pytest.mark.parametrize("name", sorted(SCRIPTS))
def test_the_guides_scripts_run(name: str, tmp_path: Path) -> None:
    needed = NEEDS.get(name, "torch")
    if importlib.util.find_spec(needed) is None:
        pytest.skip(f"{needed} is not installed")
    script, launcher, ranks = SCRIPTS[name], [], 1
    if "init_process" in script:
        launcher, ranks = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"], 2
        script = script.replace("dist.barrier()", f"{END}; dist.barrier()")
    else:
        script += END
    (tmp_path / name).write_text(script, encoding="utf-8")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    run = subprocess.run(
        [sys.executable, *launcher, str(tmp_path / name)], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    # Not the exit code: gloo now and then aborts a process whose partner leaves first, after the script's last step.
    assert run.stdout.count("the end") == ranks, run.stderr[-3000:]


def test_every_library_is_shown() -> None:
    assert set(SCRIPTS) == {"ddp.py", "fsdp2.py", "accelerated.py", "lightning_module.py"}
