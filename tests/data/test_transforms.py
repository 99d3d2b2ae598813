"""Transforms of training images: chance against its generator, and the way through JSON."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from nearfar.data import BrokenImageError, EvalTransform, SeededView, TrainTransform, transform_from_dict
from tests.data.making import encoded, image
from tests.imaging.pictures import photograph

PLAIN = {"mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0)}


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
        (
            lambda: transform_from_dict({"transform": "eval", "sise": 3}),
            "the eval transform has no setting sise: it has channels",
        ),
        (lambda: transform_from_dict({"size": 3}), "transform must be one of eval, train, not None"),
        (lambda: TrainTransform(0), "size=0 must be positive"),
        (lambda: TrainTransform(std=(0.0, 1.0, 1.0)), "std=.* must be positive"),
        (lambda: TrainTransform(mean=(0.0, 1.0)), "mean=.* must have 3 values"),
        (lambda: TrainTransform(interpolation="nearest"), 'must be "bilinear" or "bicubic", not \'nearest\''),
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


def test_training_images_are_like_those_of_evaluation() -> None:
    evaluation = EvalTransform((20, 16), None, False, (0.1, 0.2, 0.3), (0.5, 0.6, 0.7), "bilinear", "BGR")
    train = TrainTransform.like(evaluation, flip=0.0)
    assert train.scale is None and torch.equal(train(photograph()), evaluation(photograph()))
    assert TrainTransform.like(evaluation, scale=(0.5, 1.0)).scale == (0.5, 1.0)
    assert TrainTransform.like(EvalTransform(32, 40)).scale == TrainTransform().scale
    grey = EvalTransform(20, 24, mean=(0.5,), std=(0.5,), channels="L")
    x = TrainTransform.like(grey, color=0.3, pad=2, erase=1.0)(photograph(), np.random.default_rng(0))
    assert x.shape == (1, 20, 20)


def test_what_is_left_open_is_filled_in_the_order_of_the_channels() -> None:
    white = Image.new("RGB", (20, 20), "white")
    mean = (10 / 255, 20 / 255, 30 / 255)
    x = TrainTransform(20, scale=None, erase=1.0, flip=0, mean=mean, channels="BGR").pixels(white)
    assert [channel.unique().tolist() for channel in x] == [[10, 255], [20, 255], [30, 255]]


def test_a_seeded_view_depends_on_the_content_the_view_and_the_seed(tmp_path: Path) -> None:
    transform = TrainTransform(32, color=0.5, erase=1.0)
    path, copy = image(tmp_path / "a.png", 90), image(tmp_path / "b.png", 90)
    x = SeededView(transform, 1, seed=2)(path)
    for same in (str(path), copy, path.read_bytes()):
        assert torch.equal(SeededView(transform, 1, seed=2)(same), x)
    assert not torch.equal(SeededView(transform, 0, seed=2)(path), x)
    assert not torch.equal(SeededView(transform, 1, seed=3)(path), x)
    path.write_bytes(path.read_bytes()[:40])
    for broken, reason in ((path, r"a\.png: "), (tmp_path / "gone.png", r"gone\.png: no such file")):
        with pytest.raises(BrokenImageError, match=reason):
            SeededView(transform, 0)(broken)
