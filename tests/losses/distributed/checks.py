"""What every rank of a world checks."""

import torch.distributed as dist

from tests.losses.distributed.inputs import inputs
from tests.losses.distributed.parts import by_parts
from tests.losses.distributed.processes import Check
from tests.losses.distributed.training import training
from tests.losses.distributed.variants import every_loss, wrapped


def checks() -> dict[str, Check]:
    """Of this world, by name."""
    kinds = {2: [every_loss, training], 3: [every_loss, wrapped, inputs], 4: [every_loss, training, by_parts]}
    found = [check for kind in kinds[dist.get_world_size()] for check in kind()]
    assert len({name for name, _ in found}) == len(found)
    return dict(found)
