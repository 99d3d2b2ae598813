"""`LazyRows`: optimiser steps for only those rows of a large parameter that have a gradient.

If a loss samples its negative classes, most class vectors have no gradient in a step. The usual optimisers would still
read and write every row, move it by its momentum and decay it. Here, such a row and its optimiser state stay unchanged.
A row moves exactly as the usual optimiser would move it in only the steps that touch it: Adam's bias correction counts
these steps, row by row.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer, RMSprop


class LazyRows:
    """Row-by-row steps of some of an optimiser's parameters, with their state in the optimiser.

    Call `step` before the optimiser's own step, which then skips these parameters:

        lazy = LazyRows(optimiser, [loss.weight])
        loss(...).backward(); lazy.step(); optimiser.step()

    Args:
        optimiser: AdamW, Adam, SGD or RMSprop, without amsgrad, Nesterov, dampening, centring or maximisation.
        parameters: (rows, ...), each in one of the optimiser's groups.
        rows: returns the local rows of a parameter or of its state as a view; by default all.
        touched: returns the rows that a parameter's gradient belongs to; by default those with a non-zero gradient.
    """

    def __init__(
        self,
        optimiser: Optimizer,
        parameters: Sequence[nn.Parameter],
        rows: Callable[[Tensor], Tensor] = Tensor.detach,
        touched: Callable[[nn.Parameter], Tensor | None] = lambda parameter: None,
    ):
        kinds: dict[type, Callable[..., Tensor]] = {AdamW: _adam, Adam: _adam, SGD: _sgd, RMSprop: _rmsprop}
        if type(optimiser) not in kinds:
            raise TypeError(f"row-by-row steps exist for adamw, adam, sgd and rmsprop, not for {type(optimiser)}")
        unusual = ("amsgrad", "nesterov", "dampening", "centered", "maximize")
        for group in optimiser.param_groups:
            if enabled := [name for name in unusual if group.get(name)]:
                raise ValueError(f"row-by-row steps do not support {enabled[0]}")
        self._optimiser, self._update = optimiser, kinds[type(optimiser)]
        self._parameters = {id(parameter) for parameter in parameters}
        self._rows, self._touched = rows, touched
        # Adam adds the decay to the gradient, AdamW subtracts it from the weights.
        self._decoupled = isinstance(optimiser, AdamW)

    @torch.no_grad()
    def step(self) -> None:
        """Update the rows that have a gradient, sparse or dense, and clear the gradient."""
        for group in self._optimiser.param_groups:
            for parameter in group["params"]:
                if id(parameter) in self._parameters and parameter.grad is not None:
                    self._step(parameter, group)
                    parameter.grad = None

    def _step(self, parameter: nn.Parameter, group: dict[str, Any]) -> None:
        touched, gradient = self._gradient(parameter)
        if not len(touched):
            return
        table = self._rows(parameter)
        rows = table[touched]
        decay, rate = group["weight_decay"], group["lr"]
        if decay and self._decoupled:
            rows.mul_(1 - rate * decay)
        elif decay:
            gradient = gradient + decay * rows
        state = _Rows(self._optimiser.state[parameter], parameter, touched, self._rows)
        table[touched] = rows.sub_(self._update(gradient, state, group))

    def _gradient(self, parameter: nn.Parameter) -> tuple[Tensor, Tensor]:
        """The rows that have a gradient, and their gradients."""
        assert parameter.grad is not None
        if parameter.grad.is_sparse:
            gradient = parameter.grad.coalesce()
            return gradient.indices()[0], gradient.values()
        gradient, touched = self._rows(parameter.grad), self._touched(parameter)
        if touched is None:
            touched = gradient.reshape(len(gradient), -1).any(1).nonzero().flatten()
        return touched, gradient[touched]


class _Rows:
    """The optimiser state of the touched rows, in tensors with a row for every row of the parameter."""

    def __init__(
        self,
        state: dict[str, Any],
        parameter: nn.Parameter,
        touched: Tensor,
        rows: Callable[[Tensor], Tensor],
    ):
        self._state, self._parameter, self._touched, self._rows = state, parameter, touched, rows

    def changed(self, name: str, change: Callable[[Tensor], Tensor]) -> Tensor:
        """Change the state of these rows, and return the new values."""
        if name not in self._state:
            self._state[name] = torch.zeros_like(self._parameter.detach())
        kept = self._rows(self._state[name])
        new = change(kept[self._touched])
        kept[self._touched] = new
        return new

    def counted(self) -> Tensor:
        """The number of steps of each row, this one included, shaped to broadcast with the gradient."""
        table = self._rows(self._parameter)
        if "step" not in self._state:
            self._state["step"] = torch.zeros(len(table), device=table.device)
        self._state["step"][self._touched] += 1
        count: Tensor = self._state["step"][self._touched].to(table.dtype)
        return count.view(-1, *(1 for _ in table.shape[1:]))


def _adam(gradient: Tensor, state: _Rows, group: dict[str, Any]) -> Tensor:
    first, second = group["betas"]
    count = state.counted()
    mean = state.changed("exp_avg", lambda old: old.lerp(gradient, 1 - first))
    square = state.changed("exp_avg_sq", lambda old: old.mul(second).addcmul_(gradient, gradient, value=1 - second))
    root = (square / (1 - second**count)).sqrt_().add_(group["eps"])
    step: Tensor = group["lr"] * (mean / (1 - first**count)) / root
    return step


def _sgd(gradient: Tensor, state: _Rows, group: dict[str, Any]) -> Tensor:
    if group["momentum"]:
        gradient = state.changed("momentum_buffer", lambda old: old.mul(group["momentum"]).add_(gradient))
    rate: float = group["lr"]
    return rate * gradient


def _rmsprop(gradient: Tensor, state: _Rows, group: dict[str, Any]) -> Tensor:
    alpha, rate = group["alpha"], group["lr"]
    square = state.changed("square_avg", lambda old: old.mul(alpha).addcmul_(gradient, gradient, value=1 - alpha))
    step = gradient / square.sqrt().add_(group["eps"])
    if group["momentum"]:
        step = state.changed("momentum_buffer", lambda old: old.mul(group["momentum"]).add_(step))
    return float(rate) * step
