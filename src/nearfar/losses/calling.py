"""How a loss is called: outside of compiled graphs and autocast, with warnings that point at the caller."""

import functools
import os
import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from nearfar.errors import InputError, StateError

INSIDE = tuple(os.path.dirname(file) + os.sep for file in (__file__, torch.__file__))

WAY_OUT = " of a loss (for fullgraph=True make the loss with dense=True)"


def eager(forward: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Decorate the `forward` of a loss: torch.compile breaks its graph there, since the engine's loop is its own
    schedule, and autocast does not change the precision within. Nothing of the compiler is imported before it is used.
    """
    outside_the_graph = torch._disable_dynamo(forward)  # type: ignore[attr-defined]
    outside_the_graph.__qualname__ = forward.__qualname__ + WAY_OUT  # which the compiler's error shows

    @functools.wraps(forward)
    def call(self: Any, embeddings: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if self.dense and torch.compiler.is_compiling():
            return forward(self, embeddings, *args, **kwargs)
        device = embeddings.device.type if isinstance(embeddings, Tensor) else "cpu"
        if device == "meta":
            raise InputError("the embeddings have no values (device meta): a loss is a function of values")
        if not self.dense and torch._C._are_functorch_transforms_active():
            raise StateError(f"torch.func needs a loss that is made with dense=True: {type(self).__name__}(dense=True)")
        run = outside_the_graph if torch.compiler.is_compiling() else forward
        if not torch.is_autocast_enabled(device):
            return run(self, embeddings, *args, **kwargs)
        with torch.autocast(device, enabled=False):
            return run(self, embeddings, *args, **kwargs)

    return call


def warn_caller(message: str) -> None:
    """Warn at the line that called the loss."""
    frame, level = sys._getframe(), 1
    while frame.f_back is not None and frame.f_code.co_filename.startswith(INSIDE):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, stacklevel=level)
