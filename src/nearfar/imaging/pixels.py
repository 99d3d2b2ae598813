"""What transforms are made of: a box of an image at the size wanted, the order of its channels, its normalisation.

Pillow decodes (a JPEG at the smallest scale that serves); torch crops and resizes in one step on bytes, antialiased as
Pillow does it and several times faster.
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
    """An image whose size is known and whose pixels are decoded when it is known which of them are wanted."""

    def __init__(self, image: ImageLike):
        self._image, self._opened = image, open_image(image)
        self.width, self.height = upright_size(self._opened)

    def resized(self, box: Box, size: tuple[int, int], interpolation: Interpolation) -> Tensor:
        """The box at `size` (height, width), as bytes (3, height, width) in the order RGB."""
        scale = max(size[1] / max(box[2] - box[0], 1), size[0] / max(box[3] - box[1], 1))
        if isinstance(self._image, Image.Image):  # a caller's image is not made smaller under their hands
            scale = 1.0
        rgb = decode(self._opened, scale, self._image)
        across, down = rgb.width / self.width, rgb.height / self.height
        left, right = _whole(box[0] * across, box[2] * across, rgb.width)
        top, bottom = _whole(box[1] * down, box[3] * down, rgb.height)
        pixels = torch.from_numpy(np.array(rgb.crop((left, top, right, bottom)))).permute(2, 0, 1)
        if pixels.shape[1:] == size:
            return pixels.contiguous()
        return functional.interpolate(pixels[None], size, mode=interpolation, antialias=True, align_corners=False)[0]


def _whole(low: float, high: float, most: int) -> tuple[int, int]:
    """Whole pixels, at least one. What needs no resizing is cut exactly where torchvision's centre crop cuts it."""
    length = min(max(round(high - low), 1), most)
    start = min(max(round(low), 0), most - length)
    return start, start + length


def in_channels(pixels: Tensor, channels: Channels) -> Tensor:
    """Bytes (3, height, width) in the order RGB, as bytes of other channels."""
    if channels == "RGB":
        return pixels
    if channels == "BGR":
        return pixels.flip(0)
    return ((pixels * _LUMA).sum(0, keepdim=True, dtype=torch.int32) + 32768 >> 16).to(torch.uint8)


def normalised(pixels: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """(pixels / 255 - mean) / std of bytes (..., C, height, width), as one product and one sum, image by image, so that
    each stays in the cache. By numpy, in one thread: torch's would wait for the cores that decode.
    """
    scale = np.array([1 / (255 * s) for s in std], np.float32)[:, None, None]
    shift = np.array([-m / s for m, s in zip(mean, std, strict=True)], np.float32)[:, None, None]
    out = np.empty(tuple(pixels.shape), np.float32)
    shape = (-1, *out.shape[-3:])
    for image, place in zip(pixels.numpy().reshape(shape), out.reshape(shape), strict=True):
        np.multiply(image, scale, out=place)
        place += shift
    return torch.from_numpy(out)


def height_width(size: Size) -> tuple[int, int]:
    """Of an output."""
    return (size, size) if isinstance(size, int) else size


def check_output(
    size: Size, mean: Sequence[float], std: Sequence[float], interpolation: Interpolation, channels: Channels
) -> None:
    """Refuse what no transform can give."""
    if not isinstance(size, int) and len(size) != 2:
        raise InputError(f"size={size} must be one number, or a height and a width")
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
