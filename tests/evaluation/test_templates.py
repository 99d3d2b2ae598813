"""Template pooling against loops over templates and media."""

import numpy as np
import pytest
import torch

from nearfar.evaluation import pool_templates


def naive(x: np.ndarray, templates: list, media: list) -> dict:
    pooled = {}
    for name in set(templates):
        total = np.zeros(x.shape[1])
        for medium in {m for t, m in zip(templates, media, strict=True) if t == name}:
            rows = [i for i in range(len(x)) if templates[i] == name and media[i] == medium]
            total += np.mean([x[i] for i in rows], axis=0)
        pooled[name] = total / np.linalg.norm(total)
    return pooled


@pytest.mark.parametrize("keep_norms", [True, False])
@pytest.mark.parametrize("extras", [True, False])
def test_mean_per_medium_then_sum(keep_norms: bool, extras: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nearfar.evaluation.templates.ROWS_AT_A_TIME", 7)
    rng = np.random.default_rng(0)
    x, flipped = rng.standard_normal((2, 40, 6))
    templates = [f"t{i}" for i in rng.integers(0, 5, 40)]
    media = rng.integers(0, 4, 40).tolist()
    quality = rng.random(40)
    image = x + flipped if extras else x
    if not keep_norms:
        image = image / np.linalg.norm(image, axis=1, keepdims=True)
    if extras:
        image = image * quality[:, None]
    wished = naive(image, templates, media)
    options = {"flipped": flipped, "quality": quality} if extras else {}
    found = pool_templates(torch.from_numpy(x), templates, media, keep_norms=keep_norms, **options)
    assert found.ids.tolist() == sorted(wished)
    np.testing.assert_allclose(found.embeddings, [wished[name] for name in sorted(wished)], atol=1e-6)


def test_frames_of_one_video_count_once() -> None:
    x = np.array([[1, 0], [1, 0], [1, 0], [0, 1]], np.float32)
    found = pool_templates(x, [7, 7, 7, 7], [1, 1, 1, 2])
    np.testing.assert_allclose(found.embeddings, [[0.5**0.5, 0.5**0.5]], atol=1e-7)


@pytest.mark.parametrize("keep_norms", [True, False])
def test_very_short_and_very_long_vectors(keep_norms: bool) -> None:
    """Which float32 holds, but not the squares of, nor the sum of a picture and its mirror image."""
    x, flipped = np.eye(3, dtype=np.float32)[[0, 1]], np.eye(3, dtype=np.float32)[[0, 2]]
    wished = pool_templates(x, [0, 1], [0, 0], flipped=flipped, keep_norms=keep_norms).embeddings
    np.testing.assert_allclose(wished, [[1, 0, 0], [0, 0.5**0.5, 0.5**0.5]], atol=1e-7)
    for scale in (1e-30, 3e38):
        short = x * np.float32(scale), flipped * np.float32(scale)
        found = pool_templates(short[0], [0, 1], [0, 0], flipped=short[1], keep_norms=keep_norms).embeddings
        np.testing.assert_allclose(found, wished, atol=1e-7)


def test_what_cancels_stays_zero() -> None:
    found = pool_templates(np.array([[1.0, 0], [-1.0, 0]]), [0, 0], [1, 2])
    assert found.embeddings.tolist() == [[0, 0]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"templates": [0, 1]}, "2 templates for 3 embeddings"),
        ({"media": [0, 1, 2, 3]}, "4 media for 3 embeddings"),
        ({"flipped": np.ones((3, 3))}, "flipped .* must have the shape of embeddings"),
        ({"quality": [1, 2]}, r"quality must have the shape \(3,\), one weight for each embedding, not \(2,\)"),
        ({"quality": [1, -2, np.nan]}, r"2 of 3 weights of quality are negative, infinite or NaN \(first: 1\)"),
        ({"embeddings": np.array([[1, 2], [np.nan, 1], [1, 2]])}, "1 of 3 embeddings hold NaN"),
        ({"embeddings": np.ones((0, 2)), "templates": [], "media": []}, "no embeddings to pool"),
    ],
)
def test_bad_input(change: dict, message: str) -> None:
    good = {"embeddings": np.ones((3, 2)), "templates": [0, 0, 1], "media": [0, 1, 0]}
    with pytest.raises(ValueError, match=message):
        pool_templates(**good | change)
