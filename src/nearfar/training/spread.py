"""`spread`: a loss that sees the batch of all processes, and the parts of it that no process has whole."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from nearfar.losses import Loss
from nearfar.losses.distributed import distribute, is_sharded
from nearfar.losses.distributed.placing import SHARDED_ABOVE, TABLES
from nearfar.training.config import TrainConfig
from nearfar.training.shards import Shard
from nearfar.training.world import World


def spread(loss: nn.Module, config: TrainConfig, world: World, device: torch.device) -> None:
    """Have the loss, which is changed where it is, take part of the classes (`sample_rate`), and see the samples of all
    processes; large class weights are cut, so that each has its part of them.
    """
    without_values = any(tensor.is_meta for tensor in (*loss.parameters(), *loss.buffers()))
    if not without_values:
        loss.to(device)
    if world.size > 1 or config.sample_rate < 1 or without_values:
        with torch.device(device):
            distribute(loss, sample_rate=config.sample_rate, seed=config.seed)


def cut_tables(loss: nn.Module) -> Iterator[tuple[str, Tensor, Loss]]:
    """The tables by classes that are saved in parts, with their names and whose they are.

    It depends on the loss alone, and not on the number of processes: what some number of them save in parts, any other
    number looks for in parts.
    """
    for prefix, part in loss.named_modules():
        if isinstance(part, Loss) and part.class_level:
            tables = {name: getattr(part, name, None) for name in TABLES}
            there = {name: table for name, table in tables.items() if isinstance(table, Tensor)}
            if part.sharded or any(table.numel() > SHARDED_ABOVE for table in there.values()):
                for name, table in there.items():
                    yield f"{prefix}.{name}" if prefix else name, table, part


def rows_here(table: Tensor) -> Tensor:
    """What this process has of a table by classes, (rows, dimension) or (rows,), sharing its memory."""
    local: Tensor = table.detach()
    if is_sharded(table):
        local = local.to_local()  # type: ignore[attr-defined]
    return local.flatten(0, 1) if local.ndim == 3 else local


def shard_of(rows: Tensor, table: Tensor, part: Loss) -> Shard:
    """Rows that belong to those that this process has of a table, as a part of the whole."""
    vectors = table.shape[1] if table.ndim == 3 else 1
    total = table.shape[0] * vectors
    offset = 0
    if is_sharded(table):
        assert part.distribution is not None
        ranks = part.distribution.ranks
        offset = min(ranks.rank * -(-table.shape[0] // ranks.size), table.shape[0]) * vectors
    return Shard(rows, (total, *rows.shape[1:]), offset)
