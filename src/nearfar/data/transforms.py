"""From an image to the tensor a network takes. Pillow decodes (a JPEG at the smallest scale that serves); torch crops
and resizes in one step on bytes, antialiased as Pillow does it and several times faster. Both transforms have two
stages, so that worker processes need to hand over bytes only: `pixels`, all that happens to the image, and `normalise`,
which takes a whole batch as well.
"""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional

from nearfar.data.columns import Source
from nearfar.data.images import decode, open_image, upright_size

Triple = tuple[float, float, float]
Range = tuple[float, float]
Box = tuple[float, float, float, float]
IMAGENET_MEAN: Triple = (0.485, 0.456, 0.406)
IMAGENET_STD: Triple = (0.229, 0.224, 0.225)
_GREY = torch.tensor([0.299, 0.587, 0.114])[:, None, None]  # luma weights of ITU-R BT.601, as in Pillow


@dataclass(frozen=True)
class EvalTransform:
    """The same every time: shorter side to `resize`, centre crop of `size`, normalised.

    Args:
        size: side of the square output, or (height, width).
        resize: what the shorter side is scaled to before the crop; None takes the largest crop of the output's shape.
        crop: False stretches the whole image to `size` instead, as is usual for faces and persons.
        mean, std: per channel, of values from 0 to 1.
        interpolation: "bicubic" or "bilinear", both antialiased.

    Called with a `Source` or a Pillow image; gives float32 (3, height, width).
    """

    size: int | tuple[int, int] = 224
    resize: int | None = 256
    crop: bool = True
    mean: Triple = IMAGENET_MEAN
    std: Triple = IMAGENET_STD
    interpolation: Literal["bilinear", "bicubic"] = "bicubic"

    def __post_init__(self) -> None:
        _check(self)
        if self.resize is not None and self.crop and self.resize < min(_pair(self.size)):
            raise ValueError(f"resize={self.resize} is smaller than size={self.size}: the crop would leave the image")

    def __call__(self, source: Source | Image.Image) -> Tensor:
        return self.normalise(self.pixels(source))

    def pixels(self, source: Source | Image.Image) -> Tensor:
        """Cropped and resized, as bytes (3, height, width)."""
        image = open_image(source)
        return _resized(image, self._box(*upright_size(image)), _pair(self.size), self.interpolation, source)

    def normalise(self, pixels: Tensor) -> Tensor:
        """(pixels / 255 - mean) / std, of bytes (..., 3, height, width)."""
        return _normalised(pixels, self.mean, self.std)

    def _box(self, width: int, height: int) -> Box:
        if not self.crop:
            return 0, 0, width, height
        out_height, out_width = _pair(self.size)
        scale = min(width / out_width, height / out_height) if self.resize is None else min(width, height) / self.resize
        w, h = min(width, out_width * scale), min(height, out_height * scale)
        return (width - w) / 2, (height - h) / 2, (width + w) / 2, (height + h) / 2

    def to_dict(self) -> dict[str, Any]:
        """Plain values, from which `transform_from_dict` makes it again."""
        return {"transform": "eval", **dataclasses.asdict(self)}


@dataclass(frozen=True)
class TrainTransform:
    """Random resized crop, flip, colour, erasing; normalised.

    Args:
        size: side of the square output, or (height, width).
        scale: area of the crop, as a fraction of the image; None takes the whole image, stretched to `size`.
        ratio: width over height of the crop, before it is stretched to `size`.
        flip: probability of a mirror image.
        color: strength c of colour jitter: brightness, contrast and saturation are each multiplied by up to 1 ± c.
        erase: probability of erasing a rectangle of 2 to 33 % of the area.
        pad: shift by up to so many pixels in each direction, as in re-identification. What erasing and shifting leave
            open is filled with the mean colour, rounded to bytes.
        mean, std, interpolation: as in `EvalTransform`.

    Called with a `Source` or a Pillow image, and a numpy generator that decides everything random (without one, a fresh
    generator seeded from torch's global one); gives float32 (3, height, width).
    """

    size: int | tuple[int, int] = 224
    scale: Range | None = (0.16, 1.0)
    ratio: Range = (3 / 4, 4 / 3)
    flip: float = 0.5
    color: float = 0.0
    erase: float = 0.0
    pad: int = 0
    mean: Triple = IMAGENET_MEAN
    std: Triple = IMAGENET_STD
    interpolation: Literal["bilinear", "bicubic"] = "bicubic"

    def __post_init__(self) -> None:
        _check(self)
        if self.scale is not None:
            object.__setattr__(self, "scale", tuple(self.scale))
            if not 0 < self.scale[0] <= self.scale[1] <= 1:
                raise ValueError(f"scale={self.scale} must be two fractions of the area, the smaller first")
        object.__setattr__(self, "ratio", tuple(self.ratio))
        if not 0 < self.ratio[0] <= self.ratio[1]:
            raise ValueError(f"ratio={self.ratio} must be two positive numbers, the smaller first")
        for name in ("flip", "erase", "color"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name}={getattr(self, name)} must be from 0 to 1")
        if self.pad < 0:
            raise ValueError(f"pad={self.pad} must not be negative")

    def __call__(self, source: Source | Image.Image, rng: np.random.Generator | None = None) -> Tensor:
        return self.normalise(self.pixels(source, rng))

    def normalise(self, pixels: Tensor) -> Tensor:
        """(pixels / 255 - mean) / std, of bytes (..., 3, height, width)."""
        return _normalised(pixels, self.mean, self.std)

    def pixels(self, source: Source | Image.Image, rng: np.random.Generator | None = None) -> Tensor:
        """Cropped, resized and changed at random, as bytes (3, height, width)."""
        if rng is None:
            rng = np.random.default_rng(int(torch.randint(2**62, ())))
        image = open_image(source)
        pixels = _resized(image, self._box(*upright_size(image), rng), _pair(self.size), self.interpolation, source)
        if rng.random() < self.flip:
            pixels = pixels.flip(2)
        if self.color:
            pixels = (_jittered(pixels / 255, self.color, rng) * 255).round_().to(torch.uint8)
        fill = torch.tensor([round(255 * min(max(mean, 0.0), 1.0)) for mean in self.mean], dtype=torch.uint8)
        if self.pad:
            pixels = _shifted(pixels, self.pad, fill, rng)
        if rng.random() < self.erase:
            pixels = _erased(pixels, fill, rng)
        return pixels

    def _box(self, width: int, height: int, rng: np.random.Generator) -> Box:
        if self.scale is None:
            return 0, 0, width, height
        low, high = (math.log(bound) for bound in self.ratio)
        for _ in range(10):
            area = width * height * rng.uniform(*self.scale)
            ratio = math.exp(rng.uniform(low, high))
            w, h = math.sqrt(area * ratio), math.sqrt(area / ratio)
            if w <= width and h <= height:
                left, top = rng.uniform(0, width - w), rng.uniform(0, height - h)
                return left, top, left + w, top + h
        # An image so long that no crop fits: its middle, as square as `ratio` asks.
        w, h = min(width, height * self.ratio[1]), min(height, width / self.ratio[0])
        return (width - w) / 2, (height - h) / 2, (width + w) / 2, (height + h) / 2

    def to_dict(self) -> dict[str, Any]:
        """Plain values, from which `transform_from_dict` makes it again."""
        return {"transform": "train", **dataclasses.asdict(self)}


Transform = EvalTransform | TrainTransform
_KINDS: dict[str, type[EvalTransform] | type[TrainTransform]] = {"eval": EvalTransform, "train": TrainTransform}


def transform_from_dict(values: Mapping[str, Any]) -> Transform:
    """What `to_dict` gave, also after a way through JSON. Unknown names are errors.

    >>> transform_from_dict(EvalTransform(112, crop=False).to_dict()) == EvalTransform(112, crop=False)
    True
    """
    options = dict(values)
    kind = options.pop("transform", None)
    if kind not in _KINDS:
        raise ValueError(f"transform must be one of {', '.join(_KINDS)}, not {kind!r}")
    known = {field.name for field in dataclasses.fields(_KINDS[kind])}
    if unknown := set(options) - known:
        raise ValueError(f"a {kind} transform has no {', '.join(sorted(unknown))}: it has {', '.join(sorted(known))}")
    return _KINDS[kind](**options)


def _pair(size: int | tuple[int, int]) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else size


def _check(transform: EvalTransform | TrainTransform) -> None:
    """What both have; JSON's lists become tuples again."""
    for name, length in (("size", 2), ("mean", 3), ("std", 3)):
        value = getattr(transform, name)
        if isinstance(value, (list, tuple)):
            if len(value) != length:
                raise ValueError(f"{name}={value} must have {length} values")
            object.__setattr__(transform, name, tuple(value))
    if min(_pair(transform.size)) < 1:
        raise ValueError(f"size={transform.size} must be positive")
    if min(transform.std) <= 0:
        raise ValueError(f"std={transform.std} must be positive")
    if transform.interpolation not in ("bilinear", "bicubic"):
        raise ValueError(f'interpolation must be "bilinear" or "bicubic", not {transform.interpolation!r}')


def _resized(
    image: Image.Image, box: Box, size: tuple[int, int], interpolation: str, source: Source | Image.Image
) -> Tensor:
    """The box (left, top, right, bottom, in pixels of the upright image) at `size`, as bytes (3, height, width)."""
    width, height = upright_size(image)
    ours = not isinstance(source, Image.Image)  # a caller's image is not made smaller under their hands
    scale = max(size[1] / max(box[2] - box[0], 1), size[0] / max(box[3] - box[1], 1)) if ours else 1.0
    rgb = decode(image, scale, source)
    across, down = rgb.width / width, rgb.height / height
    left, right = _whole(box[0] * across, box[2] * across, rgb.width)
    top, bottom = _whole(box[1] * down, box[3] * down, rgb.height)
    pixels = torch.from_numpy(np.array(rgb.crop((left, top, right, bottom)))).permute(2, 0, 1)
    if pixels.shape[1:] == size:
        return pixels
    return functional.interpolate(pixels[None], size, mode=interpolation, antialias=True, align_corners=False)[0]


def _whole(low: float, high: float, most: int) -> tuple[int, int]:
    """Whole pixels, at least one."""
    start = min(int(low + 0.5), most - 1)
    return start, max(start + 1, min(int(high + 0.5), most))


def _normalised(pixels: Tensor, mean: Triple, std: Triple) -> Tensor:
    """(pixels / 255 - mean) / std as one product and one sum, image by image, so that each stays in the cache. By
    numpy, in one thread: torch's would wait for the cores that the workers have.
    """
    scale = np.array([1 / (255 * s) for s in std], np.float32)[:, None, None]
    shift = np.array([-m / s for m, s in zip(mean, std, strict=True)], np.float32)[:, None, None]
    out = np.empty(tuple(pixels.shape), np.float32)
    shape = (-1, *out.shape[-3:])
    for image, place in zip(pixels.numpy().reshape(shape), out.reshape(shape), strict=True):
        np.multiply(image, scale, out=place)
        place += shift
    return torch.from_numpy(out)


def _jittered(x: Tensor, strength: float, rng: np.random.Generator) -> Tensor:
    brightness, contrast, saturation = (1 + strength * rng.uniform(-1, 1) for _ in range(3))
    x = (x * brightness).clamp(0, 1)
    x = torch.lerp((x * _GREY).sum(0).mean(), x, contrast).clamp(0, 1)
    return torch.lerp((x * _GREY).sum(0, keepdim=True), x, saturation).clamp(0, 1)


def _shifted(pixels: Tensor, most: int, fill: Tensor, rng: np.random.Generator) -> Tensor:
    height, width = pixels.shape[1:]
    page = fill[:, None, None].repeat(1, height + 2 * most, width + 2 * most)
    page[:, most : most + height, most : most + width] = pixels
    top, left = (int(rng.integers(0, 2 * most + 1)) for _ in range(2))
    return page[:, top : top + height, left : left + width]


def _erased(pixels: Tensor, fill: Tensor, rng: np.random.Generator) -> Tensor:
    height, width = pixels.shape[1:]
    for _ in range(10):
        area = height * width * rng.uniform(0.02, 0.33)
        ratio = math.exp(rng.uniform(math.log(0.3), math.log(1 / 0.3)))
        h, w = round(math.sqrt(area / ratio)), round(math.sqrt(area * ratio))
        if 0 < h < height and 0 < w < width:
            top, left = int(rng.integers(0, height - h + 1)), int(rng.integers(0, width - w + 1))
            pixels = pixels.clone()
            pixels[:, top : top + h, left : left + w] = fill[:, None, None]
            return pixels
    return pixels
