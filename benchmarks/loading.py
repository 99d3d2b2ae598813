"""Photographs decoded and transformed by worker processes: nearfar's loader against plain Pillow in a DataLoader.

Both give the same batches of the same files from the same number of workers, in turn, several times over, in one
process; the ratio is the median over the rounds. The plain way is the usual one: decode all of it, resize all of it,
crop, and normalise with four passes over floats.
"""

import itertools
import tempfile
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from benchmarks import extraction, results
from nearfar.data import EvalTransform, Files, Loader, PlainSampler, Table, TrainTransform
from nearfar.data.tables import split_column
from nearfar.imaging import images_below
from nearfar.imaging.pixels import IMAGENET_MEAN, IMAGENET_STD

CSV = results.CSV.with_name("loading.csv")
BATCH = 32
SIZE, RESIZE = 224, 256
METHODS = {"bicubic": Image.Resampling.BICUBIC, "bilinear": Image.Resampling.BILINEAR}  # Pillow's default first


class Plain(Dataset[Tensor]):
    """Decode, resize, crop, normalise, one after the other."""

    def __init__(self, paths: list[Path], train: bool, interpolation: str):
        self.paths, self.train, self.method = paths, train, METHODS[interpolation]
        self.mean, self.std = (torch.tensor(values)[:, None, None] for values in (IMAGENET_MEAN, IMAGENET_STD))

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Tensor:
        image = Image.open(self.paths[index]).convert("RGB")
        image = self.random_crop(image) if self.train else self.centre_crop(image)
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()
        return (pixels.float().div(255) - self.mean) / self.std

    def centre_crop(self, image: Image.Image) -> Image.Image:
        scale = RESIZE / min(image.size)
        image = image.resize((round(image.width * scale), round(image.height * scale)), self.method)
        left, top = (image.width - SIZE) // 2, (image.height - SIZE) // 2
        return image.crop((left, top, left + SIZE, top + SIZE))

    def random_crop(self, image: Image.Image) -> Image.Image:
        """Of the same distribution of areas as ours."""
        side = min(image.size) * np.sqrt(np.random.default_rng().uniform(0.16, 1))
        left, top = (np.random.default_rng().uniform(0, length - side) for length in image.size)
        image = image.crop((int(left), int(top), int(left + side), int(top + side))).resize((SIZE, SIZE), self.method)
        return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if np.random.default_rng().random() < 0.5 else image


def table_of(paths: list[Path]) -> Table:
    """All of one class: labels do not matter here."""
    labels = np.zeros(len(paths), np.int64)
    files = Files("", [str(path) for path in paths])
    return Table("photographs", labels, ("photograph",), split_column(["test"] * len(paths)), files)


def compare(
    paths: list[Path], train: bool, interpolation: str, workers: int, rounds: int
) -> tuple[float, float, float]:
    """Photographs a second of ours and of the plain way, and their ratio."""
    options = {"interpolation": interpolation}
    transform = TrainTransform(SIZE, **options) if train else EvalTransform(SIZE, RESIZE, **options)  # type: ignore[arg-type]
    loader = Loader(table_of(paths), transform, PlainSampler(len(paths), BATCH, shuffle=train), workers=workers)
    plain = DataLoader(
        Plain(paths, train, interpolation), BATCH, shuffle=train, num_workers=workers, persistent_workers=workers > 0
    )

    def ours() -> int:
        return sum(len(batch.rows) for batch in loader)

    def reference() -> int:
        return sum(len(batch) for batch in plain)

    return extraction.in_rounds(ours, reference, rounds)


def measure(
    folder: Path | None, count: int, workers: int, rounds: int, out: Path | None
) -> list[tuple[str, float, float, float]]:
    """Photographs a second of ours and of the plain way, and the ratio, for each transform; appended to `out`."""
    rows = []
    with ExitStack() as stack:
        if folder is None:
            made = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            paths = extraction.photographs(made, count)
        else:
            paths = [folder / name for name in itertools.islice(images_below(folder), count)]
        with Image.open(paths[0]) as first:
            note = f"images/s; {len(paths)} files such as {first.width} x {first.height} {paths[0].suffix[1:]}"
        for train in (False, True):
            for interpolation in METHODS:
                found = compare(paths, train, interpolation, workers, rounds)
                case = f"{'train' if train else 'evaluation'} transform, {interpolation}, {workers} workers"
                rows.append((case, *found))
                print(f"{case}: {found[0]:,.0f} against {found[1]:,.0f}, ratio {found[2]:.2f} ({note})", flush=True)
                if out is not None:
                    row = dict(zip(("case", "ours", "reference", "ratio"), rows[-1], strict=True))
                    results.append(extraction.Row(**results.stamp(), **row, note=note), out)  # type: ignore[arg-type]
    return rows
