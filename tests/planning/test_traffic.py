"""A plan's bytes and messages, against those that four processes count."""

from pathlib import Path

import pytest
import torch.distributed as dist

from tests.losses.distributed.processes import PASSED, run
from tests.planning import traffic_checks


@pytest.mark.skipif(not dist.is_gloo_available(), reason="torch has no gloo")
def test_a_step_sends_what_is_planned(tmp_path: Path) -> None:
    results = run(traffic_checks.checks, 4, tmp_path)
    for name, told in results.items():
        assert told == [PASSED] * 4, f"{name}\n" + "\n".join(told)
    assert list(results) == list(traffic_checks.CASES)
