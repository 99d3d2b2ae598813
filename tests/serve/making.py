"""A gallery of small made pictures, an embedding that a child could compute, and the application on top of them."""

import io
from pathlib import Path

import numpy as np
from PIL import Image
from starlette.testclient import TestClient

from nearfar.evaluation import OpenSet
from nearfar.imaging import load_image
from nearfar.retrieval.index import About, make_index
from nearfar.serve.app import create_app
from nearfar.serve.limits import Limits
from nearfar.serve.served_gallery import ServedGallery
from nearfar.serve.served_run import RunSummary, ServedRun
from tests.training.making import patterns

TOKEN = "the-right-token"
THRESHOLD = 0.9
FREE = Limits(rate=None)
HOSTILE = '</script><img src=x onerror="window.broken = 1">'


def embed(source) -> np.ndarray:
    """(1, 16): the means of 4 x 4 blocks, their mean taken away."""
    grey = np.asarray(load_image(source).convert("L").resize((16, 16)), np.float32)
    blocks = grey.reshape(4, 4, 4, 4).mean((1, 3)).reshape(1, 16)
    blocks -= blocks.mean()
    return blocks / max(float(np.linalg.norm(blocks)), 1e-6)


def photos(folder: Path, classes: int = 10, each: int = 6, noise: float = 30.0) -> list[tuple[str, str]]:
    """Files of pictures, and the names of their classes."""
    table = patterns(classes=classes, each=each, noise=noise)
    folder.mkdir(parents=True, exist_ok=True)
    made = []
    for row in range(len(table)):
        path = folder / f"{row:03}.png"
        Image.fromarray(np.asarray(table.images[row])).save(path)
        made.append((str(path), table.label_name(row)))
    return made


PROMISE = OpenSet("template", 0.45, 0.01, 0.01, (0.0, 0.02), 0.9, (0.8, 0.95), 0.5, -4.0, 10.0, 10, 10, 30, 3.0)


def promised(about, counts, far) -> OpenSet:
    """A calibration that a child could make."""
    return PROMISE


def served(
    folder: Path, key: str = "a", *, threshold: float | None = THRESHOLD, calibrate=promised, **options
) -> ServedRun:
    """A run whose gallery is a folder of pictures; every name of a class ends with markup, which must do no harm."""
    pictures = [(path, f"{label} {HOSTILE}") for path, label in photos(folder / "photos", **options)]
    kept = About("exact", "cosine", 16, "made", threshold=threshold and {"threshold": threshold, "precision": 0.95})
    index = make_index(folder / "index", kept)
    with index.change() as change:
        ids, labels = zip(*pictures, strict=True)
        change.put(ids, np.concatenate([embed(path) for path in ids]), labels)
    gallery = ServedGallery(index, lambda image: image, folder / "added")
    about = RunSummary(f"made {key}", "CircleLoss", "photos", {"recall@1": 0.75})
    return ServedRun(key, about, embed, gallery, calibrate=calibrate)


def client(*runs: ServedRun, limits: Limits = FREE, token: str | None = TOKEN, **options) -> TestClient:
    """Someone who asks, from 127.0.0.1."""
    app = create_app({run.key: run for run in runs}, token=token, limits=limits, prepare=False)
    return TestClient(app, base_url="http://127.0.0.1:8000", client=("127.0.0.1", 50000), **options)


def picture(kind: str = "PNG", size: tuple[int, int] = (16, 16), seed: int = 0, **options) -> bytes:
    """A picture, encoded."""
    rng = np.random.default_rng(seed)
    small = rng.integers(0, 255, (4, 4), dtype=np.uint8).repeat(4, 0).repeat(4, 1)
    file = io.BytesIO()
    Image.fromarray(small).convert("RGB").resize(size).save(file, kind, **options)
    return file.getvalue()


def bearer(token: str = TOKEN) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}
