"""A small run as training leaves it, without training."""

import csv
import json
from pathlib import Path

import numpy as np

from nearfar.data import SPLITS, Encoded, Pixels, Table

HOSTILE = '</script><script>window.broken = 1</script><img src=x onerror="window.broken = 2">'


def table(classes: int = 6, each: int = 8, names: tuple[str, ...] | None = None, split: str = "test") -> Table:
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(classes), each)
    pixels = (rng.uniform(40, 220, (classes, 1, 12, 16, 3)) + rng.normal(0, 9, (classes, each, 12, 16, 3))).clip(0, 255)
    images = Pixels(pixels.reshape(-1, 12, 16, 3).astype(np.uint8))
    found = names or tuple(f"class {i}" for i in range(classes))
    return Table("made", labels, found, np.full(len(labels), SPLITS.index(split), np.int8), images)


def embeddings(labels: np.ndarray, noise: float = 0.5, dimension: int = 8) -> np.ndarray:
    rng = np.random.default_rng(1)
    centres = rng.normal(size=(labels.max() + 1, dimension))
    return (centres[labels] + noise * rng.normal(size=(len(labels), dimension))).astype(np.float32)


def run_folder(folder: Path, loss: str = "- {name: CircleLoss, m: 0.25}") -> Path:
    folder.mkdir()
    (folder / "config.yaml").write_text(f"data:\n  path: made\nloss:\n{loss}\nseed: 0\n")
    (folder / "environment.json").write_text(json.dumps({"python": "3.99", "packages": {"torch": "9.9"}}))
    after = {"recall@1": 0.75, "map@r": 0.5, "mrr": 0.8, "queries": 48, "lfw threshold": 0.31}
    before = {"recall@1": 0.25, "map@r": 0.125, "mrr": 0.4, "queries": 48, "lfw threshold": 0.52}
    metrics = {"before": before, "after": after, "measured_on": "test", "open_set": True, "steps": 1234,
               "best": {"step": 20, "value": 0.5}, "threshold": {"threshold": 0.612}, "train_seconds": 4000.0}  # fmt: skip
    (folder / "metrics.json").write_text(json.dumps(metrics))
    with (folder / "curves.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["step", "loss", "s_p", "s_n", "recall@1", "map@r"])
        writer.writerows([[step, 9 / step, 0.5, 0.2, "" if step % 10 else step / 50, ""] for step in range(1, 31)])
        file.write("31,0.2")  # cut off by a kill
    return folder


def with_broken(made: Table, rows: list[int]) -> Table:
    """The same table with encoded images, of which some cannot be read."""
    import dataclasses
    import io

    from PIL import Image

    encoded = []
    assert made.images is not None
    for row in range(len(made)):
        file = io.BytesIO()
        Image.fromarray(made.images[row]).save(file, "PNG")
        encoded.append(b"broken" if row in rows else file.getvalue())
    return dataclasses.replace(made, images=Encoded(encoded))
