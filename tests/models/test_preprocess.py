import io
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from nearfar.models import BrokenImageError, Preprocess

RAW = {"mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0)}


def photograph(height: int = 61, width: int = 47, seed: int = 0) -> np.ndarray:
    """Smooth enough that JPEG keeps it, with no symmetry."""
    noise = np.random.default_rng(seed).integers(0, 256, (height // 8 + 2, width // 8 + 2, 3), np.uint8)
    return np.asarray(Image.fromarray(noise).resize((width, height), Image.Resampling.BICUBIC))


def encoded(image: Image.Image, kind: str = "png", **options) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize(("height", "width"), [(61, 47), (47, 61), (24, 24), (30, 101)])
def test_resize_crop_and_normalise(height, width, interpolation):
    """The plain way: resize all of it, cut the middle out, one pixel at a time."""
    pixels = photograph(height, width)
    shorter = min(height, width)
    whole = Image.fromarray(pixels).resize(
        (int(24 * width / shorter), int(24 * height / shorter)), Image.Resampling[interpolation.upper()]
    )
    left, top = round((whole.width - 16) / 2), round((whole.height - 20) / 2)
    mean, std = (0.1, 0.2, 0.3), (0.5, 0.6, 0.7)
    expected = np.empty((3, 20, 16))
    for c, y, x in np.ndindex(expected.shape):
        expected[c, y, x] = (whole.getpixel((left + x, top + y))[c] / 255 - mean[c]) / std[c]
    got = Preprocess((20, 16), 24, mean, std, interpolation)(pixels)
    assert got.dtype == torch.float32
    # another resizing may round a pixel the other way
    assert np.abs(got.numpy() - expected).max() <= 1.001 / 255 / min(std)
    assert np.abs(got.numpy() - expected).mean() < 0.1 / 255


def test_squash():
    pixels = photograph()
    expected = np.asarray(Image.fromarray(pixels).resize((8, 12), Image.Resampling.BILINEAR)) / 255
    got = Preprocess((12, 8), None, **RAW)(pixels)
    np.testing.assert_allclose(got.permute(1, 2, 0), expected, atol=1.001 / 255)


def test_every_source_gives_the_same(tmp_path: Path):
    pixels = photograph()
    data = encoded(Image.fromarray(pixels))
    path = tmp_path / "a.png"
    path.write_bytes(data)
    preprocess = Preprocess(16, 20, **RAW)
    expected = preprocess(pixels)
    with path.open("rb") as file:
        for source in (path, str(path), data, file, Image.fromarray(pixels)):
            assert torch.equal(preprocess(source), expected)


def test_the_callers_image_stays_open():
    image = Image.fromarray(photograph())
    Preprocess(16, 20)(image)
    image.getpixel((0, 0))


def test_bgr_and_grey():
    pixels = photograph()
    rgb = Preprocess(16, 20, **RAW)(pixels)
    bgr = Preprocess(16, 20, (0.0, 0.0, 0.25), (1.0, 1.0, 2.0), channels="BGR")(pixels)
    assert torch.equal(bgr[0], rgb[2])
    torch.testing.assert_close(bgr[2], (rgb[0] - 0.25) / 2)
    grey = Preprocess(16, 20, (0.0,), (1.0,), channels="L")(pixels)
    assert grey.shape == (1, 16, 16)
    weights = torch.tensor([0.299, 0.587, 0.114])[:, None, None]  # ITU-R 601
    torch.testing.assert_close(grey[0], (weights * rgb).sum(0), atol=2 / 255, rtol=0)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation(orientation):
    upright = photograph(40, 24)
    stored = {
        1: upright,
        2: upright[:, ::-1],
        3: upright[::-1, ::-1],
        4: upright[::-1],
        5: upright.transpose(1, 0, 2),
        6: upright.transpose(1, 0, 2)[::-1],
        7: upright.transpose(1, 0, 2)[::-1, ::-1],
        8: upright.transpose(1, 0, 2)[:, ::-1],
    }[orientation]
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encoded(Image.fromarray(np.ascontiguousarray(stored)), exif=exif.tobytes())
    preprocess = Preprocess(16, 20, **RAW)
    assert torch.equal(preprocess(data), preprocess(upright))


def test_modes():
    preprocess = Preprocess((4, 4), None, **RAW)
    grey = np.full((4, 4), 100, np.uint8)
    expected = torch.full((3, 4, 4), 100 / 255)
    for image in (
        Image.fromarray(grey),
        Image.fromarray(grey.astype(np.uint16) * 256 + 7),
        Image.fromarray(np.full((4, 4), 100 / 255, np.float32)),
        Image.fromarray(grey).convert("P"),
        Image.fromarray(np.stack([grey] * 3, 2)).convert("CMYK"),
    ):
        torch.testing.assert_close(preprocess(image), expected, atol=1.01 / 255, rtol=0)
    torch.testing.assert_close(preprocess(grey), expected)
    torch.testing.assert_close(preprocess(grey[:, :, None]), expected)
    seen_through = Image.new("RGBA", (4, 4), (0, 0, 0, 0))
    assert torch.equal(preprocess(seen_through), torch.ones(3, 4, 4))
    assert torch.equal(preprocess(encoded(seen_through, "png")), torch.ones(3, 4, 4))


def test_large_jpegs_are_decoded_small(monkeypatch):
    data = encoded(Image.fromarray(photograph(512, 640)), "jpeg", quality=95)
    seen = []
    original = Preprocess._crop
    monkeypatch.setattr(Preprocess, "_crop", lambda self, image: seen.append(image.size) or original(self, image))
    small = Preprocess(28, 32, **RAW)(data)
    assert seen == [(80, 64)]  # an eighth: still twice what is needed
    whole = Preprocess(28, 32, **RAW)(Image.open(io.BytesIO(data)))
    assert (small - whole).abs().mean() < 3 / 255


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "cannot be read"),
        (b"not an image", "cannot be read"),
        (encoded(Image.fromarray(photograph()), "jpeg")[:300], "cannot be read"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "cannot be read"),  # its reader runs a program
    ],
)
def test_broken_images(tmp_path, content, message):
    path = tmp_path / "broken.jpg"
    path.write_bytes(content)
    with pytest.raises(BrokenImageError, match=rf"broken\.jpg {message}"):
        Preprocess()(path)


def test_missing_and_huge(tmp_path):
    with pytest.raises(BrokenImageError, match=r"nowhere\.jpg: no such file"):
        Preprocess()(tmp_path / "nowhere.jpg")
    data = encoded(Image.new("L", (101, 100)))
    with pytest.raises(BrokenImageError, match=r"101 x 100 pixels, more than pixel_limit = 10,000"):
        Preprocess(pixel_limit=10_000)(data)
    Preprocess(pixel_limit=10_100)(data)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": 0}, "size must be positive"),
        ({"size": 224, "resize": 200}, "the crop would not fit"),
        ({"interpolation": "cubic"}, "interpolation must be"),
        ({"channels": "RGBA"}, "channels must be"),
        ({"mean": (0.5,)}, "mean and std need 3 numbers for RGB"),
        ({"std": (1.0, 0.0, 1.0)}, "std must be positive"),
    ],
)
def test_bad_settings(options, message):
    with pytest.raises(ValueError, match=message):
        Preprocess(**options)


def test_bad_array():
    with pytest.raises(TypeError, match="an array must be uint8"):
        Preprocess()(np.zeros((8, 8, 3), np.float32))


def test_json():
    preprocess = Preprocess((20, 16), None, (0.1, 0.2, 0.3), (0.5, 0.5, 0.5), "bicubic", "BGR", 1000)
    import json

    assert Preprocess.from_json(json.loads(json.dumps(preprocess.to_json()))) == preprocess
    with pytest.raises(ValueError, match="has no crop"):
        Preprocess.from_json({"crop": 3})
