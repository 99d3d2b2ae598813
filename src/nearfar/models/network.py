"""The network of an `Embedder`: its forward pass, and which parameters are trained.

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
    """A trunk, a pooling and a head for each part."""

    head_is_fitted: Tensor

    def __init__(self, trunk: Trunk, settings: Settings):
        super().__init__()
        self.trunk = trunk.module
        self.channels = trunk.channels
        self.settings = settings
        self.pooling = Pooling(settings.pool, parts=settings.parts, prefix=trunk.prefix)
        self.heads = nn.ModuleList(self._make_head() for _ in range(self.pooling.count if settings.head else 0))
        self.register_buffer("head_is_fitted", torch.tensor(not settings.fits_head))
        # Some parameters are never trained: IResNet fixes a scale, and LoRA everything except the adapters.
        self._trainable = {name for name, parameter in self.trunk.named_parameters() if parameter.requires_grad}
        if settings.batch_norm_momentum is not None:
            for _, module in self._batch_norms():
                module.momentum = settings.batch_norm_momentum
        self._frozen = self._parameters_to(settings.freeze_to) if settings.freeze_to is not None else set()
        self.free_norm = False  # whether embeddings are not normalised in training mode
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
        """The dimension of the embedding."""
        return self.settings.dimension

    @property
    def binary(self) -> bool:
        """Whether the embeddings are binary codes, compared by Hamming distance."""
        return self.settings.head == "hash"

    @property
    def feature_size(self) -> int:
        """The number of features of an image before the head: the channels of all parts."""
        return self.channels * self.pooling.count

    @property
    def device(self) -> torch.device:
        """The device of the parameters; the CPU if there are none."""
        return next((parameter.device for parameter in self.parameters()), torch.device("cpu"))

    # Forward

    def features(self, images: Tensor) -> Tensor:
        """Compute pooled features (N, parts * C), the input of the head, which feature caches store."""
        if images.device.type == "cpu" and images.ndim == 4:
            # On CPUs, convolutions are up to 1.7 times as fast, forward and backward, with the channels last.
            images = images.contiguous(memory_format=torch.channels_last)
        return cast(Tensor, self.pooling(self.trunk(images)))

    def project(self, features: Tensor, free_norm: bool | None = None) -> Tensor:
        """Compute embeddings of unit length from features.

        Args:
            features: (N, parts * C).
            free_norm: do not normalise the embeddings; by default `self.free_norm` in training mode, else False.
        """
        if self.settings.fits_head and not self.head_is_fitted:
            raise StateError(
                f'the head needs the principal components of features (head_start="{self.settings.head_start}"): '
                'call fit_head(features) first, or choose head_start="random"'
            )
        parts = self._parts(features)
        if self.heads:
            parts = tuple(cast(Tensor, head(part)) for head, part in zip(self.heads, parts, strict=True))
        embeddings: Tensor = torch.cat(parts, 1)
        if self.binary:  # of norm 1 once all values are binary
            return embeddings / math.sqrt(len(parts))
        if free_norm is None:
            free_norm = self.free_norm and self.training
        return embeddings if free_norm else functional.normalize(embeddings, dim=1)

    def forward(self, images: Tensor) -> Tensor:
        return self.project(self.features(images))

    def _parts(self, features: Tensor) -> tuple[Tensor, ...]:
        """The inputs (N, C) of the heads."""
        if features.ndim != 2 or features.shape[1] != self.feature_size:
            raise InputError(f"features must be (N, {self.feature_size}), not {tuple(features.shape)}")
        parts = torch.split(features, self.channels, 1)
        if self.settings.layer_norm:
            parts = tuple(functional.layer_norm(part, (self.channels,)) for part in parts)
        return parts

    # Initialisation of the head, and frozen parameters

    def fit_head(self, features: Tensor | NDArray[np.float32], *, whiten: bool | None = None) -> None:
        """Initialise every head with the principal components of features (N, parts * C) of training images.

        Args:
            features: rows with NaN (broken images) are left out.
            whiten: divide every component by its standard deviation; by default True unless `head_start` is "pca".
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
        """Multiply the outputs of the heads by a factor, except those of hashing heads, which saturate."""
        for head in self.heads:
            for name, parameter in head.named_parameters() if not isinstance(head, HashingHead) else ():
                if not name.startswith("up."):
                    parameter.mul_(factor)

    def set_progress(self, fraction: float) -> None:
        """Set the fraction of training that is done, from 0 to 1, which hashing heads depend on."""
        for head in self.heads:
            if isinstance(head, HashingHead):
                head.set_progress(fraction)

    def start_epoch(self, epoch: int) -> None:
        """Select the parameters that are trained in an epoch: only the head during warm-up or with a frozen trunk."""
        trains = not self.settings.freeze_trunk and epoch >= self.settings.warmup_epochs
        frozen = set(self._frozen)
        if self.settings.freeze_batch_norm is True:
            frozen |= {f"{name}.{kind}" for name, _ in self._batch_norms() for kind in ("weight", "bias")}
        for name, parameter in self.trunk.named_parameters():
            parameter.requires_grad_(trains and name in self._trainable and name not in frozen)

    def _parameters_to(self, last: str) -> set[str]:
        """Names of the trunk's parameters up to and including those of the module `last`."""
        names = [name for name, _ in self.trunk.named_parameters()]
        positions = [i for i, name in enumerate(names) if name.startswith(f"{last}.")]
        if not positions:
            modules = [name for name, module in self.trunk.named_modules() if name and [*module.parameters()]]
            near = difflib.get_close_matches(last, modules, n=3) or modules[:3]
            raise InputError(f"the trunk has no module {last!r} to freeze to: it has, for example, {', '.join(near)}")
        return set(names[: positions[-1] + 1])

    def _batch_norms(self) -> Iterator[tuple[str, _BatchNorm]]:
        return ((name, module) for name, module in self.trunk.named_modules() if isinstance(module, _BatchNorm))

    def train(self, mode: bool = True) -> Self:
        """Set training mode. A frozen trunk and frozen batch normalisation stay in evaluation mode."""
        super().train(mode)
        if self.settings.freeze_trunk:
            self.trunk.eval()
        elif self.settings.freeze_batch_norm:
            for _, module in self._batch_norms():
                module.eval()
        for name, module in self.trunk.named_modules() if self._frozen else ():
            parameters = [f"{name}.{parameter}" for parameter, _ in module.named_parameters()]
            if parameters and self._frozen.issuperset(parameters):
                module.eval()
        return self

    def head_parameters(self) -> list[nn.Parameter]:
        """The parameters of the pooling and the head, which are often trained with a higher learning rate."""
        return [*self.pooling.parameters(), *self.heads.parameters()]

    def trunk_parameters(self) -> list[nn.Parameter]:
        """The parameters of the trunk, including frozen ones."""
        return list(self.trunk.parameters())
