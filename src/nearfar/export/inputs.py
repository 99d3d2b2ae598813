"""Inputs of a model: preprocessed images or features of a table, or random ones."""

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from nearfar.data import Table
from nearfar.export.network import ExportError, input_shape
from nearfar.imaging import BrokenImageError
from nearfar.models import Embedder
from nearfar.models.precomputed import PrecomputedFeatures

COMPARED = 16
"""The number of rows that an exported file is compared on."""


def inputs_of(model: Embedder, table: Table) -> tuple[Any, Callable[[Any], Tensor]]:
    """The inputs of all rows, and the function that makes a tensor of one."""
    if not isinstance(model.trunk, PrecomputedFeatures):
        if table.images is None:
            raise ExportError(f"{table.name} has no images, but this model needs them: give other data with --data")
        return table.images, model.preprocess
    if table.features is None or table.features.shape[1] != model.trunk.dimension:
        raise ExportError(f"{table.name} lacks features of {model.trunk.dimension} dimensions: give others with --data")
    return table.features, torch.as_tensor


def sample_inputs(model: Embedder, table: Table | None) -> tuple[Tensor, str]:
    """Inputs for a comparison, with their source: readable rows spread over a table, or random ones."""
    if table is not None:
        inputs, prepare = inputs_of(model, table)
        tensors = []
        for row in np.unique(np.linspace(0, len(table) - 1, COMPARED).astype(int)):
            with contextlib.suppress(BrokenImageError):
                tensors.append(prepare(inputs[int(row)]))
        tensors = [tensor for tensor in tensors if not tensor.isnan().any()]
        if tensors:
            return torch.stack(tensors), table.name
    return random_inputs(model), "random inputs"


def random_inputs(model: Embedder) -> Tensor:
    """Random features, or normalised images of smooth patches with noise."""
    generator = torch.Generator().manual_seed(0)
    shape = input_shape(model)
    if len(shape) == 1:
        return torch.randn(COMPARED, *shape, generator=generator)
    channels, *size = shape
    coarse = torch.rand(COMPARED, channels, 5, 5, generator=generator)
    fine = torch.rand(COMPARED, channels, *size, generator=generator)
    pixels = 205 * functional.interpolate(coarse, size, mode="bilinear") + 50 * fine
    return model.preprocess.normalise(pixels.to(torch.uint8))
