"""`Embedder`: images to embeddings.

images ─► trunk ─► pooling ─► features (N, parts * C) ─► layer norm ─► head of each part, concatenated ─► L2
"""

import contextlib
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

import nearfar
from nearfar.models import storage
from nearfar.models.checkpoints import load_weights
from nearfar.models.extraction import extract, images_in
from nearfar.models.fingerprint import describe_transform, digest_of
from nearfar.models.hashing import HashingHead, pack_codes
from nearfar.models.heads import LinearHead, MLPHead, pca
from nearfar.models.pooling import Pool, Pooling
from nearfar.models.preprocess import ImageLike, Preprocess
from nearfar.models.settings import HeadName, HeadStart, Settings
from nearfar.models.trunks import Trunk, open_trunk, reopen

Head = LinearHead | MLPHead | HashingHead
Images = str | os.PathLike[str] | Tensor | Iterable[ImageLike]
Output = Literal["embeddings", "features"]
Transform = Callable[[Any], Tensor]


class Embedder(nn.Module):
    """A trunk, a pooling and a head: images (N, C, H, W) to unit vectors (N, dimension).

    Args:
        trunk: a name (`list_trunks()`, "hf:MODEL", "timm:MODEL") or a module; see `open_trunk`.
        weights: "default" (pretrained where weights come with the trunk), "random", or a checkpoint file.
        pool: "avg", "max", "avg+max", "gem" or, for tokens, "cls"; by default "cls" where there is such a token, else
            "avg".
        head: "linear", "mlp", "hash" (binary codes, see `nearfar.models.hashing`), or None for the features themselves.
        dimension: of the whole embedding, 512 by default; with several parts, a multiple of their number. With
            `head=None` it is the features' own.
        hidden: width of the "mlp" head; by default as many as there are features.
        layer_norm: normalise the features before the head to mean 0 and variance 1 (Proxy-NCA++).
        parts: stripes of the map, each with a head of its own, such as (1, 2, 3); see `Pooling`.
        head_start: "random"; or "pca", "pca-whiten": principal components, which `fit_head(features)` finds, so that
            the head starts near the features, where a random one starts below. By default "pca-whiten" with a frozen
            trunk, else "random".
        freeze_trunk: train the head alone.
        freeze_batch_norm: keep the statistics, scales and shifts of the trunk's batch normalisation as they are.
        warmup_epochs: for so many epochs, only the head is trained; tell the epoch by `start_epoch(epoch)`.
        preprocess: other than the trunk's own.
        transform: any callable from an image (or its path) to a tensor, in place of `preprocess`. It is not saved.
        trunk_options: of the trunk's constructor, such as {"width": 64} of convnet.
        lora: options of `peft.LoraConfig`: low-rank adapters, the trunk itself frozen.
        label_names, calibration: what is saved and loaded with the model: names of the classes it was trained on, and
            thresholds and the like (JSON).
    """

    head_is_fitted: Tensor

    def __init__(
        self,
        trunk: str | nn.Module = "efficientnet-lite0",
        *,
        weights: str | os.PathLike[str] = "default",
        pool: Pool | None = None,
        head: HeadName | None = "linear",
        dimension: int | None = None,
        hidden: int | None = None,
        layer_norm: bool = False,
        parts: Sequence[int] = (1,),
        head_start: HeadStart | None = None,
        freeze_trunk: bool = False,
        freeze_batch_norm: bool = False,
        warmup_epochs: int = 0,
        preprocess: Preprocess | None = None,
        transform: Transform | None = None,
        trunk_options: Mapping[str, Any] | None = None,
        lora: Mapping[str, Any] | None = None,
        label_names: Sequence[str] = (),
        calibration: Mapping[str, Any] | None = None,
    ):
        super().__init__()
        if lora is not None and freeze_trunk:
            raise ValueError("lora= trains adapters in the trunk: it does not go with freeze_trunk=True")
        opened = open_trunk(trunk, weights, preprocess=preprocess, options=trunk_options, lora=lora)
        features = opened.channels * sum(parts)
        if head is None and dimension not in (None, features):
            raise ValueError(f"head=None gives the {features} features themselves, not {dimension}")
        if dimension is None:
            dimension = features if head is None else 512
        settings = Settings(
            pool=pool or opened.pool,
            parts=tuple(parts),
            head=head,
            dimension=dimension,
            hidden=hidden,
            layer_norm=layer_norm,
            head_start=head_start or ("pca-whiten" if freeze_trunk and head is not None else "random"),
            freeze_trunk=freeze_trunk,
            freeze_batch_norm=freeze_batch_norm,
            warmup_epochs=warmup_epochs,
        )
        self._build(opened, settings, transform, label_names, calibration or {})

    def _build(
        self,
        trunk: Trunk,
        settings: Settings,
        transform: Transform | None,
        label_names: Sequence[str],
        calibration: Mapping[str, Any],
    ) -> None:
        self.trunk = trunk.module
        self.trunk_description = trunk.description
        self.channels = trunk.channels
        self.preprocess = trunk.preprocess
        self.transform: Transform = transform or trunk.preprocess
        self.settings = settings
        self.label_names = tuple(label_names)
        self.calibration = dict(calibration)
        self.pooling = Pooling(settings.pool, parts=settings.parts, prefix=trunk.prefix)
        self.heads = nn.ModuleList(self._make_head() for _ in range(self.pooling.count if settings.head else 0))
        self.register_buffer("head_is_fitted", torch.tensor(settings.head_start == "random"))
        # What the trunk's maker left to train: IResNet, for one, fixes a scale, and LoRA everything but its adapters.
        self._trainable = {name for name, parameter in self.trunk.named_parameters() if parameter.requires_grad}
        self.start_epoch(0)
        self.train(self.training)

    def _make_head(self) -> Head:
        dimension = self.dimension // self.pooling.count
        if self.settings.head == "linear":
            return LinearHead(self.channels, dimension)
        if self.settings.head == "mlp":
            return MLPHead(self.channels, dimension, self.settings.hidden or self.channels)
        return HashingHead(self.channels, dimension)

    @property
    def dimension(self) -> int:
        """Of the embedding."""
        return self.settings.dimension

    @property
    def feature_size(self) -> int:
        """How many features an image has before the head: the channels of every part."""
        return self.channels * self.pooling.count

    # Forward

    def features(self, images: Tensor) -> Tensor:
        """Images to pooled features (N, parts * C): what comes before the head, and what a feature cache keeps."""
        if images.device.type == "cpu" and images.ndim == 4:
            # Convolutions there are up to 1.7 times as fast, forward and backward, with the channels last in memory.
            images = images.contiguous(memory_format=torch.channels_last)
        return cast(Tensor, self.pooling(self.trunk(images)))

    def project(self, features: Tensor) -> Tensor:
        """Features to embeddings."""
        if self.settings.head_start != "random" and not self.head_is_fitted:
            raise RuntimeError(
                f'the head is to start from the principal components of features (head_start="'
                f'{self.settings.head_start}"): call fit_head(features) first, or choose head_start="random"'
            )
        parts = self._parts(features)
        if self.heads:
            parts = tuple(cast(Tensor, head(part)) for head, part in zip(self.heads, parts, strict=True))
        together: Tensor = torch.cat(parts, 1)
        if self.settings.head == "hash":  # of norm 1 as it becomes binary
            return together / math.sqrt(len(parts))
        return functional.normalize(together, dim=1)

    def forward(self, images: Tensor) -> Tensor:
        return self.project(self.features(images))

    def _parts(self, features: Tensor) -> tuple[Tensor, ...]:
        """What every head takes, (N, C) each."""
        if features.ndim != 2 or features.shape[1] != self.feature_size:
            raise ValueError(f"features must be (N, {self.feature_size}), not {tuple(features.shape)}")
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
            raise ValueError("head=None: there is no head to fit")
        x = torch.as_tensor(features, dtype=torch.float32)
        parts = self._parts(x[~x.isnan().any(1)] if x.ndim == 2 else x)  # without broken images
        whiten = self.settings.head_start != "pca" if whiten is None else whiten
        for head, part in zip(self.heads, parts, strict=True):
            weight, bias = pca(part, self.dimension // len(parts), whiten=whiten)
            cast(Head, head).start_at(weight, bias)
        self.head_is_fitted.fill_(True)

    def set_progress(self, fraction: float) -> None:
        """How much of training is done, from 0 to 1: hashing heads sharpen with it."""
        for head in self.heads:
            if isinstance(head, HashingHead):
                head.set_progress(fraction)

    def start_epoch(self, epoch: int) -> None:
        """Choose what this epoch trains: the head alone during warm-up, then the trunk too, unless frozen."""
        trains = not self.settings.freeze_trunk and epoch >= self.settings.warmup_epochs
        frozen: set[str] = set()
        if self.settings.freeze_batch_norm:
            frozen = {f"{name}.{kind}" for name, _ in self._batch_norms() for kind in ("weight", "bias")}
        for name, parameter in self.trunk.named_parameters():
            parameter.requires_grad_(trains and name in self._trainable and name not in frozen)

    def _batch_norms(self) -> Iterator[tuple[str, nn.Module]]:
        return ((name, module) for name, module in self.trunk.named_modules() if isinstance(module, _BatchNorm))

    def train(self, mode: bool = True) -> "Embedder":
        """Training mode; a frozen trunk, or its frozen batch normalisation, stays in evaluation."""
        super().train(mode)
        if self.settings.freeze_trunk:
            self.trunk.eval()
        elif self.settings.freeze_batch_norm:
            for _, module in self._batch_norms():
                module.eval()
        return self

    def head_parameters(self) -> list[nn.Parameter]:
        """Of the pooling and the head: what is new, and what the papers train faster."""
        return [*self.pooling.parameters(), *self.heads.parameters()]

    def trunk_parameters(self) -> list[nn.Parameter]:
        """Of the trunk, trained now or not."""
        return list(self.trunk.parameters())

    # Many images

    def embed(
        self,
        images: Images,
        *,
        batch_size: int | None = None,
        num_workers: int | None = None,
        progress: bool = False,
        max_broken: float = 0.0,
        output: Output = "embeddings",
    ) -> Tensor:
        """Embeddings (N, dimension) of images, float32 in main memory, one row each, in their order.

        Nothing but the result and a few batches of images is held at a time.

        Args:
            images: a folder (all images in it, sorted), one image file, a sequence or any iterable of paths, bytes,
                open files, Pillow images or uint8 arrays; or a tensor (N, C, H, W), preprocessed already.
            batch_size: of the network; by default 8 on a CPU, where larger ones leave its cache, and 64 elsewhere.
            num_workers: threads that decode while the network computes; by default as many as cores, 0 for none.
            progress: show a bar.
            max_broken: the fraction of unreadable images to pass over; their rows are NaN and a warning lists them. By
                default the first is an error.
            output: "features" are taken before the head.
        """
        source = _listed(images)
        total = len(source) if isinstance(source, Sized) else None
        width = self.dimension if output == "embeddings" else self.feature_size
        with _bar(progress, total) as advance:
            rows = self.stream(
                source,
                batch_size=batch_size,
                num_workers=num_workers,
                max_broken=max_broken,
                output=output,
                advance=advance,
            )
            if total is None:
                return torch.from_numpy(np.concatenate([np.empty((0, width), np.float32), *rows]))
            result, done = np.empty((total, width), np.float32), 0
            for batch in rows:
                result[done : done + len(batch)] = batch
                done += len(batch)
        return torch.from_numpy(result)

    def stream(
        self,
        images: Images,
        *,
        transform: Transform | None = None,
        batch_size: int | None = None,
        num_workers: int | None = None,
        max_broken: float = 0.0,
        output: Output = "embeddings",
        advance: Callable[[int], None] | None = None,
    ) -> Iterator[NDArray[np.float32]]:
        """What `embed` gives, batch by batch, for results that do not fit into memory.

        Args:
            transform: in place of the model's own, such as one of training for augmented views.
            advance: called with the number of images done.
        """
        if output not in ("embeddings", "features"):
            raise ValueError(f'output must be "embeddings" or "features", not {output!r}')
        source = _listed(images)
        if isinstance(source, Tensor):
            transform, num_workers = _as_it_is, 0
        device = next((parameter.device for parameter in self.parameters()), torch.device("cpu"))
        was_training = self.training
        self.eval()
        try:
            yield from extract(
                self if output == "embeddings" else self.features,
                source,
                transform or self.transform,
                batch_size=(8 if device.type == "cpu" else 64) if batch_size is None else batch_size,
                num_workers=num_workers,
                device=device,
                max_broken=max_broken,
                advance=advance,
            )
        finally:
            self.train(was_training)

    def codes(self, images: Images, **options: Any) -> NDArray[np.uint8]:
        """Binary codes (N, ceil(dimension / 8)), packed: the signs of the embeddings; options as of `embed`."""
        return pack_codes(self.embed(images, **options))

    # Identity and storage

    def feature_key(self, transform: Transform | None = None) -> str:
        """What the features depend on besides the image: the trunk and the pooling, their weights, and the transform.
        A feature cache keeps features under this key.
        """
        used = describe_transform(transform or self.transform)
        digest = digest_of({"trunk": self.trunk, "pooling": self.pooling}, self.trunk_description)
        return f"{digest} {self.pooling.pool} {self.pooling.parts} {used}"

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Everything needed to embed elsewhere, in one safetensors file; a folder gets `model.safetensors`."""
        description = {
            "version": nearfar.__version__,
            "trunk": self.trunk_description,
            "preprocess": self.preprocess.to_json(),
            "own_transform": None if self.transform is self.preprocess else repr(self.transform),
            "settings": self.settings.to_json(),
            "label_names": list(self.label_names),
            "calibration": self.calibration,
        }
        return storage.write(path, self.state_dict(), description)

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        *,
        trunk: nn.Module | None = None,
        transform: Transform | None = None,
        device: str | torch.device = "cpu",
    ) -> "Embedder":
        """What `save` wrote, in evaluation mode; no network is needed.

        Args:
            trunk: the module, where the trunk was one of yours.
            transform: where the model had one of its own.
        """
        tensors, description = storage.read(path)
        model = cls.__new__(cls)
        nn.Module.__init__(model)
        try:
            own = description["own_transform"]
            if own is not None and transform is None:
                raise ValueError(f"this model prepares its images with {own}: give it as transform=")
            opened = reopen(description["trunk"], Preprocess.from_json(description["preprocess"]), trunk)
            settings = Settings.from_json(description["settings"])
            model._build(opened, settings, transform, description["label_names"], description["calibration"])
        except (KeyError, TypeError) as error:
            raise ValueError(f"the description in {os.fspath(path)} is incomplete or damaged: {error!r}") from error
        load_weights(model, tensors, os.fspath(path))
        return model.to(device).eval()


def _listed(images: Any) -> Any:
    """A folder or a file as a list of paths; the rest as it is."""
    if isinstance(images, Tensor) and images.ndim != 4:
        raise ValueError(f"a tensor of images must be (N, C, H, W), not {tuple(images.shape)}")
    if isinstance(images, (str, os.PathLike)):
        return images_in(images) if Path(images).is_dir() else [images]
    return images


def _as_it_is(image: Tensor) -> Tensor:
    return image


@contextlib.contextmanager
def _bar(show: bool, total: int | None) -> Iterator[Callable[[int], None] | None]:
    if not show:
        yield None
        return
    try:
        from tqdm.auto import tqdm
    except ImportError as error:
        raise ImportError("progress=True needs tqdm: pip install tqdm") from error
    with tqdm(total=total, unit=" images") as bar:

        def advance(count: int) -> None:
            bar.update(count)

        yield advance
