"""`World`: which of how many processes this is, and what they say to each other besides gradients."""

import contextlib
import datetime
import gc
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import distributed, nn

# Ranks wait for each other at most so long: the slowest may be decoding its part of a large test set.
PATIENCE = datetime.timedelta(hours=4)


@dataclass(frozen=True)
class World:
    """A process among `size`, of which `local_size` are on this machine; alone by default.

    With one process, everything here is what that process has, and nothing is sent.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1

    @property
    def first(self) -> bool:
        """Whether this process is the one that writes and shows."""
        return self.rank == 0

    @property
    def nodes(self) -> int:
        """Machines."""
        return self.size // self.local_size

    def part(self, count: int) -> NDArray[np.int64]:
        """This process's share of so many rows: consecutive, and as many as others have or one fewer."""
        return np.array_split(np.arange(count), self.size)[self.rank]

    def any(self, *flags: bool) -> list[bool]:
        """For each flag, whether it is set anywhere."""
        if self.size == 1:
            return list(flags)
        told = torch.tensor(flags, dtype=torch.uint8)
        distributed.all_reduce(told, distributed.ReduceOp.MAX)
        return [bool(flag) for flag in told]

    def gathered(self, rows: NDArray[Any]) -> NDArray[Any]:
        """The rows (n, ...) of all processes, one process after the other; n may differ."""
        if self.size == 1:
            return rows
        counts = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        distributed.all_gather(counts, torch.tensor([len(rows)]))
        most = max(int(count) for count in counts)
        padded = torch.zeros(most, *rows.shape[1:], dtype=torch.from_numpy(rows[:0]).dtype)
        padded[: len(rows)] = torch.from_numpy(np.ascontiguousarray(rows))
        received = [torch.empty_like(padded) for _ in range(self.size)]
        distributed.all_gather(received, padded)
        return np.concatenate([own[: int(count)].numpy() for own, count in zip(received, counts, strict=True)])

    def told(self, value: Any) -> Any:
        """What the first process has."""
        values = [value]
        if self.size > 1:
            distributed.broadcast_object_list(values, src=0)
        return values[0]

    def wait(self) -> None:
        """For the others."""
        if self.size > 1:
            distributed.barrier()

    @torch.no_grad()
    def share_buffers(self, module: nn.Module) -> None:
        """Give every process the first one's buffers, such as running statistics, which each moves by its own batch."""
        if self.size > 1:
            for buffer in module.buffers():
                distributed.broadcast(buffer, src=0)


def started() -> World | None:
    """The world in which torchrun or srun (or `launch`) started this process; None if it was started alone."""
    environment = _environment()
    if environment is None:
        return None
    size, here = environment.world_size(), os.environ.get("LOCAL_WORLD_SIZE")
    local_size = int(here) if here else size // int(os.environ.get("SLURM_NNODES", "1"))
    return World(environment.global_rank(), size, environment.local_rank(), local_size)


def restarted() -> bool:
    """Whether torchrun or SLURM started this again after a failure."""
    counts = (os.environ.get("TORCHELASTIC_RESTART_COUNT"), os.environ.get("SLURM_RESTART_COUNT"))
    return any(int(count or 0) > 0 for count in counts)


def _environment() -> Any:
    from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
    from lightning.fabric.plugins.environments.torchelastic import TorchElasticEnvironment

    for kind in (TorchElasticEnvironment, SLURMEnvironment):
        if kind.detect():
            return kind()
    return None


def accelerator_of(name: str) -> str:
    """What Lightning takes "auto" and "gpu" for."""
    if name in ("auto", "gpu", "cuda") and torch.cuda.is_available():
        return "cuda"
    return name if name not in ("auto", "gpu") else "cpu"


@contextlib.contextmanager
def joined(world: World, accelerator: str) -> Iterator[None]:
    """Be connected to the other processes: by gloo, and on GPUs by NCCL too."""
    if world.size == 1 or distributed.is_initialized():
        yield
        return
    backend = "gloo"
    if accelerator_of(accelerator) == "cuda":
        torch.cuda.set_device(world.local_rank)
        backend = "cpu:gloo,cuda:nccl"
    distributed.init_process_group(
        backend, store=_store(world), rank=world.rank, world_size=world.size, timeout=PATIENCE
    )
    try:
        yield
        distributed.barrier()  # nobody leaves while another may still speak to it
    finally:
        # What holds on to the connection goes first (a wrapped network, in cycles with its trainer): threads that find
        # the interpreter gone would abort the process.
        gc.collect()
        distributed.destroy_process_group()


def _store(world: World) -> Any:
    """Where the processes find each other's addresses.

    torchrun keeps its store when it starts processes again, and torch 2.13 would find there those of the processes that
    are gone: every start has a place of its own.
    """
    environment = _environment()
    kept_by_agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    server = distributed.TCPStore(  # type: ignore[attr-defined]
        environment.main_address, environment.main_port, world.size, world.first and not kept_by_agent, PATIENCE
    )
    start = os.environ.get("TORCHELASTIC_RESTART_COUNT") or os.environ.get("SLURM_RESTART_COUNT") or "0"
    return distributed.PrefixStore(f"nearfar/{start}", server)  # type: ignore[attr-defined]


def total_norm(own: Sequence[torch.Tensor], shared: Sequence[torch.Tensor], world: World) -> torch.Tensor:
    """The norm of gradients of which every process has its `own`, besides those that are the same everywhere."""
    squares = sum((gradient.square().sum() for gradient in own), torch.zeros((), device=_device(own, shared)))
    if world.size > 1:
        distributed.all_reduce(squares)
    return torch.sqrt(squares + sum(gradient.square().sum() for gradient in shared))


def _device(*groups: Sequence[torch.Tensor]) -> torch.device:
    return next((gradient.device for group in groups for gradient in group), torch.device("cpu"))
