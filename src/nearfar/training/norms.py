"""The norm of the embeddings that a loss gets in training.

Softmax, SphereFace, the centre loss and some others are defined on features of any norm, and learn from it; most losses
are defined on unit vectors. Each loss of a sum gets the norm that it is defined on. After training, the model always
returns unit vectors: search, metrics, indexes and exports use the cosine.
"""

from collections.abc import Iterator
from typing import Any

from torch import nn
from torch.nn import functional

from nearfar.losses import Loss, SumLoss
from nearfar.models import Embedder
from nearfar.training.config import ModelConfig


def is_free(loss: nn.Module) -> bool:
    """Whether a loss, or the loss it wraps, is defined on features of any norm."""
    return any(isinstance(part, Loss) and part.free_norm for part in loss.modules())


def set_norms(embedder: Embedder, loss: nn.Module, model: ModelConfig) -> None:
    """Set up the norm of the embedder's output and of the input of every loss of a sum."""
    parts = list(_summands(loss))
    free = model.normalise == "never" or (model.normalise == "auto" and any(map(is_free, parts)))
    embedder.free_norm = free and not embedder.binary  # the head sets the norm of codes
    for part in parts:
        _see_unit_vectors(part, embedder.free_norm and model.normalise == "auto" and not is_free(part))


def described(loss: nn.Module, model: ModelConfig) -> str:
    """Describe the norm that the loss gets."""
    if model.head == "hash":
        return "of norm near 1, as the codes (hash head)"
    if model.normalise != "auto":
        norm = "of norm 1" if model.normalise == "always" else "of any norm"
        return f"{norm}, as --normalise {model.normalise} says"
    seen: dict[bool, list[str]] = {}
    for part in _summands(loss):
        seen.setdefault(is_free(part), []).append(type(part).__name__)
    norms = {True: "of any norm", False: "of norm 1"}
    return "; ".join(f"{norms[free]}, as {' and '.join(names)} is defined" for free, names in seen.items())


def _summands(loss: nn.Module) -> Iterator[nn.Module]:
    if isinstance(loss, SumLoss):
        for part in loss.losses.values():
            yield from _summands(part)
    else:
        yield loss


def _see_unit_vectors(part: nn.Module, wanted: bool) -> None:
    """Add or remove the normalisation of a loss's input."""
    for key, hook in list(part._forward_pre_hooks.items()):
        if hook is _normalised:
            del part._forward_pre_hooks[key]
    if wanted:
        part.register_forward_pre_hook(_normalised)


def _normalised(part: nn.Module, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    embeddings, *others = arguments
    return functional.normalize(embeddings, dim=1), *others
