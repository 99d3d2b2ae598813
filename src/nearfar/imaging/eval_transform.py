"""The deterministic transform used for embedding and evaluation."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from torch import Tensor

from nearfar.errors import InputError
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
from nearfar.imaging.sources import ImageLike

Settings = TypeVar("Settings")


@dataclass(frozen=True)
class EvalTransform:
    """Resize the shorter side to `resize`, crop the centre to `size`, normalise.

    Args:
        size: side of the square output, or (height, width).
        resize: length of the shorter side before the crop; None takes the largest crop of the output's aspect ratio.
        crop: False stretches the whole image to `size` instead, as is usual for faces and persons.
        mean, std: per channel, in the order of `channels`, for values from 0 to 1.
        interpolation: "bicubic" or "bilinear", both antialiased.
        channels: "RGB", "BGR" (networks ported from Caffe) or "L" (one grey channel).

    The call takes a path, encoded bytes, an open file, a `Span`, pixels (H, W[, 1 or 3]) or a Pillow image, and returns
    float32 (C, height, width). `pixels` and `normalise` are its two stages: worker processes run the first and
    send bytes. The crop is aligned to whole pixels of the image.
    """

    takes_any_image: ClassVar[bool] = True
    size: Size = 224
    resize: int | None = 256
    crop: bool = True
    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD
    interpolation: Interpolation = "bicubic"
    channels: Channels = "RGB"

    def __post_init__(self) -> None:
        lists_to_tuples(self)
        check_output(self.size, self.mean, self.std, self.interpolation, self.channels)
        if self.resize is not None and self.crop and self.resize < max(self.height_width):
            raise InputError(f"resize={self.resize} is smaller than size={self.size}: the crop would leave the image")

    @property
    def height_width(self) -> tuple[int, int]:
        """Height and width of the output."""
        return height_width(self.size)

    def __call__(self, image: ImageLike) -> Tensor:
        return self.normalise(self.pixels(image))

    def pixels(self, image: ImageLike) -> Tensor:
        """Crop and resize to uint8 (C, height, width)."""
        opened = OpenedImage(image)
        box = self._box(opened.width, opened.height)
        return in_channels(opened.resized(box, self.height_width, self.interpolation), self.channels)

    def normalise(self, pixels: Tensor) -> Tensor:
        """(pixels / 255 - mean) / std for uint8 (..., C, height, width)."""
        return normalised(pixels, self.mean, self.std)

    def _box(self, width: int, height: int) -> Box:
        if not self.crop:
            return 0, 0, width, height
        out_height, out_width = self.height_width
        scale = min(width / out_width, height / out_height) if self.resize is None else min(width, height) / self.resize
        w, h = out_width * scale, out_height * scale
        return (width - w) / 2, (height - h) / 2, (width + w) / 2, (height + h) / 2

    def to_dict(self) -> dict[str, Any]:
        """The settings as JSON values, which `from_dict` reads."""
        return {"transform": "eval", **dataclasses.asdict(self)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "EvalTransform":
        """The inverse of `to_dict`, also after a round trip through JSON. Unknown names are errors."""
        return transform_from_settings(cls, "eval", values)


def lists_to_tuples(settings: Any) -> None:
    """Replace the lists of a frozen dataclass by tuples, which JSON does not have."""
    for name, value in vars(settings).items():
        if isinstance(value, list):
            object.__setattr__(settings, name, tuple(value))


def transform_from_settings(settings: type[Settings], kind: str, values: Mapping[str, Any]) -> Settings:
    """A transform from the dict of its settings, whose key "transform" must be `kind`."""
    options = dict(values)
    if (actual := options.pop("transform", None)) != kind:
        raise InputError(f"transform must be {kind!r}, not {actual!r}")
    known = {field.name for field in dataclasses.fields(settings)}  # type: ignore[arg-type]
    if unknown := set(options) - known:
        raise InputError(
            f"the {kind} transform has no setting {', '.join(sorted(unknown))}: it has {', '.join(sorted(known))}"
        )
    return settings(**options)
