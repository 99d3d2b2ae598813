"""What happens to a glyph on its way to an image: turned, bent, lit unevenly, crossed out and noisy."""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

BATCH = 1024
# At difficulty 1; most grow with it.
TURN = 0.17  # radians, up to
SCALE = 0.1  # relative, of each axis, up to
SHEAR = 0.12
SHIFT = 0.06  # of the side
BEND = 0.02  # of the side: of a smooth random field, one standard deviation
LEAST_CONTRAST = 0.5  # between ink and paper, at difficulty 1
NOISE = 0.04  # one standard deviation
SHADE = 0.1  # of a smooth random field of light, one standard deviation
STROKES = 1  # lines across the image, each there or not


def distort(
    shapes: npt.NDArray[np.uint8], size: int, difficulty: float, rng: np.random.Generator
) -> npt.NDArray[np.uint8]:
    """Each shape (n, side, side) as an image (n, size, size). The same numbers give the same images."""
    parts = [_distorted(shapes[i : i + BATCH], size, difficulty, rng) for i in range(0, len(shapes), BATCH)]
    return np.concatenate(parts)


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
    """Blurred as much as the smaller image needs, so that sampling it leaves no jags."""
    width = 2 * max(0, round(ink.shape[-1] / size / 2)) + 1
    return functional.avg_pool2d(ink, width, 1, width // 2, count_include_pad=False)


def _greys(n: int, difficulty: float, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
    """Paper and ink, either the lighter; black on white at difficulty 0."""
    least = 1 - min(1.0, difficulty) * (1 - LEAST_CONTRAST)
    contrast = rng.uniform(least, 1, n)
    low = rng.uniform(0, 1, n) * (1 - contrast)
    inked_dark = rng.random(n) >= 0.5 * min(1.0, difficulty)
    paper = np.where(inked_dark, low + contrast, low)
    colour = np.where(inked_dark, low, low + contrast)
    return tuple(torch.from_numpy(grey.astype(np.float32)).reshape(n, 1, 1, 1) for grey in (paper, colour))  # type: ignore[return-value]


def _strokes(n: int, size: int, difficulty: float, rng: np.random.Generator) -> Tensor:
    """Straight lines of ink across the image."""
    count = round(STROKES * difficulty)
    place = torch.linspace(-1, 1, size)
    y, x = torch.meshgrid(place, place, indexing="ij")
    ink = torch.zeros(n, size, size)
    for _ in range(count):
        angle, offset, there = rng.uniform(0, np.pi, n), rng.uniform(-0.9, 0.9, n), rng.random(n) < 0.4
        values = (np.cos(angle), np.sin(angle), offset)
        across, down, shift = (torch.from_numpy(value.astype(np.float32)).reshape(n, 1, 1) for value in values)
        line = (1.5 - (x * across + y * down - shift).abs() * size / 2).clamp(0, 1)
        ink = torch.maximum(ink, line * torch.from_numpy(there).reshape(n, 1, 1))
    return ink[:, None]
