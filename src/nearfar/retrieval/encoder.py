"""A model as an index uses it: images to embeddings, and what tells its embeddings from those of another."""

import functools
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from nearfar.data import FeatureCache
from nearfar.data.features import by_steps
from nearfar.foundation.folders import cache_folder
from nearfar.imaging.callables import transformed
from nearfar.imaging.sources import ImageSequence
from nearfar.models import Embedder
from nearfar.models.extraction import extract, listed
from nearfar.models.fingerprint import describe_transform, digest_of
from nearfar.retrieval.index import About, Floats, Kind, RetrievalError, Similarity
from nearfar.training.runs import Run

PROJECTED_AT_A_TIME = 4096  # features of a frozen trunk


class Encoder:
    """A model with everything that its embeddings depend on.

    Args:
        model: of a run, or any other.
        flip: average an image and its mirror image, as runs do that were told to.
        max_broken: the share of images that may be unreadable; they are passed over, and a warning lists them.
        name: of the run, for messages.
    """

    def __init__(self, model: Embedder, *, flip: bool = False, max_broken: float = 0.0, name: str = ""):
        self.model, self.flip, self.max_broken, self.name = model, flip, max_broken, name
        self.dimension = model.dimension
        self.similarity: Similarity = "hamming" if model.binary else "cosine"

    @classmethod
    def of_run(cls, run: Run | str | os.PathLike[str], device: str = "cpu") -> "Encoder":
        """The model of a run, used as the run measured it."""
        run = run if isinstance(run, Run) else Run(run)
        config = run.config
        if config.model.backbone == "features":
            raise RetrievalError(
                f"the model of {run.folder} was trained on features, and has no trunk to embed images with: nearfar "
                f"evaluate {run.folder} DATA measures it on other features"
            )
        model = run.model(device)
        return cls(model, flip=config.evaluation.flip, max_broken=config.data.max_broken, name=str(run.folder))

    @functools.cached_property
    def fingerprint(self) -> str:
        """32 digits that change with any weight, with the head, and with how images are prepared."""
        model = self.model
        description = {
            "trunk": model.trunk_description,
            "settings": model.settings.to_json(),
            "transform": describe_transform(model.transform),
            "flip": self.flip,
        }
        return digest_of({"model": model}, description)

    @property
    def threshold(self) -> Mapping[str, Any] | None:
        """What the run has calibrated: from which similarity on two images count as the same."""
        found: Mapping[str, Any] | None = self.model.calibration.get("threshold")
        return found

    def about(self, kind: Kind = "exact", threshold: Mapping[str, Any] | None = None) -> About:
        """What an index of this model's embeddings is."""
        return About(kind, self.similarity, self.dimension, self.fingerprint, self.name, threshold)

    def embed(self, images: Any, *, max_broken: float = 0.0) -> Floats:
        """Embeddings (N, dimension) of images: a file, a folder, or a sequence of whatever is an image.

        An image that cannot be read is an error, unless some may be: their rows are NaN.
        """
        rows = [np.empty((0, self.dimension), np.float32), *self.stream(images, max_broken=max_broken)]
        return np.concatenate(rows)

    def stream(
        self,
        images: Any,
        *,
        max_broken: float | None = None,
        part_of: int | None = None,
        advance: Callable[[int], None] | None = None,
    ) -> Iterator[Floats]:
        """The same batch by batch. By default, as many images may be unreadable as the run allows.

        Args:
            part_of: how many images there are in all, where these are some of them: the share is of all.
            advance: called with the number of images done.
        """
        device = self.model.device
        self.model.eval()
        yield from extract(
            self._network,
            listed(images),
            functools.partial(transformed, self.model.transform),
            batch_size=8 if device.type == "cpu" else 64,
            device=device,
            max_broken=self.max_broken if max_broken is None else max_broken,
            part_of=part_of,
            width=self.dimension,
            advance=advance,
        )

    def gallery(
        self, images: ImageSequence, *, part_of: int | None = None, advance: Callable[[int], None] | None = None
    ) -> Iterator[Floats]:
        """The same for the images of a data set. Where the trunk is as it came, its features are taken from the cache
        that training uses, or left there.
        """
        settings = self.model.settings
        if self.flip or not (settings.freeze_trunk or settings.head is None):
            yield from self.stream(images, part_of=part_of, advance=advance)
            return

        def encode(some: Any, view: int) -> Iterator[Floats]:
            total = part_of or len(images)
            return self.model.stream(some, output="features", max_broken=self.max_broken, part_of=total)

        cache = FeatureCache(cache_folder() / "features", self.model.feature_key())
        features = cache.compute(images, encode, progress=by_steps(advance))
        missing = set(features.missing.tolist())
        for start in range(0, len(features), PROJECTED_AT_A_TIME):
            rows = np.arange(start, min(start + PROJECTED_AT_A_TIME, len(features)))
            there = np.array([row not in missing for row in rows.tolist()], np.bool_)
            result = np.full((len(rows), self.dimension), np.nan, np.float32)
            self.model.eval()
            with torch.inference_mode():
                taken = torch.from_numpy(features.take(rows[there])).to(self.model.device)
                result[there] = self.model.project(taken).float().cpu().numpy()
            yield result

    def _network(self, images: Tensor) -> Tensor:
        found: Tensor = self.model(images)
        return normalize(found + self.model(images.flip(-1)), dim=1) if self.flip else found
