"""Fingerprints of networks and transforms, for the keys of caches and indexes."""

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
    """The settings of a transform. Raises `InputError` if its `repr` does not show them."""
    if isinstance(transform, EvalTransform):
        return json.dumps(transform.to_dict(), sort_keys=True)
    described = repr(transform)
    if " at 0x" in described:
        raise InputError(
            f"the transform {described} does not show its settings, which identify cached features: give it a "
            "__repr__ that lists them"
        )
    return described
