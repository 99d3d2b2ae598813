"""Embeddings in a file: Parquet or npz, written batch by batch, whole or not at all.

Both have `path` (the id of the image), `label`, `split` and `embedding` (D numbers); an npz has them as arrays `paths`,
`labels`, `splits` and `embeddings`, which `nearfar.data.open` opens as a data set of features.
"""

import os
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from nearfar.data import SPLITS
from nearfar.errors import MissingPackageError
from nearfar.foundation.files import replaced_file
from nearfar.retrieval.encoder import Encoder
from nearfar.retrieval.gallery import Gallery
from nearfar.retrieval.index import Floats, RetrievalError

ENDINGS = (".parquet", ".npz")
ROWS_AT_A_TIME = 4096  # of a Parquet file's groups


@dataclass(frozen=True)
class Written:
    """What went into a file."""

    path: Path
    images: int
    broken: int


def check_name(out: str | os.PathLike[str]) -> Path:
    """The path, if embeddings can be written to such a file."""
    path = Path(out)
    if path.suffix not in ENDINGS:
        raise RetrievalError(f"embeddings are written to {' or '.join(f'NAME{end}' for end in ENDINGS)}, not to {path}")
    return path


def write_embeddings(
    encoder: Encoder,
    gallery: Gallery,
    out: str | os.PathLike[str],
    *,
    advance: Callable[[int], None] | None = None,
) -> Written:
    """Embed a gallery and keep the result in a file; a file that is there is replaced once the new one is whole.

    Images that cannot be read are left out, as many as the encoder allows, and a warning lists them.

    Args:
        out: NAME.parquet or NAME.npz.
        advance: called with the number of images done.
    """
    path = check_name(out)
    write = _write_parquet if path.suffix == ".parquet" else _write_npz
    with replaced_file(path) as file:
        images = write(file, encoder, gallery, _batches(encoder, gallery, advance))
    return Written(path, images, len(gallery) - images)


def _batches(
    encoder: Encoder, gallery: Gallery, advance: Callable[[int], None] | None
) -> Iterator[tuple[list[int], Floats]]:
    """Rows and their embeddings, without those that cannot be read, some thousands at a time."""
    start, rows, vectors = 0, list[int](), list[Floats]()
    for batch in encoder.gallery(gallery.images, advance=advance):
        good = ~np.isnan(batch).any(1)
        rows += (np.flatnonzero(good) + start).tolist()
        vectors.append(batch[good])
        start += len(batch)
        if len(rows) >= ROWS_AT_A_TIME:
            yield rows, np.concatenate(vectors)
            rows, vectors = [], []
    if rows:
        yield rows, np.concatenate(vectors)


def _described(gallery: Gallery, rows: list[int]) -> tuple[list[str], list[str], list[str]]:
    """Paths, labels and splits."""
    splits = [SPLITS[number] for number in gallery.table.split_ids[rows].tolist()]
    return gallery.ids.take(rows), [gallery.label(row) for row in rows], splits


def _write_parquet(
    file: IO[bytes], encoder: Encoder, gallery: Gallery, batches: Iterator[tuple[list[int], Floats]]
) -> int:
    try:
        import pyarrow as arrow
        from pyarrow import parquet
    except ImportError:
        raise MissingPackageError("Parquet files need pyarrow: pip install 'nearfar[retrieval]'") from None
    text = arrow.string()
    fields = [(name, text) for name in ("path", "label", "split")]
    schema = arrow.schema([*fields, ("embedding", arrow.list_(arrow.float32(), encoder.dimension))])
    schema = schema.with_metadata({"nearfar.model": encoder.fingerprint, "nearfar.run": encoder.name})
    total = 0
    with parquet.ParquetWriter(file, schema) as writer:
        for rows, vectors in batches:
            numbers = arrow.FixedSizeListArray.from_arrays(arrow.array(vectors.reshape(-1)), encoder.dimension)
            texts = [arrow.array([_utf8(word) for word in words], text) for words in _described(gallery, rows)]
            writer.write_table(arrow.Table.from_arrays([*texts, numbers], schema=schema))
            total += len(rows)
    return total


def _utf8(word: str) -> str:
    """Names of files that are no UTF-8 cannot be kept as they are."""
    return word.encode("utf-8", "replace").decode()


def _write_npz(file: IO[bytes], encoder: Encoder, gallery: Gallery, batches: Iterator[tuple[list[int], Floats]]) -> int:
    """The header of an array says how long it is: until that is known, the numbers wait in a file of their own."""
    every: list[int] = []
    with tempfile.TemporaryFile() as waiting, zipfile.ZipFile(file, "w") as archive:
        for rows, vectors in batches:
            every += rows
            waiting.write(vectors.tobytes())
        waiting.seek(0)
        with archive.open("embeddings.npy", "w", force_zip64=True) as member:
            shape = (len(every), encoder.dimension)
            np.lib.format.write_array_header_1_0(member, {"descr": "<f4", "fortran_order": False, "shape": shape})
            shutil.copyfileobj(waiting, member, 2**20)
        paths, labels, splits = _described(gallery, every)
        texts: dict[str, Any] = {"paths": paths, "labels": labels, "splits": splits, "model": encoder.fingerprint}
        if not any(labels):
            del texts["labels"]
        for name, words in texts.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.array(words, np.str_), allow_pickle=False)
    return len(every)
