"""Distortions of glyphs: affine and elastic transforms, strokes, uneven light and noise."""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

BATCH = 1024
# At difficulty 1; most are proportional to it.
TURN = 0.17  # largest rotation, in radians
SCALE = 0.1  # largest relative scaling of each axis
SHEAR = 0.12
SHIFT = 0.06  # of the side
BEND = 0.02  # standard deviation of a smooth displacement field, relative to the side
MIN_CONTRAST = 0.5  # between ink and paper
NOISE = 0.04  # standard deviation
SHADE = 0.1  # standard deviation of a smooth field of brightness
STROKES = 1  # lines across the image, each drawn with a probability of 0.4


def distort(
    shapes: npt.NDArray[np.uint8], size: int, difficulty: float, rng: np.random.Generator
) -> npt.NDArray[np.uint8]:
    """Distort shapes (n, side, side) to images (n, size, size), determined by the generator."""
    batches = [_distorted(shapes[i : i + BATCH], size, difficulty, rng) for i in range(0, len(shapes), BATCH)]
    return np.concatenate(batches)


def _distorted(
    shapes: npt.NDArray[np.uint8], size: int, difficulty: float, rng: np.random.Generator
) -> npt.NDArray[np.uint8]:
    n = len(shapes)

    def uniform(bound: float, *shape: int) -> Tensor:
        return torch.from_numpy(rng.uniform(-bound * difficulty, bound * difficulty, (n, *shape)).astype(np.float32))

    def field(strength: float, channels: int) -> Tensor:
        coarse = torch.from_numpy(rng.standard_normal((n, channels, 4, 4)).astype(np.float32))
        smooth = functional.interpolate(coarse, (size, size), mode="bicubic", align_corners=True)
        return smooth * strength * difficulty

    turn, shear = uniform(TURN), uniform(SHEAR)
    stretch = torch.exp(uniform(SCALE, 2))
    rotation = torch.stack([turn.cos(), -turn.sin(), turn.sin(), turn.cos()], 1).reshape(n, 2, 2)
    skew = torch.stack([torch.ones(n), shear, torch.zeros(n), torch.ones(n)], 1).reshape(n, 2, 2)
    linear = rotation @ skew @ torch.diag_embed(stretch)
    affine = torch.cat([linear, uniform(2 * SHIFT, 2, 1)], 2)
    grid = functional.affine_grid(affine, [n, 1, size, size], align_corners=False)
    grid = grid + 2 * field(BEND, 2).permute(0, 2, 3, 1)
    ink = torch.from_numpy(shapes).float()[:, None] / 255
    ink = functional.grid_sample(_softened(ink, size), grid, align_corners=False)
    ink = torch.maximum(ink, _strokes(n, size, difficulty, rng))
    paper, colour = _greys(n, difficulty, rng)
    image = paper + (colour - paper) * ink + field(SHADE, 1)
    image += torch.from_numpy(rng.standard_normal((n, 1, size, size)).astype(np.float32)) * NOISE * difficulty
    return (image.clamp(0, 1) * 255).round().to(torch.uint8)[:, 0].numpy()


def _softened(ink: Tensor, size: int) -> Tensor:
    """Blur before sampling at a lower resolution, against aliasing."""
    width = 2 * max(0, round(ink.shape[-1] / size / 2)) + 1
    return functional.avg_pool2d(ink, width, 1, width // 2, count_include_pad=False)


def _greys(n: int, difficulty: float, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
    """The greys of paper and ink, either of which may be lighter; black on white at difficulty 0."""
    lowest = 1 - min(1.0, difficulty) * (1 - MIN_CONTRAST)
    contrast = rng.uniform(lowest, 1, n)
    low = rng.uniform(0, 1, n) * (1 - contrast)
    dark_ink = rng.random(n) >= 0.5 * min(1.0, difficulty)
    paper = np.where(dark_ink, low + contrast, low)
    colour = np.where(dark_ink, low, low + contrast)
    return tuple(torch.from_numpy(grey.astype(np.float32)).reshape(n, 1, 1, 1) for grey in (paper, colour))  # type: ignore[return-value]


def _strokes(n: int, size: int, difficulty: float, rng: np.random.Generator) -> Tensor:
    """Straight lines of ink across the image."""
    count = round(STROKES * difficulty)
    axis = torch.linspace(-1, 1, size)
    y, x = torch.meshgrid(axis, axis, indexing="ij")
    ink = torch.zeros(n, size, size)
    for _ in range(count):
        angle, offset, drawn = rng.uniform(0, np.pi, n), rng.uniform(-0.9, 0.9, n), rng.random(n) < 0.4
        values = (np.cos(angle), np.sin(angle), offset)
        across, down, shift = (torch.from_numpy(value.astype(np.float32)).reshape(n, 1, 1) for value in values)
        line = (1.5 - (x * across + y * down - shift).abs() * size / 2).clamp(0, 1)
        ink = torch.maximum(ink, line * torch.from_numpy(drawn).reshape(n, 1, 1))
    return ink[:, None]
