"""Pictures to transform."""

import numpy as np
import torch
from PIL import Image


def photograph(width: int = 100, height: int = 80) -> Image.Image:
    """Smooth, so that small differences of place make small differences of value."""
    y, x = np.mgrid[:height, :width]
    values = np.stack([x * 255 / width, y * 255 / height, 127 + 100 * np.sin(x / 9) * np.cos(y / 7)], 2)
    return Image.fromarray(values.astype(np.uint8))


def levels(x: torch.Tensor) -> np.ndarray:
    """A tensor of values from 0 to 1 as (H, W, C) of 0 to 255."""
    return (x.permute(1, 2, 0).numpy() * 255).round()
