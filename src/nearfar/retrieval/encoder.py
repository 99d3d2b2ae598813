"""`Encoder`: computes the embeddings of an index, and identifies the model that made them."""

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

PROJECTED_AT_A_TIME = 4096  # cached features


class Encoder:
    """A model with all settings that its embeddings depend on.

    Args:
        model: the model, of a run or any other.
        flip: average the embeddings of an image and its mirror image, as runs do with `evaluation.flip`.
        max_broken: the largest tolerated fraction of broken images, which are skipped and listed in a warning.
        name: the name of the run, for messages.
    """

    def __init__(self, model: Embedder, *, flip: bool = False, max_broken: float = 0.0, name: str = ""):
        self.model, self.flip, self.max_broken, self.name = model, flip, max_broken, name
        self.dimension = model.dimension
        self.similarity: Similarity = "hamming" if model.binary else "cosine"

    @classmethod
    def of_run(cls, run: Run | str | os.PathLike[str], device: str = "cpu") -> "Encoder":
        """The encoder of a run, with the settings of its evaluation."""
        run = run if isinstance(run, Run) else Run(run)
        config = run.config
        if config.model.backbone == "features":
            raise RetrievalError(
                f"the model of {run.folder} was trained on features, and has no trunk to embed images with: evaluate "
                f"it on other features with nearfar evaluate {run.folder} DATA"
            )
        model = run.model(device)
        return cls(model, flip=config.evaluation.flip, max_broken=config.data.max_broken, name=str(run.folder))

    @functools.cached_property
    def fingerprint(self) -> str:
        """32 hexadecimal digits that identify the weights, the settings and the preprocessing."""
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
        """The calibrated threshold of the run, from which two images count as the same; None if it has none."""
        threshold: Mapping[str, Any] | None = self.model.calibration.get("threshold")
        return threshold

    def about(self, kind: Kind = "exact", threshold: Mapping[str, Any] | None = None) -> About:
        """The description of an index of this model's embeddings."""
        return About(kind, self.similarity, self.dimension, self.fingerprint, self.name, threshold)

    def embed(self, images: Any, *, max_broken: float = 0.0) -> Floats:
        """Embeddings (N, dimension) of a file, a folder, or a sequence of images.

        A broken image raises an error, or has a row of NaN if `max_broken` allows it.
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
        """Yield embeddings in batches, with NaN for broken images.

        Args:
            images: as for `embed`.
            max_broken: the largest tolerated fraction of broken images; by default the encoder's.
            part_of: the number of all images if these are a part of them; the fraction is then relative to it.
            advance: called with the number of images of each batch.
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
        """Yield the embeddings of the images of a data set. The features of an unchanged trunk are cached, in the same
        cache as in training.
        """
        settings = self.model.settings
        if self.flip or not (settings.freeze_trunk or settings.head is None):
            yield from self.stream(images, part_of=part_of, advance=advance)
            return

        def encode(missing: Any, view: int) -> Iterator[Floats]:
            total = part_of or len(images)
            return self.model.stream(missing, output="features", max_broken=self.max_broken, part_of=total)

        cache = FeatureCache(cache_folder() / "features", self.model.feature_key())
        features = cache.compute(images, encode, progress=by_steps(advance))
        broken = set(features.missing.tolist())
        for start in range(0, len(features), PROJECTED_AT_A_TIME):
            rows = np.arange(start, min(start + PROJECTED_AT_A_TIME, len(features)))
            good = np.array([row not in broken for row in rows.tolist()], np.bool_)
            result = np.full((len(rows), self.dimension), np.nan, np.float32)
            self.model.eval()
            with torch.inference_mode():
                batch = torch.from_numpy(features.take(rows[good])).to(self.model.device)
                result[good] = self.model.project(batch).float().cpu().numpy()
            yield result

    def _network(self, images: Tensor) -> Tensor:
        embeddings: Tensor = self.model(images)
        return normalize(embeddings + self.model(images.flip(-1)), dim=1) if self.flip else embeddings
