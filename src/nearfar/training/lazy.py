"""`LazyRows`: an optimiser's step for the rows of a large parameter that a batch has touched, and for no others.

Where a loss samples its negative classes, most class vectors have no gradient in a step. The usual optimisers would
still read and write every row, move it by its momentum and decay it; here such a row stays as it is, and what is kept
for it too. So a row goes exactly the way on which the usual optimiser would lead it through those steps alone that
touched it: Adam's correction of its averages counts these steps, row by row.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer, RMSprop


class LazyRows:
    """Steps of some of an optimiser's parameters, row by row; what it keeps is in the optimiser's state.

    Call `step` when the gradients are there, before the optimiser's own, which then passes over these parameters:

        lazy = LazyRows(optimiser, [loss.weight])
        loss(...).backward(); lazy.step(); optimiser.step()

    Args:
        optimiser: AdamW, Adam, SGD or RMSprop, without amsgrad, Nesterov, dampening, centring or maximisation.
        parameters: (rows, ...), each in one of its groups.
        rows: what a process has of such a parameter, and of what is kept for it, as a view of rows; by default all.
        touched: which rows a parameter's gradient is of; by default those whose gradient is not zero.
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
            raise TypeError(f"rows can be stepped one by one as adamw, adam, sgd or rmsprop, not as {type(optimiser)}")
        unusual = ("amsgrad", "nesterov", "dampening", "centered", "maximize")
        for group in optimiser.param_groups:
            if set_ones := [name for name in unusual if group.get(name)]:
                raise ValueError(f"rows cannot be stepped one by one with {set_ones[0]}")
        self._optimiser, self._update = optimiser, kinds[type(optimiser)]
        self._parameters = {id(parameter) for parameter in parameters}
        self._rows, self._touched = rows, touched
        # Adam adds the decay to the gradient, AdamW takes it off the weights.
        self._decoupled = isinstance(optimiser, AdamW)

    @torch.no_grad()
    def step(self) -> None:
        """Move the rows that have a gradient, sparse or dense, and take the gradient away."""
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
        """Which rows have a gradient, and theirs."""
        assert parameter.grad is not None
        if parameter.grad.is_sparse:
            gradient = parameter.grad.coalesce()
            return gradient.indices()[0], gradient.values()
        gradient, touched = self._rows(parameter.grad), self._touched(parameter)
        if touched is None:
            touched = gradient.reshape(len(gradient), -1).any(1).nonzero().flatten()
        return touched, gradient[touched]


class _Rows:
    """What is kept for the touched rows, in tensors that have a row for every row of the parameter."""

    def __init__(
        self,
        state: dict[str, Any],
        parameter: nn.Parameter,
        touched: Tensor,
        rows: Callable[[Tensor], Tensor],
    ):
        self._state, self._parameter, self._touched, self._rows = state, parameter, touched, rows

    def changed(self, name: str, change: Callable[[Tensor], Tensor]) -> Tensor:
        """The new values of these rows."""
        if name not in self._state:
            self._state[name] = torch.zeros_like(self._parameter.detach())
        kept = self._rows(self._state[name])
        new = change(kept[self._touched])
        kept[self._touched] = new
        return new

    def counted(self) -> Tensor:
        """How often each row has been touched, this time included; one column beside the gradient."""
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
