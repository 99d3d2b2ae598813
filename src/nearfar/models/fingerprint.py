"""What tells one network, and one way to prepare images, from another: keys for what is computed with them."""

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from nearfar.errors import InputError
from nearfar.imaging import EvalTransform


def digest_of(modules: Mapping[str, nn.Module], description: Mapping[str, Any]) -> str:
    """32 hexadecimal digits that change with any weight, name, shape or entry of the description."""
    digest = hashlib.blake2b(json.dumps(description, sort_keys=True).encode(), digest_size=16)
    for part, module in sorted(modules.items()):
        for name, tensor in sorted(module.state_dict().items()):
            digest.update(f"\n{part}.{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
            digest.update(tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def describe_transform(transform: Callable[..., Any]) -> str:
    """Its settings, or an error if they cannot be told."""
    if isinstance(transform, EvalTransform):
        return json.dumps(transform.to_dict(), sort_keys=True)
    described = repr(transform)
    if " at 0x" in described:
        raise InputError(
            f"{described} does not say what it does, so that features made with it could not be told from others: "
            "give the transform a __repr__ that lists its settings"
        )
    return described
