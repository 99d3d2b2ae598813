"""How a loss is called: outside of compiled graphs and autocast, with warnings that point at the caller."""

import functools
import os
import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

INSIDE = tuple(os.path.dirname(file) + os.sep for file in (__file__, torch.__file__))


def eager(forward: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Decorate the `forward` of a loss: torch.compile breaks its graph there, since the engine's loop is its own
    schedule, and autocast does not change the precision within. Nothing of the compiler is imported before it is used.
    """
    outside_the_graph = torch._disable_dynamo(forward)  # type: ignore[attr-defined]

    @functools.wraps(forward)
    def call(self: Any, embeddings: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        device = embeddings.device.type if isinstance(embeddings, Tensor) else "cpu"
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
