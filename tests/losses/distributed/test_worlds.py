"""Two, three and four processes against one: every registered loss, wrappers, kinds of input, training, memory, traffic.

`checks.py` has what they check; all checks of a world run in one set of processes.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch.distributed as dist

from nearfar import losses
from tests.losses.distributed import checks
from tests.losses.distributed.processes import PASSED, Results, run

WORLDS = (2, 3, 4)

pytestmark = pytest.mark.skipif(not dist.is_gloo_available(), reason="torch has no gloo")


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Results]:
    found: dict[int, Results] = {}

    def of(world: int) -> Results:
        if world not in found:
            found[world] = run(checks.checks, world, Path(tmp_path_factory.mktemp(f"world{world}")))
        return found[world]

    return of


@pytest.mark.parametrize("world", WORLDS)
def test_ranks_have_what_one_process_has(world: int, results: Callable[[int], Results]) -> None:
    failed = {name: told for name, told in results(world).items() if told != [PASSED] * world}
    for name, told in failed.items():
        for rank, text in enumerate(told):
            print(f"--- {name}, rank {rank} of {world}\n{text}")
    assert not failed


@pytest.mark.parametrize("world", WORLDS)
def test_every_registered_loss_is_among_them(world: int, results: Callable[[int], Results]) -> None:
    names = list(results(world))
    for info in losses.list_losses():
        assert any(name.startswith(info.name) for name in names), info.name
        if info.level in ("class", "proxy"):
            assert f"{info.name}, sharded" in names
        if info.level == "pair or class":
            assert any(name.startswith(f"{info.name},num_classes") and name.endswith("sharded") for name in names)
