"""Transforms: geometry against Pillow's own resampling, chance against its generator, and the way through JSON."""

import io
import json
import math

import numpy as np
import pytest
import torch
from PIL import Image

from nearfar.data import BrokenImageError, EvalTransform, TrainTransform, transform_from_dict
from nearfar.data.foreign import call_foreign
from tests.data.making import encoded

PLAIN = {"mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0)}


def photograph(width: int = 100, height: int = 80) -> Image.Image:
    """Smooth, so that small differences of place make small differences of value."""
    y, x = np.mgrid[:height, :width]
    values = np.stack([x * 255 / width, y * 255 / height, 127 + 100 * np.sin(x / 9) * np.cos(y / 7)], 2)
    return Image.fromarray(values.astype(np.uint8))


def levels(x: torch.Tensor) -> np.ndarray:
    return (x.permute(1, 2, 0).numpy() * 255).round()


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


@pytest.mark.parametrize("size", [(1, 300), (300, 1), (1, 1), (2, 3)])
def test_odd_shapes_pass(size: tuple[int, int]) -> None:
    picture = Image.new("RGB", size, "red")
    for transform in (EvalTransform(16, 20), EvalTransform(16, None), TrainTransform(16, erase=1.0, pad=2, color=0.3)):
        x = transform(picture)
        assert x.shape == (3, 16, 16) and torch.isfinite(x).all()


def test_what_is_random_comes_from_the_generator() -> None:
    transform = TrainTransform(24, color=0.4, erase=0.5, pad=3)
    picture = photograph()
    one, again, other = (transform(picture, np.random.default_rng(seed)) for seed in (1, 1, 2))
    assert torch.equal(one, again) and not torch.equal(one, other)
    torch.manual_seed(5)
    free = transform(picture)
    torch.manual_seed(5)
    assert torch.equal(free, transform(picture))
    assert not torch.equal(free, transform(picture))


def test_crops_have_the_area_and_shape_asked_for() -> None:
    transform = TrainTransform(8, scale=(0.2, 0.5), ratio=(0.5, 2.0))
    rng = np.random.default_rng(0)
    areas, ratios, places = [], [], []
    for _ in range(500):
        left, top, right, bottom = transform._box(200, 100, rng)
        assert 0 <= left < right <= 200 and 0 <= top < bottom <= 100
        areas.append((right - left) * (bottom - top) / 20_000)
        ratios.append((right - left) / (bottom - top))
        places.append((left + right) / 2)
    assert 0.2 <= min(areas) < 0.25 and 0.45 < max(areas) <= 0.5
    assert 0.5 <= min(ratios) < 0.6 and 1.7 < max(ratios) <= 2.0
    assert min(places) < 60 and max(places) > 140
    long = transform._box(1000, 10, rng)  # no crop of a fifth of the area fits that ratio
    assert math.isclose((long[2] - long[0]) / (long[3] - long[1]), 2.0)


def test_flips_are_mirror_images_half_of_the_time() -> None:
    picture = photograph(24, 24)
    plain = TrainTransform(24, scale=None, flip=0.0)(picture)
    assert torch.equal(TrainTransform(24, scale=None, flip=1.0)(picture), plain.flip(2))
    rng = np.random.default_rng(0)
    transform = TrainTransform(24, scale=None, flip=0.5)
    assert 70 < sum(torch.equal(transform(picture, rng), plain) for _ in range(200)) < 130


def test_erasing_and_padding_fill_with_the_mean() -> None:
    white = Image.new("RGB", (40, 40), "white")
    rng = np.random.default_rng(0)
    fractions = []
    for _ in range(100):
        x = TrainTransform(40, scale=None, erase=1.0, flip=0)(white, rng)
        assert len(x[0].unique()) == 2 and x[:, x[0] < 1].abs().max() < 0.01
        fractions.append((x[0] < 1).float().mean().item())
    assert min(fractions) > 0.015 and 0.25 < max(fractions) < 0.36
    shifts = set()
    for _ in range(200):
        filled = TrainTransform(40, scale=None, pad=5, flip=0)(white, rng)[0].abs() < 0.01
        rows, columns = filled.all(1), filled.all(0)
        assert rows.sum() <= 5 and columns.sum() <= 5 and filled.sum() == 1600 - (~rows).sum() * (~columns).sum()
        shifts.add((int(rows.sum()), int(columns.sum()), bool(rows[0]), bool(columns[0])))
    assert len(shifts) > 60


def test_colour_jitter_keeps_grey_grey_and_strength_0_changes_nothing() -> None:
    grey = Image.new("RGB", (8, 8), (100, 100, 100))
    rng = np.random.default_rng(0)
    values = [TrainTransform(8, scale=None, color=0.5, **PLAIN)(grey, rng) for _ in range(50)]
    for x in values:
        torch.testing.assert_close(x[0], x[1])
    brightness = [x.mean().item() for x in values]
    assert min(brightness) >= 100 / 255 * 0.5 - 0.01 and max(brightness) <= 100 / 255 * 1.5 + 0.01
    assert max(brightness) - min(brightness) > 0.2


@pytest.mark.parametrize(
    "transform",
    [
        EvalTransform(),
        EvalTransform((256, 128), None, crop=False, interpolation="bicubic"),
        TrainTransform((112, 96), None, flip=0.3, color=0.1, erase=0.2, pad=4),
        TrainTransform(scale=(0.5, 0.9)),
    ],
)
def test_transforms_survive_json(transform: EvalTransform | TrainTransform) -> None:
    again = transform_from_dict(json.loads(json.dumps(transform.to_dict())))
    assert again == transform and hash(again) == hash(transform)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: transform_from_dict({"transform": "eval", "sise": 3}), "a eval transform has no sise: it has crop"),
        (lambda: transform_from_dict({"size": 3}), "transform must be one of eval, train, not None"),
        (lambda: EvalTransform(224, 200), "resize=200 is smaller than size=224"),
        (lambda: EvalTransform(0, None), "size=0 must be positive"),
        (lambda: EvalTransform(std=(0.0, 1.0, 1.0)), "std=.* must be positive"),
        (lambda: EvalTransform(mean=(0.0, 1.0)), "mean=.* must have 3 values"),
        (lambda: EvalTransform(interpolation="nearest"), 'must be "bilinear" or "bicubic", not \'nearest\''),
        (lambda: TrainTransform(scale=(0.9, 0.1)), "scale=.*the smaller first"),
        (lambda: TrainTransform(ratio=(0.0, 1.0)), "ratio=.*two positive numbers"),
        (lambda: TrainTransform(flip=1.5), "flip=1.5 must be from 0 to 1"),
        (lambda: TrainTransform(pad=-1), "pad=-1 must not be negative"),
    ],
)
def test_what_is_wrong_is_said(make: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_broken_images_are_broken_here_too() -> None:
    for transform in (EvalTransform(), TrainTransform()):
        with pytest.raises(BrokenImageError, match="truncated"):
            transform(encoded(5, (64, 64))[:-40])


class Foreign:
    """Stands for a transform of another library."""

    def __init__(self, result: object):
        self.result, self.given = result, None

    def __call__(self, *args: object, **options: object) -> object:
        self.given = args, options
        return self.result


def test_other_libraries_are_given_what_they_take() -> None:
    picture = photograph(6, 4)
    torchvision_like = Foreign(torch.zeros(3, 2, 2))
    assert call_foreign(torchvision_like, picture).shape == (3, 2, 2)
    assert torchvision_like.given == ((picture,), {})

    albumentations_like = type("Compose", (Foreign,), {"__module__": "albumentations.core"})(
        {"image": np.full((2, 5, 3), 51, np.uint8)}
    )
    x = call_foreign(albumentations_like, picture)
    assert x.shape == (3, 2, 5) and torch.allclose(x, torch.tensor(0.2))
    assert np.array_equal(albumentations_like.given[1]["image"], np.asarray(picture))

    kornia_like = type("Flip", (Foreign,), {"__module__": "kornia.augmentation"})(torch.ones(1, 3, 4, 4))
    assert call_foreign(kornia_like, picture).shape == (3, 4, 4)
    given = kornia_like.given[0][0]
    assert given.shape == (1, 3, 4, 6) and given.dtype == torch.float32 and given.max() <= 1

    assert call_foreign(lambda image: image.convert("L"), picture).shape == (1, 4, 6)
    with pytest.raises(TypeError, match=r"returned Tensor of shape \(2,\): it must return a tensor"):
        call_foreign(lambda image: torch.zeros(2), picture)
