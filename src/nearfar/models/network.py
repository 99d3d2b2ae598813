"""The network of an `Embedder`: what it computes, and what of it is trained when.

images ─► trunk ─► pooling ─► features (N, parts * C) ─► layer norm ─► head of each part, concatenated ─► L2
"""

import difflib
import math
from collections.abc import Iterator
from typing import Self, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from nearfar.errors import InputError, StateError
from nearfar.models.hashing import HashingHead
from nearfar.models.heads import LinearHead, MLPHead, pca
from nearfar.models.pooling import Pooling
from nearfar.models.settings import Settings
from nearfar.models.trunks import Trunk

Head = LinearHead | MLPHead | HashingHead


class EmbeddingNetwork(nn.Module):
    """A trunk, a pooling and a head of each part, put together as the settings say."""

    head_is_fitted: Tensor

    def __init__(self, trunk: Trunk, settings: Settings):
        super().__init__()
        self.trunk = trunk.module
        self.channels = trunk.channels
        self.settings = settings
        self.pooling = Pooling(settings.pool, parts=settings.parts, prefix=trunk.prefix)
        self.heads = nn.ModuleList(self._make_head() for _ in range(self.pooling.count if settings.head else 0))
        self.register_buffer("head_is_fitted", torch.tensor(not settings.fits_head))
        # What the trunk's maker left to train: IResNet, for one, fixes a scale, and LoRA everything but its adapters.
        self._trainable = {name for name, parameter in self.trunk.named_parameters() if parameter.requires_grad}
        if settings.batch_norm_momentum is not None:
            for _, module in self._batch_norms():
                module.momentum = settings.batch_norm_momentum
        self._frozen = self._parameters_to(settings.freeze_to) if settings.freeze_to is not None else set()
        self.free_norm = False  # whether training sees the embeddings at the length that the head gives them
        self.start_epoch(0)
        self.train()

    def _make_head(self) -> Head:
        dimension = self.dimension // self.pooling.count
        if self.settings.head == "linear":
            return LinearHead(self.channels, dimension, uniform=self.settings.head_start == "uniform")
        if self.settings.head == "mlp":
            return MLPHead(self.channels, dimension, self.settings.hidden or self.channels)
        return HashingHead(self.channels, dimension)

    @property
    def dimension(self) -> int:
        """Of the embedding."""
        return self.settings.dimension

    @property
    def binary(self) -> bool:
        """Whether the signs of the embedding are what counts: binary codes, compared by Hamming distance."""
        return self.settings.head == "hash"

    @property
    def feature_size(self) -> int:
        """How many features an image has before the head: the channels of every part."""
        return self.channels * self.pooling.count

    @property
    def device(self) -> torch.device:
        """Where it computes; a model without weights, on the CPU."""
        return next((parameter.device for parameter in self.parameters()), torch.device("cpu"))

    # Forward

    def features(self, images: Tensor) -> Tensor:
        """Images to pooled features (N, parts * C): what comes before the head, and what a feature cache keeps."""
        if images.device.type == "cpu" and images.ndim == 4:
            # Convolutions there are up to 1.7 times as fast, forward and backward, with the channels last in memory.
            images = images.contiguous(memory_format=torch.channels_last)
        return cast(Tensor, self.pooling(self.trunk(images)))

    def project(self, features: Tensor, free_norm: bool | None = None) -> Tensor:
        """Features to embeddings, of norm 1.

        Args:
            free_norm: of the norm that the head gives them; by default so in training, where `self.free_norm` says so.
        """
        if self.settings.fits_head and not self.head_is_fitted:
            raise StateError(
                f'the head is to start from the principal components of features (head_start="'
                f'{self.settings.head_start}"): call fit_head(features) first, or choose head_start="random"'
            )
        parts = self._parts(features)
        if self.heads:
            parts = tuple(cast(Tensor, head(part)) for head, part in zip(self.heads, parts, strict=True))
        together: Tensor = torch.cat(parts, 1)
        if self.binary:  # of norm 1 as it becomes binary
            return together / math.sqrt(len(parts))
        if free_norm is None:
            free_norm = self.free_norm and self.training
        return together if free_norm else functional.normalize(together, dim=1)

    def forward(self, images: Tensor) -> Tensor:
        return self.project(self.features(images))

    def _parts(self, features: Tensor) -> tuple[Tensor, ...]:
        """What every head takes, (N, C) each."""
        if features.ndim != 2 or features.shape[1] != self.feature_size:
            raise InputError(f"features must be (N, {self.feature_size}), not {tuple(features.shape)}")
        parts = torch.split(features, self.channels, 1)
        if self.settings.layer_norm:
            parts = tuple(functional.layer_norm(part, (self.channels,)) for part in parts)
        return parts

    # How the head starts, and what is trained when

    def fit_head(self, features: Tensor | NDArray[np.float32], *, whiten: bool | None = None) -> None:
        """Start every head at the principal components of features (N, parts * C) of training images.

        Args:
            whiten: divide every component by its standard deviation; by default as `head_start` says (yes, unless it is
                "pca").
        """
        if not self.heads:
            raise InputError("head=None: there is no head to fit")
        x = torch.as_tensor(features, dtype=torch.float32)
        parts = self._parts(x[~x.isnan().any(1)] if x.ndim == 2 else x)  # without broken images
        whiten = self.settings.head_start != "pca" if whiten is None else whiten
        for head, part in zip(self.heads, parts, strict=True):
            weight, bias = pca(part, self.dimension // len(parts), whiten=whiten)
            cast(Head, head).start_at(weight, bias)
        self.head_is_fitted.fill_(True)

    @torch.no_grad()
    def scale_head(self, factor: float) -> None:
        """Multiply what the heads give; those of hashing codes, which saturate, stay as they are."""
        for head in self.heads:
            for name, parameter in head.named_parameters() if not isinstance(head, HashingHead) else ():
                if not name.startswith("up."):
                    parameter.mul_(factor)

    def set_progress(self, fraction: float) -> None:
        """How much of training is done, from 0 to 1: hashing heads sharpen with it."""
        for head in self.heads:
            if isinstance(head, HashingHead):
                head.set_progress(fraction)

    def start_epoch(self, epoch: int) -> None:
        """Choose what this epoch trains: the head alone during warm-up, then the trunk too, unless frozen."""
        trains = not self.settings.freeze_trunk and epoch >= self.settings.warmup_epochs
        frozen = set(self._frozen)
        if self.settings.freeze_batch_norm is True:
            frozen |= {f"{name}.{kind}" for name, _ in self._batch_norms() for kind in ("weight", "bias")}
        for name, parameter in self.trunk.named_parameters():
            parameter.requires_grad_(trains and name in self._trainable and name not in frozen)

    def _parameters_to(self, last: str) -> set[str]:
        """Names of the trunk's parameters from the first to those of the module `last`."""
        names = [name for name, _ in self.trunk.named_parameters()]
        own = [i for i, name in enumerate(names) if name.startswith(f"{last}.")]
        if not own:
            modules = [name for name, module in self.trunk.named_modules() if name and [*module.parameters()]]
            near = difflib.get_close_matches(last, modules, n=3) or modules[:3]
            raise InputError(f"the trunk has no part {last!r} to freeze to; it has, for example, {', '.join(near)}")
        return set(names[: own[-1] + 1])

    def _batch_norms(self) -> Iterator[tuple[str, _BatchNorm]]:
        return ((name, module) for name, module in self.trunk.named_modules() if isinstance(module, _BatchNorm))

    def train(self, mode: bool = True) -> Self:
        """Training mode; a frozen trunk, or its frozen batch normalisation, stays in evaluation."""
        super().train(mode)
        if self.settings.freeze_trunk:
            self.trunk.eval()
        elif self.settings.freeze_batch_norm:
            for _, module in self._batch_norms():
                module.eval()
        for name, module in self.trunk.named_modules() if self._frozen else ():
            own = [f"{name}.{parameter}" for parameter, _ in module.named_parameters()]
            if own and self._frozen.issuperset(own):
                module.eval()
        return self

    def head_parameters(self) -> list[nn.Parameter]:
        """Of the pooling and the head: what is new, and what the papers train faster."""
        return [*self.pooling.parameters(), *self.heads.parameters()]

    def trunk_parameters(self) -> list[nn.Parameter]:
        """Of the trunk, trained now or not."""
        return list(self.trunk.parameters())
