"""Reads weights of other projects: safetensors, or PyTorch files that contain only tensors. Pickles that could run code
are refused.
"""

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from nearfar.errors import InputError, MissingFileError

FromPublic = Callable[[Mapping[str, Tensor]], dict[str, Tensor]]
_COUNTERS = ".num_batches_tracked"  # unused, and missing in older checkpoints
_INSIDE = ("state_dict", "model", "model_state_dict", "state_dict_backbone")  # keys of weights in training checkpoints


def read_weights(path: str | os.PathLike[str]) -> dict[str, Tensor]:
    """The tensors of a checkpoint, by name."""
    path = Path(path)
    if not path.is_file():
        raise MissingFileError(f"{path}: no such checkpoint")
    if path.suffix == ".safetensors":
        try:
            return load_file(path)
        except SafetensorError as error:
            raise InputError(f"{path} is not a complete safetensors file: {error}") from error
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # damaged files raise many types
        if isinstance(error, (MemoryError, OSError)):
            raise
        raise InputError(
            f"{path} cannot be read as tensors (it is damaged, or holds other objects, which could run code): "
            f"{(str(error).splitlines() or [type(error).__name__])[0]}"
        ) from error
    while isinstance(content, dict) and (inside := [k for k in _INSIDE if isinstance(content.get(k), dict)]):
        content = content[inside[0]]
    if not isinstance(content, dict) or not content or not all(isinstance(v, Tensor) for v in content.values()):
        raise InputError(f"{path} holds no dictionary of tensors")
    return content


def load_weights(module: nn.Module, weights: Mapping[str, Tensor], source: str) -> None:
    """Load tensors into a module. Raises `InputError` with a list if names or shapes do not match."""
    expected = module.state_dict()
    missing = sorted(k for k in expected.keys() - weights.keys() if not k.endswith(_COUNTERS))
    unknown = sorted(k for k in weights.keys() - expected.keys() if not k.endswith(_COUNTERS))
    misshapen = [
        f"{k} {tuple(weights[k].shape)} for {tuple(expected[k].shape)}"
        for k in sorted(expected.keys() & weights.keys())
        if expected[k].shape != weights[k].shape
    ]
    for what, names in (("lacks", missing), ("has unknown", unknown), ("has other shapes of", misshapen)):
        if names:
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            raise InputError(f"{source} does not fit this network: it {what} {', '.join(names[:3])}{more}")
    module.load_state_dict({k: v for k, v in weights.items() if k in expected}, strict=False)
