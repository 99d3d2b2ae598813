"""Writes and runs `model.safetensors`, which `nearfar.models.Embedder.load` reads."""

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from nearfar.models import Embedder


def write_safetensors(model: Embedder, path: Path) -> None:
    """Write the model without the names of its training classes, which are private."""
    names = model.label_names
    model.label_names = ()
    try:
        model.save(path)
    finally:
        model.label_names = names


def torch_network(model: Embedder) -> Callable[[Tensor], Tensor]:
    """The model in PyTorch, without gradients."""

    def embed(inputs: Tensor) -> Tensor:
        with torch.inference_mode():
            return torch.as_tensor(model(inputs))

    return embed


def safetensors_network(path: Path) -> Callable[[Tensor], Tensor]:
    """The network of a file, in PyTorch."""
    return torch_network(Embedder.load(path))
