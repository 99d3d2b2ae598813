"""A model as `model.safetensors`, which `nearfar.models.Embedder.load` reads: tensors and JSON, nothing that runs."""

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from nearfar.models import Embedder


def write_safetensors(model: Embedder, path: Path) -> None:
    """Write the model without the names of the classes it was trained on: they say who or what is in the data."""
    names = model.label_names
    model.label_names = ()
    try:
        model.save(path)
    finally:
        model.label_names = names


def torch_network(model: Embedder) -> Callable[[Tensor], Tensor]:
    """The model as PyTorch runs it, as a function of what the model takes."""

    def embed(inputs: Tensor) -> Tensor:
        with torch.inference_mode():
            return torch.as_tensor(model(inputs))

    return embed


def safetensors_network(path: Path) -> Callable[[Tensor], Tensor]:
    """The file, as a function of what the model takes."""
    return torch_network(Embedder.load(path))
