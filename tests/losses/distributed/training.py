"""Training steps, on all ranks of a world."""

import functools
from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from nearfar import losses
from nearfar.losses.distributed import distribute, full_state, is_sharded
from tests.losses.distributed.comparing import CLASSES, SIZE, batch, in_double, mean_over_ranks, own, same
from tests.losses.distributed.processes import Check


def training() -> Iterator[tuple[str, Check]]:
    """Ten steps of a small network under DistributedDataParallel, against one process."""
    c = CLASSES[dist.get_world_size()]
    made: dict[str, Callable[[], nn.Module]] = {
        "Circle": lambda: losses.CircleLoss(),
        "ArcFace": lambda: losses.ArcFaceLoss(c, SIZE, scale=8.0),
        "Proxy-Anchor": lambda: losses.ProxyAnchorLoss(c, SIZE),
        "CurricularFace": lambda: losses.CurricularFaceLoss(c, SIZE, scale=8.0),
        "SoftTriple": lambda: losses.SoftTripleLoss(c, SIZE, 2),
        "margin": lambda: losses.MarginLoss(learn_beta=True, sampling="distance_weighted"),
        "centres": lambda: losses.SoftmaxLoss(c, SIZE) + 0.1 * losses.CenterLoss(c, SIZE),
        "memory": lambda: losses.CrossBatchMemory(losses.MultiSimilarityLoss(), SIZE, 30),
    }
    for name, make in made.items():
        yield f"ten steps, {name}", functools.partial(ten_steps, in_double(make))


def ten_steps(make: Callable[[], nn.Module]) -> None:
    def network() -> nn.Module:
        torch.manual_seed(9)
        return nn.Sequential(nn.Linear(SIZE, 8), nn.Tanh(), nn.Linear(8, SIZE)).double()

    plain, shared, alone = make(), distribute(make(), sharded=True), network()
    together = DistributedDataParallel(network())
    replicated = [p for p in shared.parameters() if not is_sharded(p)]
    groups = (
        [list(alone.parameters()), list(plain.parameters())],
        [
            list(together.parameters()),
            replicated,
            [p for p in shared.parameters() if is_sharded(p)],
        ],
    )
    optimisers = [torch.optim.Adam([{"params": g} for g in some if g], lr=0.01) for some in groups]
    for step in range(10):
        x, labels, counts = batch(step)
        for optimiser in optimisers:
            optimiser.zero_grad()
        torch.manual_seed(step + 1000 * dist.get_rank())
        value = shared(together(own(x, counts)), own(labels, counts))
        torch.manual_seed(step)
        expected = plain(alone(x), labels)
        value.backward()
        expected.backward()
        for parameter in replicated:
            assert parameter.grad is not None
            parameter.grad = mean_over_ranks(parameter.grad)
        same(value, expected, f"step {step}")
        for optimiser in optimisers:
            optimiser.step()
    for theirs, ours in zip(alone.parameters(), together.parameters(), strict=True):
        same(ours, theirs, "network")
    state = full_state(shared)
    if dist.get_rank() == 0:
        assert state.keys() == plain.state_dict().keys()
        for name, tensor in plain.state_dict().items():
            same(state[name], tensor, name)
