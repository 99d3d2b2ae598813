"""The exported network, from preprocessed images or features to embeddings."""

import contextlib
import copy
import logging
import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from nearfar.errors import InputError, NearfarError
from nearfar.models import Embedder
from nearfar.models.precomputed import PrecomputedFeatures

OUTPUT = "embeddings"


class ExportError(NearfarError, RuntimeError):
    """The model cannot be exported; no files were left."""


def plain_network(model: Embedder) -> Embedder:
    """A copy of the model in evaluation mode that a tracer can follow; it shares its weights.

    `forward` tests a buffer to see whether a principal-component head was fitted, which a tracer cannot follow. This
    test is made here, once.
    """
    if model.settings.head_start != "random" and not model.head_is_fitted:
        raise InputError("the head of this model was never fitted to features: train the model before exporting it")
    plain = copy.copy(model)
    plain.settings = replace(model.settings, head_start="random")
    return plain.eval()


def input_name(model: Embedder) -> str:
    """ "images", or "features" for a model without a trunk."""
    return "features" if isinstance(model.trunk, PrecomputedFeatures) else "images"


def input_shape(model: Embedder) -> tuple[int, ...]:
    """The shape of one input: (C, H, W) of an image, (D,) of features."""
    if isinstance(model.trunk, PrecomputedFeatures):
        return (model.trunk.dimension,)
    return len(model.preprocess.channels), *model.preprocess.height_width


def example_inputs(model: Embedder) -> Tensor:
    """Two blank inputs for tracing. With a batch of one, tracers would make that size a constant."""
    return torch.zeros(2, *input_shape(model))


def trunk_name(description: dict[str, Any]) -> str:
    """The name of a trunk, from its description.

    >>> trunk_name({"kind": "named", "name": "convnet", "options": {}})
    'convnet'
    >>> trunk_name({"kind": "hf", "config": {"model_type": "dinov2"}})
    'hf:dinov2'
    """
    kind = description["kind"]
    if kind == "hf":
        return f"hf:{description['config'].get('model_type', 'model')}"
    if kind == "timm":
        return f"timm:{description['model']}"
    return str(description.get("name") or description.get("type"))


@contextlib.contextmanager
def quiet_exporters() -> Iterator[None]:
    """Silence the exporters' warnings, which users of nearfar cannot act on; the parity check finds wrong results."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
