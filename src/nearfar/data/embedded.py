"""`glyphs`: the embedded data set. Its classes are characters; its images are distorted drawings of them in faces of
the DejaVu and STIX families, which matplotlib ships. It is drawn on first use and cached.
"""

import hashlib
import json
import os
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from nearfar.data.columns import Pixels
from nearfar.data.tables import SPLITS, Table
from nearfar.errors import InputError
from nearfar.foundation.files import replaced_file
from nearfar.foundation.folders import cache_folder

NAMES = ("images", "labels", "face", "characters", "face_names")  # arrays in the cache
VERSION = 1  # increase it when the drawing changes, so that old caches are not used
HELD_OUT = ("DejaVuSans-BoldOblique", "DejaVuSansMono", "DejaVuSerif-Italic", "STIXGeneralBol")


def glyphs(
    classes: int = 1200,
    per_class: int = 16,
    size: int = 32,
    difficulty: float = 1.0,
    seed: int = 0,
    cache: str | os.PathLike[str] | None = None,
) -> Table:
    """Distorted characters in many faces, for retrieval of unseen characters in unseen faces.

    A random half of the characters is train, the other half test. Training images are in 12 faces, test images in these
    and four more (`HELD_OUT`). The column `face` has the faces. Images are grey, size × size.

    Args:
        classes: the number of characters, at most about 1,300.
        per_class: images of each character, cycling through its faces.
        size: side of the images in pixels.
        difficulty: the strength of the distortions; 0 for none, 2 for twice the default.
        seed: determines the choice of characters, the split and the distortions.
        cache: the cache folder; by default that of `cache_folder`.
    """
    if not (isinstance(classes, int) and classes >= 2 and per_class >= 2 and size >= 8 and 0 <= difficulty <= 3):
        raise InputError(
            f"glyphs(classes={classes}, per_class={per_class}, size={size}, difficulty={difficulty}): there must be at "
            "least 2 classes of 2 images, of 8 pixels, and a difficulty from 0 to 3"
        )
    settings = {"classes": classes, "per_class": per_class, "size": size, "difficulty": float(difficulty), "seed": seed}
    folder = cache_folder() if cache is None else Path(cache)
    key = hashlib.sha256(json.dumps([VERSION, settings], sort_keys=True).encode()).hexdigest()[:16]
    path = folder / f"glyphs-{key}.npz"
    content = _load(path)
    if content is None:
        content = _make(classes, per_class, size, difficulty, seed)
        with replaced_file(path) as file:
            np.savez(file, **content)  # type: ignore[arg-type]
    images, labels, faces = content["images"], content["labels"], content["face"]
    characters, face_names = content["characters"], content["face_names"]
    split = np.where(labels < (classes + 1) // 2, SPLITS.index("train"), SPLITS.index("test"))
    return Table(
        "glyphs",
        labels,
        tuple(chr(code) for code in characters.tolist()),
        split.astype(np.int8),
        Pixels(images),
        columns={"face": faces},
        names={"face": tuple(face_names.tolist())},
        embedded=True,
    )


def _make(classes: int, per_class: int, size: int, difficulty: float, seed: int) -> dict[str, npt.NDArray[Any]]:
    from nearfar.data.glyph_distortions import distort
    from nearfar.data.glyph_faces import FACES, faces

    font_faces = faces()
    if classes > len(font_faces.characters):
        raise InputError(f"classes={classes}: the faces have only {len(font_faces.characters)} distinct characters")
    rng = np.random.default_rng(seed)
    characters = rng.permutation(font_faces.characters)[:classes]
    training_faces = [i for i, name in enumerate(FACES) if name not in HELD_OUT]
    shapes, face_of = [], []
    for label, code in enumerate(characters.tolist()):
        allowed = training_faces if label < (classes + 1) // 2 else range(len(FACES))
        drawn = {face: shape for face in allowed if (shape := font_faces.draw(code, face)) is not None}
        cycle = np.resize(rng.permutation(list(drawn)), per_class).tolist()
        face_of += cycle
        shapes += [drawn[face] for face in cycle]
    return {
        "images": distort(np.stack(shapes), size, difficulty, rng),
        "labels": np.repeat(np.arange(classes), per_class),
        "face": np.array(face_of),
        "characters": characters,
        "face_names": np.array(FACES),
    }


def _load(path: Path) -> dict[str, npt.NDArray[Any]] | None:
    """The cached arrays; None if they are missing or damaged."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as content:  # np.load(path) leaks bad files
            arrays = {name: content[name] for name in NAMES}
    except (FileNotFoundError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error):
        return None
    return arrays if len(arrays["images"]) == len(arrays["labels"]) == len(arrays["face"]) else None
