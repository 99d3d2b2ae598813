"""Writes embeddings to a Parquet or npz file, in batches and atomically.

A Parquet file has the columns `path` (the id of the image), `label`, `split` and `embedding` (D numbers). An npz file
has the arrays `paths`, `labels`, `splits` and `embeddings`; `nearfar.data.open` opens it as a data set of features.
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
ROWS_AT_A_TIME = 4096  # rows of a group of a Parquet file


@dataclass(frozen=True)
class Written:
    """A written file, with the numbers of embedded and of broken images."""

    path: Path
    images: int
    broken: int


def check_name(out: str | os.PathLike[str]) -> Path:
    """Return the path. Raises `RetrievalError` if its extension is not supported."""
    path = Path(out)
    if path.suffix not in ENDINGS:
        raise RetrievalError(
            f"embeddings can be written to {' or '.join(f'NAME{end}' for end in ENDINGS)}, not to {path}"
        )
    return path


def write_embeddings(
    encoder: Encoder,
    gallery: Gallery,
    out: str | os.PathLike[str],
    *,
    advance: Callable[[int], None] | None = None,
) -> Written:
    """Embed a gallery and write the result to a file. An existing file is replaced when the new one is complete.

    Broken images are left out up to the encoder's `max_broken`, and a warning lists them.

    Args:
        encoder: the model.
        gallery: the images.
        out: NAME.parquet or NAME.npz.
        advance: called with the number of images of each batch.
    """
    path = check_name(out)
    write = _write_parquet if path.suffix == ".parquet" else _write_npz
    with replaced_file(path) as file:
        images = write(file, encoder, gallery, _batches(encoder, gallery, advance))
    return Written(path, images, len(gallery) - images)


def _batches(
    encoder: Encoder, gallery: Gallery, advance: Callable[[int], None] | None
) -> Iterator[tuple[list[int], Floats]]:
    """Yield rows and their embeddings without broken images, some thousands at a time."""
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
            texts = [arrow.array([_utf8(name) for name in names], text) for names in _described(gallery, rows)]
            writer.write_table(arrow.Table.from_arrays([*texts, numbers], schema=schema))
            total += len(rows)
    return total


def _utf8(name: str) -> str:
    """Replace the bytes of a file name that are not UTF-8."""
    return name.encode("utf-8", "replace").decode()


def _write_npz(file: IO[bytes], encoder: Encoder, gallery: Gallery, batches: Iterator[tuple[list[int], Floats]]) -> int:
    """Write an npz file. The vectors go to a temporary file first, because the array's header needs their number."""
    all_rows: list[int] = []
    with tempfile.TemporaryFile() as temporary, zipfile.ZipFile(file, "w") as archive:
        for rows, vectors in batches:
            all_rows += rows
            temporary.write(vectors.tobytes())
        temporary.seek(0)
        with archive.open("embeddings.npy", "w", force_zip64=True) as member:
            shape = (len(all_rows), encoder.dimension)
            np.lib.format.write_array_header_1_0(member, {"descr": "<f4", "fortran_order": False, "shape": shape})
            shutil.copyfileobj(temporary, member, 2**20)
        paths, labels, splits = _described(gallery, all_rows)
        texts: dict[str, Any] = {"paths": paths, "labels": labels, "splits": splits, "model": encoder.fingerprint}
        if not any(labels):
            del texts["labels"]
        for name, values in texts.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.array(values, np.str_), allow_pickle=False)
    return len(all_rows)
