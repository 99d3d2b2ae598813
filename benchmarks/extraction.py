"""Embedding files against the network alone, and training a head on cached features against a plain loop with PML.

Both are measured in turn, in one process, several times over, so that whatever else the machine does falls on both;
the ratio is the median over the rounds.
"""

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import nn

from benchmarks import results
from nearfar import losses
from nearfar.data.features import FeatureCache, Features
from nearfar.models import Embedder, images_in

BATCH = 8  # as large as is fastest on a CPU
TRAINING_BATCH, CLASSES, DIMENSION = 256, 100, 512


@dataclass(frozen=True)
class Row(results.Stamped):
    """One comparison: images or samples a second, ours and what it is held against."""

    case: str
    ours: float
    reference: float
    ratio: float
    note: str


def photographs(folder: Path, count: int, width: int = 500, height: int = 375) -> list[Path]:
    """JPEG files about as hard to decode as photographs of this size: smooth areas, edges and grain."""
    rng = np.random.default_rng(0)
    for number in range(count):
        shapes = Image.fromarray(rng.integers(0, 256, (12, 16, 3), np.uint8)).resize(
            (width, height), Image.Resampling.BICUBIC
        )
        grain = rng.normal(0, 6, (height, width, 1))
        pixels = np.clip(np.asarray(shapes, np.float64) + grain, 0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(folder / f"{number:05}.jpg", quality=90)
    return images_in(folder)


def in_rounds(ours: Callable[[], int], reference: Callable[[], int], rounds: int) -> tuple[float, float, float]:
    """Items a second of both, and the ratio, medians over rounds that take turns."""
    ours(), reference()
    pairs = []
    for turn in range(rounds):
        first, second = (ours, reference) if turn % 2 == 0 else (reference, ours)
        a, b = _rate(first), _rate(second)
        pairs.append((a, b) if turn % 2 == 0 else (b, a))
    return (
        statistics.median(a for a, _ in pairs),
        statistics.median(b for _, b in pairs),
        statistics.median(a / b for a, b in pairs),
    )


def _rate(work: Callable[[], int]) -> float:
    start = time.perf_counter()
    count = work()
    return count / (time.perf_counter() - start)


def extraction(paths: list[Path], trunk: str, rounds: int) -> tuple[str, float, float, float, str]:
    """Files to embeddings, against the forward pass of the same network on a batch that lies ready."""
    model = Embedder(trunk, head=None).eval()
    batch = torch.stack([model.preprocess(path) for path in paths[:BATCH]])

    def embed() -> int:
        return len(model.embed(paths, batch_size=BATCH))

    def forward() -> int:
        with torch.inference_mode():
            for _ in range(len(paths) // BATCH):
                model(batch)
        return len(paths) // BATCH * BATCH

    with Image.open(paths[0]) as image:
        width, height = image.size
    note = f"images/s; {len(paths)} files such as {width} x {height} {paths[0].suffix[1:]}, batches of {BATCH}"
    return f"embed {trunk}", *in_rounds(embed, forward, rounds), note


@contextmanager
def cached(samples: int, channels: int) -> Iterator[tuple[Features, torch.Tensor]]:
    """Features of as many classes as are trained on, in a cache."""
    rng = np.random.default_rng(0)
    labels = rng.integers(CLASSES, size=samples)
    centres = rng.normal(size=(CLASSES, channels)).astype(np.float32)

    def encode(images: Any, view: int) -> Iterator[np.ndarray[Any, Any]]:
        for start in range(0, len(images), 1000):
            rows = labels[[int(image[0, 0]) for image in images[start : start + 1000]]]
            yield centres[rows] + rng.normal(size=(len(rows), channels)).astype(np.float32)

    images = [np.full((1, 1), number, np.int32) for number in range(samples)]
    with tempfile.TemporaryDirectory() as folder:
        yield FeatureCache(folder, "benchmark").compute(images, encode), torch.from_numpy(labels)


def training(samples: int, channels: int, rounds: int) -> tuple[str, float, float, float, str]:
    """An epoch of a linear head under Proxy-Anchor: from the cache with ours, from memory by a DataLoader with PML."""
    from pytorch_metric_learning.losses import ProxyAnchorLoss

    def head_and(loss: nn.Module) -> tuple[nn.Module, nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(0)
        head = nn.Linear(channels, DIMENSION)
        return head, loss, torch.optim.AdamW([*head.parameters(), *loss.parameters()], 1e-3)

    def step(
        head: nn.Module, loss: nn.Module, optimiser: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor
    ) -> int:
        optimiser.zero_grad()
        loss(head(x), y).backward()
        optimiser.step()
        return len(x)

    with cached(samples, channels) as (features, labels):
        own = head_and(losses.ProxyAnchorLoss(CLASSES, DIMENSION))
        other = head_and(ProxyAnchorLoss(CLASSES, DIMENSION))
        everything = torch.utils.data.TensorDataset(torch.from_numpy(features[:]), labels)
        loader = torch.utils.data.DataLoader(everything, TRAINING_BATCH, shuffle=True)

        def ours() -> int:
            return sum(step(*own, x, y) for x, y in features.batches(labels, batch_size=TRAINING_BATCH))

        def theirs() -> int:
            return sum(step(*other, x, y) for x, y in loader)

        rates = in_rounds(ours, theirs, rounds)
    note = f"samples/s; {samples} x {channels} features, linear head of {DIMENSION}, batches of {TRAINING_BATCH}"
    return "train a head on cached features, ProxyAnchorLoss, against PML", *rates, note


def measure(
    images: Path | None, count: int, trunk: str, samples: int, rounds: int, out: Path | None
) -> list[tuple[str, float, float, float, str]]:
    """Both comparisons, printed, and appended to a CSV file."""
    with tempfile.TemporaryDirectory() as folder:
        paths = photographs(Path(folder), count) if images is None else images_in(images)[:count]
        rows = [extraction(paths, trunk, rounds)]
    rows.append(training(samples, 1280, rounds))
    for case, ours, reference, ratio, note in rows:
        print(f"{case}: {ours:,.0f} against {reference:,.0f}, ratio {ratio:.2f} ({note})", flush=True)
        if out is not None:
            row = Row(**results.stamp(), case=case, ours=ours, reference=reference, ratio=ratio, note=note)  # type: ignore[arg-type]
            results.append(row, out)
    return rows
