"""`Embedder`: an embedding network (network.py) made by name, with methods to embed many images, save and load."""

import functools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import nearfar
from nearfar.errors import InputError
from nearfar.imaging import EvalTransform, ImageLike
from nearfar.imaging.callables import transformed
from nearfar.imaging.sources import ImageSequence
from nearfar.models import storage
from nearfar.models.checkpoints import load_weights
from nearfar.models.devices import usable
from nearfar.models.extraction import extract, gathered, listed, progress_bar
from nearfar.models.fingerprint import describe_transform, digest_of
from nearfar.models.hashing import pack_codes
from nearfar.models.network import EmbeddingNetwork
from nearfar.models.pooling import Pool
from nearfar.models.settings import FreezeBatchNorm, HeadName, HeadStart, Settings
from nearfar.models.trunks import Trunk, open_trunk, reopen

Images = str | os.PathLike[str] | Tensor | Iterable[ImageLike] | ImageSequence
Output = Literal["embeddings", "features"]
Transform = Callable[..., Any]


class Embedder(EmbeddingNetwork):
    """A trunk, a pooling and a head: images (N, C, H, W) to unit vectors (N, dimension).

    Args:
        trunk: a name (`list_trunks()`, "hf:MODEL", "timm:MODEL") or a module; see `open_trunk`.
        weights: "default" (pretrained where weights come with the trunk), "random", or a checkpoint file.
        pool: "avg", "max", "avg+max", "gem" or, for tokens, "cls"; by default "cls" if the trunk has a class token,
            else "avg".
        head: "linear", "mlp", "hash" (binary codes, see `nearfar.models.hashing`), or None for the features.
        dimension: dimension of the embedding, 512 by default; a multiple of the number of parts. With `head=None` it is
            the number of features.
        hidden: width of the "mlp" head; by default the number of features.
        layer_norm: normalise the features before the head to mean 0 and variance 1 (Proxy-NCA++).
        parts: numbers of stripes of the map, each stripe with its own head, such as (1, 2, 3); see `Pooling`.
        head_start: initialisation of the head: "random" (He's normal distribution), "uniform" (as `nn.Linear`), or
            "pca" and "pca-whiten", the principal components computed by `fit_head(features)`. Unlike a random head,
            these nearly keep the accuracy of the features. By default "pca-whiten" with a frozen trunk, else "random".
        freeze_trunk: train only the head.
        freeze_to: a module of the trunk, such as "_blocks.2" of efficientnet-lite0. It and all modules before it are
            frozen. The first layers hardly change in fine-tuning, but take half of a step's time and memory.
        freeze_batch_norm: freeze the statistics, scales and shifts of the trunk's batch normalisation; "statistics"
            freezes only the statistics.
        batch_norm_momentum: momentum of the running statistics; by default the trunk's, mostly 0.1.
        warmup_epochs: number of epochs in which only the head is trained; set the epoch with `start_epoch(epoch)`.
        preprocess: an `EvalTransform` instead of the trunk's.
        transform: any callable of a Pillow image (such as torchvision's, albumentations' or kornia's) instead of
            `preprocess`. It is not saved.
        trunk_options: options of the trunk's constructor, such as {"width": 64} for convnet.
        lora: options of `peft.LoraConfig` for low-rank adapters; all other weights of the trunk are frozen.
        label_names: names of the training classes, saved with the model.
        calibration: thresholds and other JSON values, saved with the model.
    """

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
        freeze_to: str | None = None,
        freeze_batch_norm: FreezeBatchNorm = False,
        batch_norm_momentum: float | None = None,
        warmup_epochs: int = 0,
        preprocess: EvalTransform | None = None,
        transform: Transform | None = None,
        trunk_options: Mapping[str, Any] | None = None,
        lora: Mapping[str, Any] | None = None,
        label_names: Sequence[str] = (),
        calibration: Mapping[str, Any] | None = None,
    ):
        if lora is not None and freeze_trunk:
            raise InputError("lora= trains adapters in the trunk: leave out freeze_trunk=True")
        opened = open_trunk(trunk, weights, preprocess=preprocess, options=trunk_options, lora=lora)
        features = opened.channels * sum(parts)
        if head is None and dimension not in (None, features):
            raise InputError(f"head=None returns the {features} features: dimension={dimension} needs a head")
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
            freeze_to=freeze_to,
            freeze_batch_norm=freeze_batch_norm,
            batch_norm_momentum=batch_norm_momentum,
            warmup_epochs=warmup_epochs,
        )
        self._initialise(opened, settings, transform, label_names, calibration or {})

    def _initialise(
        self,
        trunk: Trunk,
        settings: Settings,
        transform: Transform | None,
        label_names: Sequence[str],
        calibration: Mapping[str, Any],
    ) -> None:
        """Initialise a new or a loaded model."""
        super().__init__(trunk, settings)
        self.trunk_description = trunk.description
        self.preprocess = trunk.preprocess
        self.transform: Transform = transform or trunk.preprocess
        self.label_names = tuple(label_names)
        self.calibration = dict(calibration)

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
        """Compute the embeddings (N, dimension) of images, as float32 on the CPU, in the order of the images.

        Only the result and a few batches of images are held in memory.

        Args:
            images: a folder (all images in it, sorted), one image file, a table's `images`, or any iterable of paths,
                bytes, open files, Pillow images or uint8 arrays; or a preprocessed tensor (N, C, H, W).
            batch_size: batch size of the network; by default 8 on a CPU, where larger ones exceed its cache, else 64.
            num_workers: threads that decode images; by default one per core; 0 decodes without threads.
            progress: whether to show a bar.
            max_broken: the largest tolerated fraction of broken images. Their rows are NaN, and a warning lists them.
                By default the first broken image raises an error.
            output: "embeddings", or "features" for the input of the head.
        """
        source = listed(images)
        total = len(source) if isinstance(source, Sized) else None
        with progress_bar(progress, total) as advance:
            rows = self.stream(
                source,
                batch_size=batch_size,
                num_workers=num_workers,
                max_broken=max_broken,
                output=output,
                advance=advance,
            )
            width = self.dimension if output == "embeddings" else self.feature_size
            return torch.from_numpy(gathered(rows, total, width))

    def stream(
        self,
        images: Images,
        *,
        transform: Transform | None = None,
        batch_size: int | None = None,
        num_workers: int | None = None,
        max_broken: float = 0.0,
        part_of: int | None = None,
        output: Output = "embeddings",
        advance: Callable[[int], None] | None = None,
    ) -> Iterator[NDArray[np.float32]]:
        """Yield the result of `embed` in batches, for results that do not fit into memory.

        Args:
            transform: a transform instead of the model's, such as `nearfar.data.SeededView` for augmented views.
            part_of: the number of all images if these are a part of them, such as those missing in a cache.
                `max_broken` is then a fraction of this number.
            advance: called with the number of images of each batch.
        """
        if output not in ("embeddings", "features"):
            raise InputError(f'output must be "embeddings" or "features", not {output!r}')
        source = listed(images)
        prepare: Callable[[Any], Tensor] = functools.partial(transformed, transform or self.transform)
        if isinstance(source, Tensor):
            prepare, num_workers = _identity, 0
        device = self.device
        was_training = self.training
        self.eval()
        try:
            yield from extract(
                self if output == "embeddings" else self.features,
                source,
                prepare,
                batch_size=(8 if device.type == "cpu" else 64) if batch_size is None else batch_size,
                num_workers=num_workers,
                device=device,
                max_broken=max_broken,
                part_of=part_of,
                width=self.dimension if output == "embeddings" else self.feature_size,
                advance=advance,
            )
        finally:
            self.train(was_training)

    def codes(self, images: Images, **options: Any) -> NDArray[np.uint8]:
        """Packed binary codes (N, ceil(dimension / 8)), the signs of the embeddings; options as for `embed`."""
        return pack_codes(self.embed(images, **options))

    # Identity and storage

    def feature_key(self, transform: Transform | None = None) -> str:
        """A key for feature caches: it identifies the trunk and the pooling with their weights, and the transform."""
        preparation = describe_transform(transform or self.transform)
        digest = digest_of({"trunk": self.trunk, "pooling": self.pooling}, self.trunk_description)
        return f"{digest} {self.pooling.pool} {self.pooling.parts} {preparation}"

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Save the model in one safetensors file, named `model.safetensors` if `path` is a folder."""
        description = {
            "version": nearfar.__version__,
            "trunk": self.trunk_description,
            "preprocess": self.preprocess.to_dict(),
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
        """Load a saved model, in evaluation mode. Nothing is downloaded.

        Args:
            path: the file, or its folder.
            trunk: the trunk, if the model was made with a module.
            transform: the transform, if the model was made with one.
            device: the device of the model.
        """
        target = usable(device)
        tensors, description = storage.read(path)
        model = cls.__new__(cls)
        try:
            saved_transform = description["own_transform"]
            if saved_transform is not None and transform is None:
                raise InputError(f"this model was made with the transform {saved_transform}: give it as transform=")
            opened = reopen(description["trunk"], EvalTransform.from_dict(description["preprocess"]), trunk)
            settings = Settings.from_json(description["settings"])
            model._initialise(opened, settings, transform, description["label_names"], description["calibration"])
        except (KeyError, TypeError) as error:
            raise InputError(f"the description in {os.fspath(path)} is incomplete or damaged: {error!r}") from error
        load_weights(model, tensors, os.fspath(path))
        return model.to(target).eval()


def _identity(image: Tensor) -> Tensor:
    return image
