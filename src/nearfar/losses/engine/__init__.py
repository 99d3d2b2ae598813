"""The engine: a spec and its pairs in, the loss and its gradients out, in bounded memory.

    spec.py   which loss: maps.py f_p and f_n, reductions.py A_p and A_n, combination.py, pools.py
    pairs.py  which pairs are positive, negative or ignored
    plan.py   spec, pairs, weights, budget, sizes of blocks
       │
       ▼
    evaluation.py ──► groups.py            which rows and tiles
                      products.py          similarities, and their gradients; vectors.py: the vectors for them
                      row_statistics.py    P, N and G of the rows; row_weights.py: which rows count
                      tile_terms.py        the terms of a tile
                      row_functions.py     a loss outside the formula
    dense.py  the same by whole matrices: the oracle

The engine does not know the losses, nor the ranks: what these exchange is behind `Pairs.spread`.
"""

from typing import Any

import torch
from torch import Tensor

from nearfar.errors import StateError
from nearfar.losses.engine import dense
from nearfar.losses.engine.evaluation import Evaluation, Grads
from nearfar.losses.engine.plan import Plan
from nearfar.losses.engine.spec import check
from nearfar.losses.engine.vectors import restored


def evaluate(
    plan: Plan, rows: Tensor, columns: Tensor | None, bias: Tensor | None = None, *parameters: Tensor
) -> Tensor:
    """The loss: a scalar, or (N,) for reduction "none"; differentiable once by every tensor.

    Args:
        rows: (N, D).
        columns: (M, D), or None when they are the rows.
        bias: (M,), added to the similarities.
        parameters: numbers of the rows, (N,) each, followed by numbers of the columns, (M,) each, for maps or a strip
            function.
    """
    _check(plan, columns, bias, len(parameters))
    wanted = torch.is_grad_enabled()
    result: Tensor = _Evaluate.apply(plan, wanted, rows, columns, bias, *parameters)  # type: ignore[no-untyped-call]
    return result


def evaluate_densely(
    plan: Plan, rows: Tensor, columns: Tensor | None, bias: Tensor | None = None, *parameters: Tensor
) -> Tensor:
    """The same loss by whole matrices and autograd."""
    _check(plan, columns, bias, len(parameters))
    pairs = plan.pairs
    masks = (restored(mask, pairs.row_order).t() for mask in pairs.masks(slice(0, pairs.rows)))
    positive, negative = (restored(mask, pairs.column_order).t() for mask in masks)
    return dense.evaluate(
        plan.spec,
        rows,
        columns,
        positive,
        negative,
        bias=bias,
        row_numbers=parameters[: plan.row_parameters],
        column_numbers=parameters[plan.row_parameters :],
        row_weight=plan.row_weight,
        column_weight=plan.column_weight,
        reduction=plan.reduction,
    )


def _check(plan: Plan, columns: Tensor | None, bias: Tensor | None, numbers: int) -> None:
    rows = plan.row_parameters
    check(plan.spec, rows, numbers - rows, one_set=columns is None, bias=bias is not None)


class _Evaluate(torch.autograd.Function):
    """Forward forms the gradients; backward only scales them. For reduction "none", whose upstream gradient is a
    weight per row, backward runs the tiles.
    """

    @staticmethod
    def forward(ctx: Any, plan: Plan, wanted: bool, *tensors: Tensor | None) -> Tensor:
        ctx.plan = plan
        if plan.reduction == "none":
            losses, _ = Evaluation(plan, tensors, (False,) * len(tensors)).run()
            ctx.save_for_backward(*tensors)
            return losses
        needs = ctx.needs_input_grad[2:] if wanted else (False,) * len(tensors)
        losses, grads = Evaluation(plan, tensors, needs).run()
        ctx.save_for_backward(*grads)
        return losses

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise StateError(
                "the losses are differentiable once: make the loss with dense=True for second derivatives, as of a "
                "gradient penalty, or call backward or autograd.grad without create_graph=True"
            )
        grads: Grads
        if ctx.plan.reduction == "none":
            with torch.autocast(upstream.device.type, enabled=False):
                grads = Evaluation(ctx.plan, ctx.saved_tensors, ctx.needs_input_grad[2:], upstream).run()[1]
        elif torch._C._autograd._get_current_graph_task_keep_graph():
            grads = tuple(g if g is None else g * upstream for g in ctx.saved_tensors)
        else:
            # Nothing else refers to these, so they are scaled in place; a large W's gradient is never copied.
            grads = ctx.saved_tensors
            if upstream.device.type != "cpu" or upstream.item() != 1:
                grads = tuple(g if g is None else g.mul_(upstream) for g in grads)
        return None, None, *grads
