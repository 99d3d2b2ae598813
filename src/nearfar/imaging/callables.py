"""Calls transforms of any library on an image, and returns a float tensor."""

import contextlib
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from nearfar.errors import InputTypeError
from nearfar.imaging.decoding import load_image
from nearfar.imaging.sources import ImageLike


def transformed(transform: Callable[..., Any], image: ImageLike, seed: Sequence[int] | None = None) -> Tensor:
    """Apply a transform to an image and return a float tensor (C, H, W).

    Transforms with `takes_any_image` (nearfar's own) get the undecoded image, because they decode only what they need.
    All others get the decoded image through `call_foreign`; `seed` then fixes their random choices.
    """
    if getattr(transform, "takes_any_image", False):
        return torch.as_tensor(transform(image))
    decoded = load_image(image)
    if seed is None:
        return call_foreign(transform, decoded)
    with _seeded(seed) as number:
        return call_foreign(transform, decoded, number)


def call_foreign(transform: Callable[..., Any], image: Image.Image, seed: int | None = None) -> Tensor:
    """Apply any callable to an RGB image and return a float tensor (C, H, W).

    Transforms of albumentations get the pixels as `image=`, those of kornia a float batch of one from 0 to 1, all
    others (torchvision, plain functions) the Pillow image. uint8 results are scaled to [0, 1]; floats are returned
    unchanged. `seed` is for transforms that own a random generator.
    """
    libraries = {base.__module__.partition(".")[0] for base in type(transform).__mro__}
    if "albumentations" in libraries:
        if seed is not None and hasattr(transform, "set_random_seed"):
            transform.set_random_seed(seed)
        return _as_tensor(transform(image=np.array(image))["image"])
    if "kornia" in libraries:
        return _as_tensor(transform(_as_tensor(image)[None])[0])
    return _as_tensor(transform(image))


@contextlib.contextmanager
def _seeded(numbers: Sequence[int]) -> Iterator[int]:
    """Seed the global generators of Python, numpy and torch, and restore them afterwards."""
    before = random.getstate(), np.random.get_state(), torch.get_rng_state()
    seed = int(np.random.SeedSequence(list(numbers)).generate_state(1)[0])
    random.seed(seed)
    np.random.seed(seed)
    torch.default_generator.manual_seed(seed)
    try:
        yield seed
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
        torch.set_rng_state(before[2])


def _as_tensor(result: Any) -> Tensor:
    if isinstance(result, Image.Image):
        result = np.array(result)
    if isinstance(result, np.ndarray):  # (H, W) or (H, W, C)
        result = torch.from_numpy(result if result.ndim == 3 else result[..., None]).permute(2, 0, 1)
    if not isinstance(result, Tensor) or result.ndim != 3:
        shape = f" of shape {tuple(result.shape)}" if isinstance(result, Tensor) else ""
        raise InputTypeError(
            f"the transform returned {type(result).__name__}{shape}: it must return a tensor (C, H, W), an array or "
            "an image"
        )
    return (result.float() / 255 if result.dtype == torch.uint8 else result).contiguous()
