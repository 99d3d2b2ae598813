"""The evaluation transform: geometry against Pillow's own resampling, channels, and the way through JSON."""

import io
import json

import numpy as np
import pytest
import torch
from PIL import Image

from nearfar.imaging import EvalTransform
from tests.imaging.pictures import levels, photograph

PLAIN = {"mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0)}


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("size", [32, 64, (48, 24)])
def test_the_centre_crop_is_pillows(interpolation: str, size: int | tuple[int, int]) -> None:
    picture = photograph()
    x = EvalTransform(size, 64, interpolation=interpolation, **PLAIN)(picture)
    height, width = (size, size) if isinstance(size, int) else size
    method = getattr(Image.Resampling, interpolation.upper())
    scaled = picture.resize((80, 64), method)
    left, top = (80 - width) / 2, (64 - height) / 2
    expected = np.asarray(scaled.crop((round(left), round(top), round(left) + width, round(top) + height)))
    assert x.dtype == torch.float32 and x.shape == (3, height, width) and x.is_contiguous()
    difference = np.abs(levels(x) - expected)
    assert difference.mean() < 1.0 and difference.max() < 12


def test_without_crop_the_whole_is_stretched() -> None:
    picture = photograph()
    x = EvalTransform((20, 50), crop=False, **PLAIN)(picture)
    expected = np.asarray(picture.resize((50, 20), Image.Resampling.BICUBIC))
    assert np.abs(levels(x) - expected).max() <= 2


def test_an_image_of_the_right_size_is_only_normalised() -> None:
    picture = photograph(32, 32)
    mean, std = (0.1, 0.2, 0.3), (0.5, 0.25, 0.125)
    x = EvalTransform(32, None, mean=mean, std=std)(picture)
    expected = (np.asarray(picture) / 255 - mean) / std
    np.testing.assert_allclose(x.permute(1, 2, 0).numpy(), expected, atol=1e-5)


def test_large_jpegs_are_decoded_small_with_the_same_result() -> None:
    stream = io.BytesIO()
    photograph().resize((1000, 800), Image.Resampling.BICUBIC).save(stream, "JPEG", quality=95)
    transform = EvalTransform(64, 72, **PLAIN)
    small, whole = transform(stream.getvalue()), transform(Image.open(io.BytesIO(stream.getvalue())))
    assert np.abs(levels(small) - levels(whole)).mean() < 2


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize(("width", "height"), [(47, 61), (61, 47), (24, 24), (101, 30), (13, 90)])
def test_the_crop_is_of_whole_pixels_and_resized_as_pillow_does(interpolation: str, width: int, height: int) -> None:
    """At most half a pixel from the crop of the resized image, and then Pillow's result but for rounding."""
    noise = np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8)
    picture = Image.fromarray(noise)
    x = EvalTransform((20, 16), 24, interpolation=interpolation, **PLAIN)(picture)
    per_pixel = min(width, height) / 24
    left, top = round((width - 16 * per_pixel) / 2), round((height - 20 * per_pixel) / 2)
    box = left, top, left + round(16 * per_pixel), top + round(20 * per_pixel)
    expected = picture.crop(box).resize((16, 20), getattr(Image.Resampling, interpolation.upper()))
    difference = np.abs(levels(x) - np.asarray(expected))
    assert difference.max() <= 1 and difference.mean() < 0.1


@pytest.mark.parametrize("width", [24, 25, 26, 27, 31])
def test_what_needs_no_resizing_is_cut_where_torchvision_cuts_it(width: int) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (24, width, 3), np.uint8)
    left = int(round((width - 16) / 2.0))  # noqa: RUF046, its formula
    x = EvalTransform(16, 24, **PLAIN)(noise)
    assert np.array_equal(levels(x), noise[4:20, left : left + 16])


def test_channels() -> None:
    picture = photograph()
    rgb = EvalTransform(16, 20, **PLAIN)(picture)
    bgr = EvalTransform(16, 20, mean=(0.0, 0.0, 0.25), std=(1.0, 1.0, 2.0), channels="BGR")(picture)
    assert torch.equal(bgr[:2], rgb[[2, 1]])
    torch.testing.assert_close(bgr[2], (rgb[0] - 0.25) / 2)
    grey = EvalTransform(16, 20, mean=(0.0,), std=(1.0,), channels="L")(picture)
    expected = Image.fromarray(levels(rgb).astype(np.uint8)).convert("L")
    assert grey.shape == (1, 16, 16) and np.array_equal(levels(grey)[:, :, 0], np.asarray(expected))


def test_a_batch_is_normalised_as_its_images_are() -> None:
    transform = EvalTransform(8, 10, std=(0.1, 0.2, 0.3))
    pictures = [photograph(30, 20), photograph(20, 40)]
    batch = transform.normalise(torch.stack([transform.pixels(picture) for picture in pictures]))
    assert torch.equal(batch, torch.stack([transform(picture) for picture in pictures]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": 0, "resize": None}, "size=0 must be positive"),
        ({"size": (1, 2, 3)}, r"must be one number or \(height, width\)"),
        ({"size": 224, "resize": 200}, "resize=200 is smaller than size=224"),
        ({"size": (256, 128), "resize": 200}, "the crop would leave the image"),
        ({"interpolation": "cubic"}, 'interpolation must be "bilinear" or "bicubic", not \'cubic\''),
        ({"channels": "RGBA"}, 'channels must be "RGB", "BGR" or "L", not \'RGBA\''),
        ({"mean": (0.5,)}, r"mean=.* must have 3 values, one for each channel of RGB"),
        ({"channels": "L"}, r"mean=.* must have 1 values"),
        ({"std": (1.0, 0.0, 1.0)}, "std=.* must be positive"),
    ],
)
def test_what_is_wrong_is_said(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        EvalTransform(**options)


def test_the_way_through_json() -> None:
    transform = EvalTransform((20, 16), None, False, (0.1, 0.2, 0.3), (0.5, 0.5, 0.5), "bilinear", "BGR")
    again = EvalTransform.from_dict(json.loads(json.dumps(transform.to_dict())))
    assert again == transform and hash(again) == hash(transform)
    with pytest.raises(ValueError, match="the eval transform has no setting sise: it has channels, crop"):
        EvalTransform.from_dict({"transform": "eval", "sise": 3})
    with pytest.raises(ValueError, match="transform must be 'eval', not None"):
        EvalTransform.from_dict({"size": 3})
