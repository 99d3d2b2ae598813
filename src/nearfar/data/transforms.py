"""Random transforms of training images, determined by the image and the generator."""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from nearfar.errors import InputError
from nearfar.imaging.decoding import broken_image_errors
from nearfar.imaging.eval_transform import EvalTransform, lists_to_tuples, transform_from_settings
from nearfar.imaging.pixels import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    Box,
    Channels,
    Interpolation,
    OpenedImage,
    Size,
    check_output,
    height_width,
    in_channels,
    normalised,
)
from nearfar.imaging.sources import BrokenImageError, ImageLike, Source, content, describe, read_encoded

Range = tuple[float, float]
_GREY = torch.tensor([0.299, 0.587, 0.114])[:, None, None]  # luma weights of ITU-R BT.601, as in Pillow


@dataclass(frozen=True)
class TrainTransform:
    """Random resized crop, flip, colour jitter and erasing, then normalisation.

    Args:
        size: side of the square output, or (height, width).
        scale: area of the crop, as a fraction of the image; None stretches the whole image to `size`.
        ratio: width over height of the crop, before it is stretched to `size`.
        flip: probability of a mirror image.
        color: strength c of colour jitter: brightness, contrast and saturation are each multiplied by 1 - c to 1 + c.
        erase: probability of erasing a rectangle of 2 to 33 % of the area.
        pad: largest shift in each direction in pixels, as in re-identification. Erased and uncovered areas are filled
            with the mean colour, rounded to bytes.
        mean, std, interpolation, channels: as in `EvalTransform`.

    The call takes an image as `EvalTransform` does, and a numpy generator (by default a new one, seeded from torch's
    global generator); it returns float32 (C, height, width). `pixels` and `normalise` are its two stages.
    """

    takes_any_image: ClassVar[bool] = True
    size: Size = 224
    scale: Range | None = (0.16, 1.0)
    ratio: Range = (3 / 4, 4 / 3)
    flip: float = 0.5
    color: float = 0.0
    erase: float = 0.0
    pad: int = 0
    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD
    interpolation: Interpolation = "bicubic"
    channels: Channels = "RGB"

    def __post_init__(self) -> None:
        lists_to_tuples(self)
        check_output(self.size, self.mean, self.std, self.interpolation, self.channels)
        if self.scale is not None and not 0 < self.scale[0] <= self.scale[1] <= 1:
            raise InputError(f"scale={self.scale} must be two fractions of the area, the smaller first")
        if not 0 < self.ratio[0] <= self.ratio[1]:
            raise InputError(f"ratio={self.ratio} must be two positive numbers, the smaller first")
        for name in ("flip", "erase", "color"):
            if not 0 <= getattr(self, name) <= 1:
                raise InputError(f"{name}={getattr(self, name)} must be from 0 to 1")
        if self.pad < 0:
            raise InputError(f"pad={self.pad} must not be negative")

    @classmethod
    def like(cls, evaluation: EvalTransform, **options: Any) -> "TrainTransform":
        """A transform with the size, channels and normalisation of an `EvalTransform` such as `Embedder.preprocess`.
        If that stretches the whole image, so does this, unless `scale` is given.

        >>> TrainTransform.like(EvalTransform(32, crop=False, channels="BGR"), flip=0.0).channels
        'BGR'
        """
        same = {name: getattr(evaluation, name) for name in ("size", "mean", "std", "interpolation", "channels")}
        whole = {} if evaluation.crop else {"scale": None}
        return cls(**{**same, **whole, **options})

    def __call__(self, image: ImageLike, rng: np.random.Generator | None = None) -> Tensor:
        return self.normalise(self.pixels(image, rng))

    def normalise(self, pixels: Tensor) -> Tensor:
        """(pixels / 255 - mean) / std for uint8 (..., C, height, width)."""
        return normalised(pixels, self.mean, self.std)

    def pixels(self, image: ImageLike, rng: np.random.Generator | None = None) -> Tensor:
        """Crop, resize and augment to uint8 (C, height, width)."""
        if rng is None:
            rng = np.random.default_rng(int(torch.randint(2**62, ())))
        opened = OpenedImage(image)
        box = self._box(opened.width, opened.height, rng)
        pixels = opened.resized(box, height_width(self.size), self.interpolation)
        if rng.random() < self.flip:
            pixels = pixels.flip(2)
        if self.color:
            pixels = (_jittered(pixels / 255, self.color, rng) * 255).round_().to(torch.uint8)
        pixels = in_channels(pixels, self.channels)
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
        # No crop fits an image of extreme shape: take its centre, within `ratio`.
        w, h = min(width, height * self.ratio[1]), min(height, width / self.ratio[0])
        return (width - w) / 2, (height - h) / 2, (width + w) / 2, (height + h) / 2

    def to_dict(self) -> dict[str, Any]:
        """The settings as JSON values, which `transform_from_dict` reads."""
        return {"transform": "train", **dataclasses.asdict(self)}


@dataclass(frozen=True)
class SeededView:
    """A training transform that is determined by the image's content, the number of the view and a seed, independent of
    order and machine. It is used for cached features of augmented views.

    >>> image, transform = np.full((9, 9), 100, np.uint8), TrainTransform(4, color=0.5)
    >>> one, again, other = (SeededView(transform, view)(image) for view in (0, 0, 1))
    >>> torch.equal(one, again), torch.equal(one, other)
    (True, False)
    """

    takes_any_image: ClassVar[bool] = True
    transform: TrainTransform
    view: int
    seed: int = 0

    def __call__(self, image: Source) -> Tensor:
        with broken_image_errors(image):
            source = image if isinstance(image, np.ndarray) else read_encoded(image)  # read once for two uses
        rng = np.random.default_rng([self.seed, self.view, *content(source).encode()])
        try:
            return self.transform(source, rng)
        except BrokenImageError as broken:
            raise BrokenImageError(describe(image), broken.reason) from broken


Transform = EvalTransform | TrainTransform


def transform_from_dict(values: Mapping[str, Any]) -> Transform:
    """The inverse of `to_dict` of either transform, also after a round trip through JSON. Unknown names are errors.

    >>> transform_from_dict(EvalTransform(112, crop=False).to_dict()) == EvalTransform(112, crop=False)
    True
    """
    kind = values.get("transform")
    if kind == "eval":
        return EvalTransform.from_dict(values)
    if kind == "train":
        return transform_from_settings(TrainTransform, "train", values)
    raise InputError(f"transform must be one of eval, train, not {kind!r}")


def _jittered(x: Tensor, strength: float, rng: np.random.Generator) -> Tensor:
    brightness, contrast, saturation = (1 + strength * rng.uniform(-1, 1) for _ in range(3))
    x = (x * brightness).clamp(0, 1)
    x = torch.lerp((x * _GREY).sum(0).mean(), x, contrast).clamp(0, 1)
    return torch.lerp((x * _GREY).sum(0, keepdim=True), x, saturation).clamp(0, 1)


def _shifted(pixels: Tensor, pad: int, fill: Tensor, rng: np.random.Generator) -> Tensor:
    height, width = pixels.shape[1:]
    padded = fill[:, None, None].expand(-1, height + 2 * pad, width + 2 * pad).contiguous()
    padded[:, pad : pad + height, pad : pad + width] = pixels
    top, left = rng.integers(0, 2 * pad + 1, 2).tolist()
    return padded[:, top : top + height, left : left + width]


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
