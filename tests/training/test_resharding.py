"""Saved by four processes, gone on with by four, three, two and one: class weights, and what the optimiser keeps."""

from functools import partial
from pathlib import Path

import pytest
import torch.distributed as dist

from tests.losses.distributed.processes import PASSED, run
from tests.training import resharding


@pytest.mark.skipif(not dist.is_gloo_available(), reason="torch has no gloo")
def test_any_number_of_processes_goes_on_to_the_same_end(tmp_path: Path) -> None:
    results = run(partial(resharding.checks, tmp_path / "saved"), 4, tmp_path)
    for name, told in results.items():
        assert told == [PASSED] * 4, f"{name}\n" + "\n".join(told)
    assert list(results) == list(resharding.CASES)
