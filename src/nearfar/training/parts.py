"""Saving, loading and optimiser steps of class weights that are sharded or updated row by row."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from nearfar.losses import Loss
from nearfar.training.class_shards import local_rows, shard_of, sharded_tables
from nearfar.training.lazy import LazyRows
from nearfar.training.shards import Shard


def table_shards(loss: nn.Module) -> dict[str, Shard]:
    """The shards of a loss's tables."""
    return {f"loss.{name}": shard_of(local_rows(table), table, part) for name, table, part in sharded_tables(loss)}


def optimiser_shards(loss: nn.Module, optimiser: Optimizer) -> dict[str, Shard]:
    """The shards of the optimiser state of a loss's tables."""
    shards = {}
    for name, table, part in sharded_tables(loss):
        for key, value in optimiser.state.get(table, {}).items():
            if isinstance(value, Tensor) and value.ndim:
                shards[f"optimiser.{name}.{key}"] = shard_of(local_rows(value), table, part)
    return shards


def plain_loss_state(loss: nn.Module) -> dict[str, Tensor]:
    """A loss's `state_dict` without sharded tables."""
    sharded = {name for name, _, _ in sharded_tables(loss)}
    return {name: value for name, value in loss.state_dict().items() if name not in sharded}


def load_plain_loss_state(loss: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Load a `plain_loss_state`; sharded tables do not change."""
    tables = {name: table for name, table, _ in sharded_tables(loss)}
    loss.load_state_dict({**state, **tables})


def plain_optimiser_state(loss: nn.Module, optimiser: Optimizer) -> dict[str, Any]:
    """An optimiser's `state_dict` without the state of rows of sharded tables."""
    sharded = {id(table) for _, table, _ in sharded_tables(loss)}
    parameters = [parameter for group in optimiser.param_groups for parameter in group["params"]]
    state = optimiser.state_dict()
    kept = {
        number: {k: v for k, v in values.items() if not (isinstance(v, Tensor) and v.ndim)}
        if id(parameters[number]) in sharded
        else values
        for number, values in state["state"].items()
    }
    return {**state, "state": kept}


def make_room(loss: nn.Module, optimiser: Optimizer, names: list[str]) -> None:
    """Allocate the optimiser's state of sharded tables, by the names of the saved shards, before it is loaded."""
    for name, table, _ in sharded_tables(loss):
        prefix = f"optimiser.{name}."
        for key in (saved.removeprefix(prefix) for saved in names if saved.startswith(prefix)):
            rows = local_rows(table)
            counts = key == "step"  # row-by-row steps count the steps of each row
            optimiser.state[table][key] = torch.zeros(len(rows)) if counts else torch.zeros_like(table.detach())


def lazy_rows(loss: nn.Module, optimiser: Optimizer) -> LazyRows:
    """Build the row-by-row optimiser steps of class vectors, which update only those that were compared with."""
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
    return LazyRows(optimiser, tables, local_rows, touched)
