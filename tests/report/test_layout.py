"""The flat map and the small pictures."""

import base64
import io
import sys
import types

import numpy as np
import pytest
from PIL import Image

from nearfar.report import layout, thumbnails


def blobs(classes: int, each: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(classes, 16))
    x = np.repeat(centres, each, 0) + 0.1 * rng.normal(size=(classes * each, 16))
    return x.astype(np.float32), np.repeat(np.arange(classes), each)


def test_neighbours_stay_neighbours() -> None:
    x, labels = blobs(5, 20)
    places, method = layout.flat(x, 0)
    assert method == "t-SNE"
    np.testing.assert_allclose([places.min(0), places.max(0)], [[0, 0], [1, 1]])
    distance = np.linalg.norm(places[:, None] - places[None], axis=2) + 9 * np.eye(len(x))
    assert (labels[distance.argmin(1)] == labels).mean() > 0.98


def test_the_same_embeddings_give_the_same_map() -> None:
    x, _ = blobs(3, 10)
    np.testing.assert_array_equal(layout.flat(x, 1)[0], layout.flat(x, 1)[0])


@pytest.mark.parametrize("x", [np.ones((9, 4)), np.zeros((9, 4)), np.arange(1, 10.0)[:, None]])
def test_embeddings_that_have_collapsed_have_a_map_of_numbers(x: np.ndarray) -> None:
    places, _ = layout.flat(x.astype(np.float32), 0)
    assert np.isfinite(places).all()


def test_too_few_make_no_map() -> None:
    with pytest.raises(ValueError, match="7 embeddings are too few for a map: give at least 8"):
        layout.flat(np.eye(7, dtype=np.float32), 0)


def test_umap_is_preferred_where_it_is_installed(monkeypatch) -> None:
    """With a stand-in: what is handed over, and what is made of the answer."""
    seen = {}

    class UMAP:
        def __init__(self, **options):
            seen.update(options)

        def fit_transform(self, x):
            seen["lengths"] = np.linalg.norm(x, axis=1)
            return np.stack([np.arange(len(x)), np.zeros(len(x))], 1)

    module = types.ModuleType("umap")
    module.UMAP = UMAP  # type: ignore[attr-defined]
    module.__spec__ = types.SimpleNamespace(name="umap")  # type: ignore[assignment]
    monkeypatch.setitem(sys.modules, "umap", module)
    places, method = layout.flat(3 * np.eye(9, dtype=np.float32), 5)
    assert method == "UMAP"
    assert (seen["random_state"], seen["n_neighbors"], seen["metric"]) == (5, 8, "cosine")
    np.testing.assert_allclose(seen["lengths"], 1, rtol=1e-6)
    np.testing.assert_allclose(places[:, 0], np.arange(9) / 8)
    assert (places[:, 1] == 0).all()


def test_a_sample_keeps_classes_together() -> None:
    labels = np.repeat(np.arange(600), 16)
    rows = layout.sample(labels, 0)
    assert len(rows) == 1000 == len(set(rows.tolist()))
    counts = np.bincount(labels[rows])
    assert sorted(counts[counts > 0])[:2] == [8, 16]  # all but the last drawn are whole
    assert layout.sample(labels, 0).tolist() == rows.tolist() != layout.sample(labels, 1).tolist()


def test_a_sample_of_few_classes_is_as_large() -> None:
    labels = np.repeat(np.arange(4), 5000)
    assert np.bincount(labels[layout.sample(labels, 0)]).tolist() == [250] * 4
    assert layout.sample(np.array([3, 3, 1]), 0).tolist() == [0, 1, 2]
    assert layout.sample(np.zeros(0, np.int64), 0).tolist() == []


def opened(address: str) -> Image.Image:
    head, _, content = address.partition(",")
    assert head == "data:image/webp;base64"
    return Image.open(io.BytesIO(base64.b64decode(content)))


def test_thumbnails_are_small_and_keep_their_shape() -> None:
    tall = thumbnails.thumbnail(np.full((400, 200, 3), (200, 30, 60), np.uint8))
    assert tall is not None
    image = opened(tall).convert("RGB")
    assert image.size == (48, 96)
    np.testing.assert_allclose(image.getpixel((20, 50)), (200, 30, 60), atol=6)
    little = thumbnails.thumbnail(np.zeros((20, 30), np.uint8))
    assert little is not None and opened(little).size == (30, 20)


def test_thumbnails_of_what_cannot_be_read() -> None:
    assert thumbnails.thumbnail("no/such/file.jpg") is None
    assert thumbnails.thumbnail(b"not a picture") is None


def test_thumbnails_turn_upright(tmp_path) -> None:
    image = Image.new("RGB", (40, 20))
    exif = image.getexif()
    exif[0x0112] = 6
    image.save(tmp_path / "turned.jpg", exif=exif)
    found = thumbnails.thumbnail(tmp_path / "turned.jpg")
    assert found is not None and opened(found).size == (20, 40)


def test_a_sheet_has_a_square_for_each() -> None:
    colours = [(250, 20, 20), (20, 200, 20), None, (20, 20, 250)]
    sources = [b"broken" if c is None else np.full((12, 24, 3), c, np.uint8) for c in colours]
    image = opened(thumbnails.sheet(sources, 24, 2)).convert("RGB")
    assert image.size == (48, 48)
    centres = [image.getpixel((24 * (i % 2) + 12, 24 * (i // 2) + 12)) for i in range(4)]
    for found, colour in zip(centres, colours, strict=True):
        np.testing.assert_allclose(found, colour or (128, 136, 144), atol=25)
