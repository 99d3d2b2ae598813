"""`World`: the processes that train together, and their communication besides gradients."""

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

# The longest time that ranks wait for each other: the slowest may be decoding its share of a large test set.
PATIENCE = datetime.timedelta(hours=4)


@dataclass(frozen=True)
class World:
    """A process among `size`, of which `local_size` run on this machine; by default the only one.

    With one process, all methods return its own values, and nothing is sent.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1

    @property
    def first(self) -> bool:
        """Whether this process writes files and shows progress."""
        return self.rank == 0

    @property
    def nodes(self) -> int:
        """The number of machines."""
        return self.size // self.local_size

    def part(self, count: int) -> NDArray[np.int64]:
        """This process's share of `count` rows: consecutive, and of equal size up to one row."""
        return np.array_split(np.arange(count), self.size)[self.rank]

    def any(self, *flags: bool) -> list[bool]:
        """For each flag, whether it is set in any process."""
        if self.size == 1:
            return list(flags)
        tensor = torch.tensor(flags, dtype=torch.uint8)
        distributed.all_reduce(tensor, distributed.ReduceOp.MAX)
        return [bool(flag) for flag in tensor]

    def gathered(self, rows: NDArray[Any]) -> NDArray[Any]:
        """The rows (n, ...) of all processes, concatenated by rank; n may differ."""
        if self.size == 1:
            return rows
        counts = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        distributed.all_gather(counts, torch.tensor([len(rows)]))
        most = max(int(count) for count in counts)
        padded = torch.zeros(most, *rows.shape[1:], dtype=torch.from_numpy(rows[:0]).dtype)
        padded[: len(rows)] = torch.from_numpy(np.ascontiguousarray(rows))
        received = [torch.empty_like(padded) for _ in range(self.size)]
        distributed.all_gather(received, padded)
        return np.concatenate([rows[: int(count)].numpy() for rows, count in zip(received, counts, strict=True)])

    def broadcast(self, value: Any) -> Any:
        """The first process's value."""
        values = [value]
        if self.size > 1:
            distributed.broadcast_object_list(values, src=0)
        return values[0]

    def wait(self) -> None:
        """Wait for all processes."""
        if self.size > 1:
            distributed.barrier()

    @torch.no_grad()
    def share_buffers(self, module: nn.Module) -> None:
        """Copy the first process's buffers to all, such as running statistics, which depend on each one's batch."""
        if self.size > 1:
            for buffer in module.buffers():
                distributed.broadcast(buffer, src=0)


def started() -> World | None:
    """The world in which torchrun, srun or `launch` started this process; None if it was started by itself."""
    environment = _environment()
    if environment is None:
        return None
    size, local = environment.world_size(), os.environ.get("LOCAL_WORLD_SIZE")
    local_size = int(local) if local else size // int(os.environ.get("SLURM_NNODES", "1"))
    return World(environment.global_rank(), size, environment.local_rank(), local_size)


def restarted() -> bool:
    """Whether torchrun or SLURM restarted this process after a failure."""
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
    """Resolve the accelerators "auto" and "gpu" as Lightning does."""
    if name in ("auto", "gpu", "cuda") and torch.cuda.is_available():
        return "cuda"
    return name if name not in ("auto", "gpu") else "cpu"


@contextlib.contextmanager
def joined(world: World, accelerator: str) -> Iterator[None]:
    """Connect to the other processes, by gloo and, on GPUs, by NCCL."""
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
        distributed.barrier()  # another process may still need the connection
    finally:
        # Collect objects that hold the connection first (a wrapped network, in cycles with its trainer): their threads
        # would abort the process at the interpreter's exit.
        gc.collect()
        distributed.destroy_process_group()


def _store(world: World) -> Any:
    """The store with the addresses of the processes.

    torchrun keeps its store when it restarts processes, and torch 2.13 would read the addresses of ended processes from
    it. So every start has its own prefix.
    """
    environment = _environment()
    kept_by_agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    server = distributed.TCPStore(  # type: ignore[attr-defined]
        environment.main_address, environment.main_port, world.size, world.first and not kept_by_agent, PATIENCE
    )
    start = os.environ.get("TORCHELASTIC_RESTART_COUNT") or os.environ.get("SLURM_RESTART_COUNT") or "0"
    return distributed.PrefixStore(f"nearfar/{start}", server)  # type: ignore[attr-defined]


def total_norm(local: Sequence[torch.Tensor], shared: Sequence[torch.Tensor], world: World) -> torch.Tensor:
    """The norm of gradients: `local` differ by process, `shared` are the same in all of them."""
    squares = sum((gradient.square().sum() for gradient in local), torch.zeros((), device=_device(local, shared)))
    if world.size > 1:
        distributed.all_reduce(squares)
    return torch.sqrt(squares + sum(gradient.square().sum() for gradient in shared))


def _device(*groups: Sequence[torch.Tensor]) -> torch.device:
    return next((gradient.device for group in groups for gradient in group), torch.device("cpu"))
