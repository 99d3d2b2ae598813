"""Distribution of a loss over processes, and the shards of its class weights."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from nearfar.losses import Loss
from nearfar.losses.distributed import distribute, is_sharded
from nearfar.losses.distributed.placing import SHARDED_ABOVE, TABLES
from nearfar.training.config import TrainConfig
from nearfar.training.shards import Shard
from nearfar.training.world import World


def distribute_loss(loss: nn.Module, config: TrainConfig, world: World, device: torch.device) -> None:
    """Make the loss, in place, use the samples of all processes and a share of the classes (`sample_rate`); large class
    weights are sharded over the processes.
    """
    without_values = any(tensor.is_meta for tensor in (*loss.parameters(), *loss.buffers()))
    if not without_values:
        loss.to(device)
    if world.size > 1 or config.sample_rate < 1 or without_values:
        with torch.device(device):
            distribute(loss, sample_rate=config.sample_rate, seed=config.seed)


def sharded_tables(loss: nn.Module) -> Iterator[tuple[str, Tensor, Loss]]:
    """The tables by class that are saved as shards, with their names and losses.

    They depend only on the loss and not on the number of processes, so that any number can load a checkpoint.
    """
    for prefix, part in loss.named_modules():
        if isinstance(part, Loss) and part.class_level:
            tables = {name: getattr(part, name, None) for name in TABLES}
            present = {name: table for name, table in tables.items() if isinstance(table, Tensor)}
            if part.sharded or any(table.numel() > SHARDED_ABOVE for table in present.values()):
                for name, table in present.items():
                    yield f"{prefix}.{name}" if prefix else name, table, part


def local_rows(table: Tensor) -> Tensor:
    """This process's rows of a table by class, (rows, dimension) or (rows,), sharing its memory."""
    local: Tensor = table.detach()
    if is_sharded(table):
        local = local.to_local()  # type: ignore[attr-defined]
    return local.flatten(0, 1) if local.ndim == 3 else local


def shard_of(rows: Tensor, table: Tensor, part: Loss) -> Shard:
    """Wrap values for this process's rows of a table as a shard of the whole table."""
    vectors = table.shape[1] if table.ndim == 3 else 1
    total = table.shape[0] * vectors
    offset = 0
    if is_sharded(table):
        assert part.distribution is not None
        ranks = part.distribution.ranks
        offset = min(ranks.rank * -(-table.shape[0] // ranks.size), table.shape[0]) * vectors
    return Shard(rows, (total, *rows.shape[1:]), offset)
