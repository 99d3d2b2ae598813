"""From an image, whatever its kind, to the tensor that a trunk wants."""

import io
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps
from torch import Tensor
from torch.nn import functional


class Readable(Protocol):
    """An open file, or a place in one."""

    def read(self) -> bytes: ...


ImageLike: TypeAlias = str | os.PathLike[str] | bytes | Readable | Image.Image | NDArray[Any]

Interpolation = Literal["bilinear", "bicubic"]

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
PIXEL_LIMIT = 89_478_485  # where Pillow, too, begins to suspect a decompression bomb: a quarter of a gigabyte of RGB

# What pictures are kept as: not all that Pillow knows, since some of its readers run other programs.
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM", "MPO", "JPEG2000", "AVIF")
_DRAFT_REDUCTION = 2  # a JPEG is decoded small if that leaves at least twice the pixels needed, a side


class BrokenImageError(ValueError):
    """An image that cannot be read; the message names it and says why."""


@dataclass(frozen=True)
class Preprocess:
    """How a trunk wants its images: resized, cropped in the centre, scaled to [0, 1], (x - mean) / std.

    Args:
        size: (height, width) of the result, or one number for both.
        resize: the shorter side before the crop; None squashes the whole image to `size`.
        mean, std: of each channel, in the order of `channels`, for pixels in [0, 1].
        interpolation: "bilinear" or "bicubic", antialiased.
        channels: "RGB", "BGR" (networks ported from Caffe) or "L" (one channel, grey).
        pixel_limit: larger images are refused before they are decoded.

    Called with a path, the bytes of a file, an open file, a Pillow image, or an array (H, W), (H, W, 1 or 3) of uint8,
    it gives a float32 tensor (channels, height, width). EXIF orientation is applied; grey, palette, CMYK and 16-bit
    images are converted; transparent pixels become white.

        >>> import numpy as np
        >>> Preprocess(size=8, resize=10, mean=(0.5,) * 3, std=(0.5,) * 3)(np.full((40, 20, 3), 255, np.uint8)).shape
        torch.Size([3, 8, 8])
    """

    size: int | tuple[int, int] = 224
    resize: int | None = 256
    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD
    interpolation: Interpolation = "bilinear"
    channels: Literal["RGB", "BGR", "L"] = "RGB"
    pixel_limit: int = PIXEL_LIMIT

    def __post_init__(self) -> None:
        height, width = self.height_width
        if height < 1 or width < 1:
            raise ValueError(f"size must be positive, not {self.size}")
        if self.resize is not None and self.resize < max(height, width):
            raise ValueError(f"resize={self.resize} is smaller than the crop {self.size}: the crop would not fit")
        if self.interpolation not in ("bilinear", "bicubic"):
            raise ValueError(f'interpolation must be "bilinear" or "bicubic", not {self.interpolation!r}')
        if self.channels not in ("RGB", "BGR", "L"):
            raise ValueError(f'channels must be "RGB", "BGR" or "L", not {self.channels!r}')
        count = len(self.channels)
        if len(self.mean) != count or len(self.std) != count:
            raise ValueError(f"mean and std need {count} numbers for {self.channels}, not {self.mean} and {self.std}")
        if min(self.std) <= 0:
            raise ValueError(f"std must be positive, not {self.std}")

    @property
    def height_width(self) -> tuple[int, int]:
        """(height, width) of the result."""
        return (self.size, self.size) if isinstance(self.size, int) else (self.size[0], self.size[1])

    def __call__(self, image: ImageLike) -> Tensor:
        height, width = self.height_width
        wanted = self.resize or max(height, width)
        with _opened(image, self.pixel_limit, wanted) as opened:
            upright = _upright(opened, "L" if self.channels == "L" else "RGB")
        pixels = self._crop(upright)
        if self.channels == "BGR":
            pixels = pixels[:, :, ::-1]
        # By whole rows of pixels: numpy is slow where the innermost loop has only three steps.
        scale = np.tile(1 / (255 * np.asarray(self.std, np.float32)), width)
        shift = np.tile(np.asarray(self.mean, np.float32) / np.asarray(self.std, np.float32), width)
        result = np.multiply(pixels.reshape(height, -1), scale, dtype=np.float32)
        result -= shift
        # The channels stay last in memory, as convolutions on a CPU like them.
        return torch.from_numpy(result.reshape(height, width, -1)).permute(2, 0, 1)

    def _crop(self, image: Image.Image) -> NDArray[np.uint8]:
        """Resized, and the middle of it, (height, width, channels)."""
        height, width = self.height_width
        pixels = torch.from_numpy(np.array(image)).reshape(image.height, image.width, -1)
        rows, columns = (height, width) if self.resize is None else _shorter_side(pixels.shape[:2], self.resize)
        if pixels.shape[:2] != (rows, columns):
            # Pillow's result, now and then one level of 255 apart by rounding, and several times as fast.
            batch = pixels.permute(2, 0, 1)[None]
            resized = functional.interpolate(batch, (rows, columns), mode=self.interpolation, antialias=True)
            pixels = resized[0].permute(1, 2, 0)
        top, left = round((rows - height) / 2), round((columns - width) / 2)
        return pixels[top : top + height, left : left + width].numpy()

    def to_json(self) -> dict[str, Any]:
        """What `from_json` reads."""
        return asdict(self)

    @classmethod
    def from_json(cls, description: Mapping[str, Any]) -> "Preprocess":
        """From what `to_json` wrote; an unknown or malformed entry is an error."""
        unknown = set(description) - {field.name for field in fields(cls)}
        if unknown:
            raise ValueError(f"a preprocessing has no {', '.join(sorted(unknown))}")
        values: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in description.items()}
        return cls(**values)


def _shorter_side(size: Sequence[int], wanted: int) -> tuple[int, int]:
    """(height, width) with the shorter side as wanted and the longer one cut down to a whole number."""
    height, width = size
    return (int(wanted * height / width), wanted) if width <= height else (wanted, int(wanted * width / height))


def _opened(image: ImageLike, pixel_limit: int, wanted: int) -> Image.Image:
    """A Pillow image, decoded; a large JPEG at a fraction of its size, which its format allows."""
    if isinstance(image, Image.Image):
        return image.copy()  # the caller's stays open
    if isinstance(image, np.ndarray):
        return _from_array(image)
    name = os.fspath(image) if isinstance(image, (str, os.PathLike)) else "the image"
    try:
        if isinstance(image, (str, os.PathLike)):
            image = Path(image).read_bytes()  # all of it at once: no file is left open if it turns out to be broken
        opened = Image.open(io.BytesIO(image if isinstance(image, bytes) else image.read()), formats=FORMATS)
        if opened.width * opened.height > pixel_limit:
            raise BrokenImageError(
                f"{name} has {opened.width:,} x {opened.height:,} pixels, more than pixel_limit = {pixel_limit:,}"
            )
        opened.draft(None, (wanted * _DRAFT_REDUCTION, wanted * _DRAFT_REDUCTION))
        opened.load()
    except BrokenImageError:
        raise
    except FileNotFoundError:
        raise BrokenImageError(f"{name}: no such file") from None
    except MemoryError:
        raise
    except Exception as error:  # decoders raise many things on bad bytes
        raise BrokenImageError(f"{name} cannot be read: {error}") from error
    return opened


def _from_array(array: NDArray[Any]) -> Image.Image:
    if array.dtype != np.uint8 or array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] not in (1, 3)):
        raise TypeError(
            f"an array must be uint8 (H, W), (H, W, 1) or (H, W, 3), not {array.dtype} {array.shape}: "
            "tensors that are preprocessed already go to the model as one tensor (N, C, H, W)"
        )
    return Image.fromarray(array[:, :, 0] if array.ndim == 3 and array.shape[2] == 1 else array)


def _upright(image: Image.Image, mode: str) -> Image.Image:
    """As it is meant to be seen, in the mode."""
    image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I") or image.mode == "F":  # convert() would clip, not scale
        image = _eight_bits(image)
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image if image.mode == mode else image.convert(mode)


def _eight_bits(image: Image.Image) -> Image.Image:
    """The upper eight of sixteen bits; of real numbers, those in [0, 1] scaled."""
    values = np.asarray(image).astype(np.float64)
    if image.mode == "F":
        values = values * 255 if values.size and np.nanmax(values) <= 1 else values
    elif image.mode.startswith("I;16") or (values.size and values.max() > 255):
        values = np.floor(values / 256)
    return Image.fromarray(np.nan_to_num(values).clip(0, 255).astype(np.uint8))
