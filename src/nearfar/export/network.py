"""What of a model is exported: from prepared images, or features, to embeddings, with nothing left to decide."""

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
from nearfar.models.given import GivenFeatures

OUTPUT = "embeddings"


class ExportError(NearfarError, RuntimeError):
    """The model was not exported, and nothing was left behind; the message says why."""


def plain_network(model: Embedder) -> Embedder:
    """The model in evaluation, as a tracer can follow it; it shares its weights with the one it was made of.

    Whether a head that starts from principal components has been fitted is a question about a value of the model,
    which a tracer cannot answer: here it is asked once and for all.
    """
    if model.settings.head_start != "random" and not model.head_is_fitted:
        raise InputError("the head of this model was never fitted to features: there is nothing to export yet")
    plain = copy.copy(model)
    plain.settings = replace(model.settings, head_start="random")
    return plain.eval()


def input_name(model: Embedder) -> str:
    """ "images", or "features" of a model without a trunk."""
    return "features" if isinstance(model.trunk, GivenFeatures) else "images"


def input_shape(model: Embedder) -> tuple[int, ...]:
    """Of one input: (C, H, W) of an image, (D,) of features."""
    if isinstance(model.trunk, GivenFeatures):
        return (model.trunk.dimension,)
    return len(model.preprocess.channels), *model.preprocess.height_width


def example_inputs(model: Embedder) -> Tensor:
    """What tracers are shown: two blank inputs. Of a batch of one they would conclude that it always is one."""
    return torch.zeros(2, *input_shape(model))


def trunk_name(description: dict[str, Any]) -> str:
    """How a trunk is called, from its description.

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
def without_chatter() -> Iterator[None]:
    """Exporters tell their users of deprecations, missing packages and Python values they take as fixed, none of which
    a user of nearfar can change; whether the result is right, the parity check says.
    """
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
