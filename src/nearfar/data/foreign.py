"""Transforms of other libraries: what each is given, and what it gives back as a tensor."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor


def call_foreign(transform: Callable[..., Any], image: Image.Image) -> Tensor:
    """Apply any callable to an RGB image and return a float tensor (C, H, W).

    Transforms of albumentations are given the pixels as `image=`, those of kornia a float batch of one from 0 to 1, all
    others (torchvision, or a function of your own) the Pillow image. Bytes that come back, as an array, a tensor or an
    image, become floats from 0 to 1; floats stay as they are.
    """
    home = {base.__module__.partition(".")[0] for base in type(transform).__mro__}
    if "albumentations" in home:
        return _as_tensor(transform(image=np.array(image))["image"])
    if "kornia" in home:
        return _as_tensor(transform(_as_tensor(image)[None])[0])
    return _as_tensor(transform(image))


def _as_tensor(result: Any) -> Tensor:
    if isinstance(result, Image.Image):
        result = np.array(result)
    if isinstance(result, np.ndarray):  # (H, W) or (H, W, C)
        result = torch.from_numpy(result if result.ndim == 3 else result[..., None]).permute(2, 0, 1)
    if not isinstance(result, Tensor) or result.ndim != 3:
        shape = f" of shape {tuple(result.shape)}" if isinstance(result, Tensor) else ""
        raise TypeError(
            f"the transform returned {type(result).__name__}{shape}: it must return a tensor (C, H, W), an array or "
            "an image"
        )
    return (result.float() / 255 if result.dtype == torch.uint8 else result).contiguous()
