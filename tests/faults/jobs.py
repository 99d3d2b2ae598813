"""What the children of `crash.py` do, besides commands."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from nearfar.data import FeatureCache, embedded, feature_files
from nearfar.retrieval import structures
from nearfar.retrieval.index import open_index
from nearfar.serve.served_gallery import ServedGallery, item_key
from nearfar.serve.served_run import RunSummary, ServedRun
from tests.serve.making import bearer, client, embed, picture

IMAGES = 12
CLASSES, PER_CLASS = 4, 3


# The encoder cache


def cached_images() -> list[bytes]:
    return [f"image {number}".encode() for number in range(IMAGES)]


def feature_of(image: bytes, view: int) -> np.ndarray:
    seed = int.from_bytes(hashlib.sha256(image + bytes([view])).digest()[:8], "little")
    return np.random.default_rng(seed).normal(size=5).astype(np.float32)


class Encode:
    """Three images at a time; counts what it is asked for."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self, images: Any, view: int) -> Iterator[np.ndarray]:
        for start in range(0, len(images), 3):
            some = images[start : start + 3]
            self.asked += len(some)
            yield np.stack([feature_of(image, view) for image in some])


def fill_cache(folder: str) -> None:
    """Two views of every image, on the disk after every batch."""
    feature_files.COMMIT_BYTES = 1
    FeatureCache(folder, "key").compute(cached_images(), Encode(), views=2)


# The embedded data set


def drawn(classes: int, per_class: int, size: int, *_: Any) -> dict[str, np.ndarray]:
    """Stands for drawing, which takes seconds."""
    count = classes * per_class
    return {
        "images": np.random.default_rng(0).integers(0, 255, (count, size, size), np.uint8),
        "labels": np.repeat(np.arange(classes), per_class),
        "face": np.arange(count) % 3,
        "characters": np.arange(classes) + ord("a"),
        "face_names": np.array(["one", "two", "three"]),
    }


def make_glyphs(folder: str) -> None:
    embedded._make = drawn
    embedded.glyphs(classes=CLASSES, per_class=PER_CLASS, size=8, cache=folder)


# An index


def build_graph(folder: str) -> None:
    """Turn an exact index into a graph, which needs more images than these."""
    structures.SMALLEST = {"hnsw": 5, "ivfpq": 5}
    open_index(folder).compact("hnsw")


# The gallery of a server


def change_gallery(folder: str, method: str, content: str, label: str) -> None:
    """Send one picture, or take one image out by its id, and print the answer as the client has it."""
    index = open_index(Path(folder) / "index")
    gallery = ServedGallery(index, lambda image: image, Path(folder) / "added")
    asking = client(ServedRun("a", RunSummary("made", "CircleLoss", "photos", {}), embed, gallery))
    if method == "add":
        body = picture(seed=int(content))
        answer = asking.post("/api/runs/a/items", params={"label": label}, content=body, headers=bearer())
    else:
        answer = asking.delete(f"/api/runs/a/items/{item_key(content)}", headers=bearer())
    print(json.dumps({"status": answer.status_code, "detail": answer.json().get("detail")}))
