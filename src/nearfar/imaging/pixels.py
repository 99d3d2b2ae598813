"""The steps of transforms: crop and resize, channel order, normalisation.

Pillow decodes, a JPEG at the smallest sufficient scale; torch resizes bytes with Pillow's antialiasing, several times
faster.
"""

from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional

from nearfar.errors import InputError
from nearfar.imaging.decoding import decode, open_image, upright_size
from nearfar.imaging.sources import ImageLike

Box = tuple[float, float, float, float]
"""Left, top, right, bottom, in pixels of the upright image."""
Size = int | tuple[int, int]
Interpolation = Literal["bilinear", "bicubic"]
Channels = Literal["RGB", "BGR", "L"]
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
_LUMA = torch.tensor([19595, 38470, 7471], dtype=torch.int32)[:, None, None]  # / 65536: ITU-R BT.601, as in Pillow


class OpenedImage:
    """An image with its header read; `resized` decodes the pixels."""

    def __init__(self, image: ImageLike):
        self._image, self._opened = image, open_image(image)
        self.width, self.height = upright_size(self._opened)

    def resized(self, box: Box, size: tuple[int, int], interpolation: Interpolation) -> Tensor:
        """Crop the box and resize it to `size` (height, width); returns RGB uint8 (3, height, width)."""
        scale = max(size[1] / max(box[2] - box[0], 1), size[0] / max(box[3] - box[1], 1))
        if isinstance(self._image, Image.Image):  # decoding at a smaller scale would change the caller's image
            scale = 1.0
        rgb = decode(self._opened, scale, self._image)
        across, down = rgb.width / self.width, rgb.height / self.height
        left, right = _whole_pixels(box[0] * across, box[2] * across, rgb.width)
        top, bottom = _whole_pixels(box[1] * down, box[3] * down, rgb.height)
        pixels = torch.from_numpy(np.array(rgb.crop((left, top, right, bottom)))).permute(2, 0, 1)
        if pixels.shape[1:] == size:
            return pixels.contiguous()
        return functional.interpolate(pixels[None], size, mode=interpolation, antialias=True, align_corners=False)[0]


def _whole_pixels(low: float, high: float, limit: int) -> tuple[int, int]:
    """Round an interval to whole pixels, at least one. Without resizing, the crop equals torchvision's centre crop."""
    length = min(max(round(high - low), 1), limit)
    start = min(max(round(low), 0), limit - length)
    return start, start + length


def in_channels(pixels: Tensor, channels: Channels) -> Tensor:
    """Convert RGB uint8 (3, height, width) to other channels."""
    if channels == "RGB":
        return pixels
    if channels == "BGR":
        return pixels.flip(0)
    return ((pixels * _LUMA).sum(0, keepdim=True, dtype=torch.int32) + 32768 >> 16).to(torch.uint8)


def normalised(pixels: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """(pixels / 255 - mean) / std for uint8 (..., C, height, width).

    Image by image, so that each stays in the CPU's cache; by numpy, because torch's threads would wait for the
    cores that decode.
    """
    scale = np.array([1 / (255 * s) for s in std], np.float32)[:, None, None]
    shift = np.array([-m / s for m, s in zip(mean, std, strict=True)], np.float32)[:, None, None]
    out = np.empty(tuple(pixels.shape), np.float32)
    shape = (-1, *out.shape[-3:])
    for image, result in zip(pixels.numpy().reshape(shape), out.reshape(shape), strict=True):
        np.multiply(image, scale, out=result)
        result += shift
    return torch.from_numpy(out)


def height_width(size: Size) -> tuple[int, int]:
    """A size as (height, width); one number is a square."""
    return (size, size) if isinstance(size, int) else size


def check_output(
    size: Size, mean: Sequence[float], std: Sequence[float], interpolation: Interpolation, channels: Channels
) -> None:
    """Check the settings that all transforms share."""
    if not isinstance(size, int) and len(size) != 2:
        raise InputError(f"size={size} must be one number or (height, width)")
    if min(height_width(size)) < 1:
        raise InputError(f"size={size} must be positive")
    if interpolation not in get_args(Interpolation):
        raise InputError(f'interpolation must be "bilinear" or "bicubic", not {interpolation!r}')
    if channels not in get_args(Channels):
        raise InputError(f'channels must be "RGB", "BGR" or "L", not {channels!r}')
    for name, values in (("mean", mean), ("std", std)):
        if len(values) != len(channels):
            raise InputError(f"{name}={values} must have {len(channels)} values, one for each channel of {channels}")
    if min(std) <= 0:
        raise InputError(f"std={std} must be positive")
