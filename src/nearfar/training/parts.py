"""Class weights that no process has whole, or that a step touches in part: how they are saved, loaded and stepped."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from nearfar.losses import Loss
from nearfar.training.lazy import LazyRows
from nearfar.training.shards import Shard
from nearfar.training.spread import cut_tables, rows_here, shard_of


def table_shards(loss: nn.Module) -> dict[str, Shard]:
    """The tables of a loss that are cut."""
    return {f"loss.{name}": shard_of(rows_here(table), table, part) for name, table, part in cut_tables(loss)}


def optimiser_shards(loss: nn.Module, optimiser: Optimizer) -> dict[str, Shard]:
    """What the optimiser keeps for their rows, cut as they are."""
    shards = {}
    for name, table, part in cut_tables(loss):
        for key, value in optimiser.state.get(table, {}).items():
            if isinstance(value, Tensor) and value.ndim:
                shards[f"optimiser.{name}.{key}"] = shard_of(rows_here(value), table, part)
    return shards


def plain_loss_state(loss: nn.Module) -> dict[str, Tensor]:
    """A loss's `state_dict` without what is cut."""
    cut = {name for name, _, _ in cut_tables(loss)}
    return {name: value for name, value in loss.state_dict().items() if name not in cut}


def load_plain_loss_state(loss: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Load it; what is cut stays as it is."""
    own = {name: table for name, table, _ in cut_tables(loss)}
    loss.load_state_dict({**state, **own})


def plain_optimiser_state(loss: nn.Module, optimiser: Optimizer) -> dict[str, Any]:
    """An optimiser's `state_dict` without what it keeps for the rows of what is cut."""
    cut = {id(table) for _, table, _ in cut_tables(loss)}
    parameters = [parameter for group in optimiser.param_groups for parameter in group["params"]]
    state = optimiser.state_dict()
    kept = {
        number: {k: v for k, v in own.items() if not (isinstance(v, Tensor) and v.ndim)}
        if id(parameters[number]) in cut
        else own
        for number, own in state["state"].items()
    }
    return {**state, "state": kept}


def make_room(loss: nn.Module, optimiser: Optimizer, names: list[str]) -> None:
    """Give the optimiser what it kept for the rows of what is cut, without values yet, by the names that were saved."""
    for name, table, _ in cut_tables(loss):
        prefix = f"optimiser.{name}."
        for key in (own.removeprefix(prefix) for own in names if own.startswith(prefix)):
            rows = rows_here(table)
            counts = key == "step"  # of each row, where rows are stepped one by one
            optimiser.state[table][key] = torch.zeros(len(rows)) if counts else torch.zeros_like(table.detach())


def lazy_rows(loss: nn.Module, optimiser: Optimizer) -> LazyRows:
    """Steps of those class vectors alone that were compared with."""
    owners = {
        id(table): part
        for part in loss.modules()
        if isinstance(part, Loss) and part.distribution is not None and part.distribution.by_classes(part)
        for table in (part.weight, part.bias)
        if table is not None
    }

    def touched(table: nn.Parameter) -> Tensor | None:
        part = owners[id(table)]
        if part.sampled is None or table.ndim == 1 or part.vectors_per_class == 1:
            return part.sampled
        vectors = torch.arange(part.vectors_per_class, device=part.sampled.device)
        return (part.sampled[:, None] * part.vectors_per_class + vectors).flatten()

    tables = [p for group in optimiser.param_groups for p in group["params"] if id(p) in owners]
    return LazyRows(optimiser, tables, rows_here, touched)
