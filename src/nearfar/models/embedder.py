"""`Embedder`: images to embeddings. The network itself is in network.py; here it is made from names, runs over many
images, and goes to files and back.
"""

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
        pool: "avg", "max", "avg+max", "gem" or, for tokens, "cls"; by default "cls" where there is such a token, else
            "avg".
        head: "linear", "mlp", "hash" (binary codes, see `nearfar.models.hashing`), or None for the features themselves.
        dimension: of the whole embedding, 512 by default; with several parts, a multiple of their number. With
            `head=None` it is the features' own.
        hidden: width of the "mlp" head; by default as many as there are features.
        layer_norm: normalise the features before the head to mean 0 and variance 1 (Proxy-NCA++).
        parts: stripes of the map, each with a head of its own, such as (1, 2, 3); see `Pooling`.
        head_start: "random" (He's normal distribution); "uniform", a linear head as `nn.Linear` starts; or "pca",
            "pca-whiten": principal components, which `fit_head(features)` finds, so that the head starts near the
            features, where a random one starts below. By default "pca-whiten" with a frozen trunk, else "random".
        freeze_trunk: train the head alone.
        freeze_to: a module of the trunk, such as "_blocks.2" of efficientnet-lite0: it and all before it stay as they
            are. The first layers know edges and colours already, and take half of a step's time and memory.
        freeze_batch_norm: keep the statistics, scales and shifts of the trunk's batch normalisation as they are, or
            "statistics" alone.
        batch_norm_momentum: how far the running statistics follow a batch; by default as the trunk has it, mostly 0.1.
        warmup_epochs: for so many epochs, only the head is trained; tell the epoch by `start_epoch(epoch)`.
        preprocess: an `EvalTransform` other than the trunk's own.
        transform: any callable of a Pillow image (torchvision's, albumentations', kornia's, your own) in place of
            `preprocess`. It is not saved.
        trunk_options: of the trunk's constructor, such as {"width": 64} of convnet.
        lora: options of `peft.LoraConfig`: low-rank adapters, the trunk itself frozen.
        label_names, calibration: what is saved and loaded with the model: names of the classes it was trained on, and
            thresholds and the like (JSON).
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
            raise InputError("lora= trains adapters in the trunk: it does not go with freeze_trunk=True")
        opened = open_trunk(trunk, weights, preprocess=preprocess, options=trunk_options, lora=lora)
        features = opened.channels * sum(parts)
        if head is None and dimension not in (None, features):
            raise InputError(f"head=None gives the {features} features themselves, not {dimension}")
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
        self._put_together(opened, settings, transform, label_names, calibration or {})

    def _put_together(
        self,
        trunk: Trunk,
        settings: Settings,
        transform: Transform | None,
        label_names: Sequence[str],
        calibration: Mapping[str, Any],
    ) -> None:
        """What a new model and a loaded one have in common."""
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
        """Embeddings (N, dimension) of images, float32 in main memory, one row each, in their order.

        Nothing but the result and a few batches of images is held at a time.

        Args:
            images: a folder (all images in it, sorted), one image file, a table's `images`, or any iterable of paths,
                bytes, open files, Pillow images or uint8 arrays; or a tensor (N, C, H, W), preprocessed already.
            batch_size: of the network; by default 8 on a CPU, where larger ones leave its cache, and 64 elsewhere.
            num_workers: threads that decode while the network computes; by default as many as cores, 0 for none.
            progress: show a bar.
            max_broken: the fraction of unreadable images to pass over; their rows are NaN and a warning lists them. By
                default the first is an error.
            output: "features" are taken before the head.
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
        """What `embed` gives, batch by batch, for results that do not fit into memory.

        Args:
            transform: in place of the model's own, such as `nearfar.data.SeededView` for augmented views.
            part_of: how many images there are in all, where these are some of them, such as those that no cache has
                yet: `max_broken` is a fraction of all.
            advance: called with the number of images done.
        """
        if output not in ("embeddings", "features"):
            raise InputError(f'output must be "embeddings" or "features", not {output!r}')
        source = listed(images)
        prepare: Callable[[Any], Tensor] = functools.partial(transformed, transform or self.transform)
        if isinstance(source, Tensor):
            prepare, num_workers = _as_it_is, 0
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
        """What `save` wrote, in evaluation mode; no network is needed.

        Args:
            trunk: the module, where the trunk was one of yours.
            transform: where the model had one of its own.
        """
        where = usable(device)
        tensors, description = storage.read(path)
        model = cls.__new__(cls)
        try:
            own = description["own_transform"]
            if own is not None and transform is None:
                raise InputError(f"this model prepares its images with {own}: give it as transform=")
            opened = reopen(description["trunk"], EvalTransform.from_dict(description["preprocess"]), trunk)
            settings = Settings.from_json(description["settings"])
            model._put_together(opened, settings, transform, description["label_names"], description["calibration"])
        except (KeyError, TypeError) as error:
            raise InputError(f"the description in {os.fspath(path)} is incomplete or damaged: {error!r}") from error
        load_weights(model, tensors, os.fspath(path))
        return model.to(where).eval()


def _as_it_is(image: Tensor) -> Tensor:
    return image
