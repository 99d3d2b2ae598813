"""Small made data: every class a pattern, every image of it noisy and shifted in brightness."""

import numpy as np

from nearfar.data import SPLITS, Pixels, Table


def patterns(classes: int = 24, each: int = 8, size: int = 16, noise: float = 40.0, seed: int = 0) -> Table:
    """Half of the classes train, half test."""
    rng = np.random.default_rng(seed)
    ideal = rng.uniform(60, 200, (classes, 1, size // 4, size // 4)).repeat(4, 2).repeat(4, 3)
    images = ideal + rng.normal(0, noise, (classes, each, size, size)) + rng.uniform(-50, 50, (classes, each, 1, 1))
    labels = np.repeat(np.arange(classes), each)
    split = np.where(labels < (classes + 1) // 2, SPLITS.index("train"), SPLITS.index("test")).astype(np.int8)
    pixels = Pixels(images.reshape(-1, size, size).clip(0, 255).astype(np.uint8))
    return Table("patterns", labels, tuple(f"pattern {i}" for i in range(classes)), split, pixels)


# A network of a few milliseconds a step; its validation classes are held out once.
SMALL = {
    "backbone": "convnet",
    "options": {"width": 8},
    "size": 16,
    "dimension": 8,
    "flip": 0.0,
    "batch_size": 16,
    "workers": 0,
    "log_every": 1,
    "accelerator": "cpu",
    "folds": 1,
}
