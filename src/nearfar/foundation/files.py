"""Atomic writes: files and folders appear complete or not at all, even if the process is killed or others write."""

import contextlib
import csv
import io
import os
import shutil
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any


@contextlib.contextmanager
def named_errors(path: Path) -> Iterator[None]:
    """Add the file's name to an `OSError`, because the system does not name the file when a write fails.

    >>> with named_errors(Path("cache/rows")):
    ...     raise OSError(28, "No space left on device")
    Traceback (most recent call last):
    OSError: [Errno 28] No space left on device: 'cache/rows'
    """
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename is None:
            error.filename = os.fspath(path)
        raise


@contextlib.contextmanager
def replaced_path(path: Path) -> Iterator[Path]:
    """Yield the path of a new, empty file, which replaces `path` when the block ends, flushed to the disk.

    Its name is random and it is created exclusively, so that it cannot be a link that someone else has made.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with named_errors(path):
            partial.open("xb").close()
            yield partial
            flush(partial)
        partial.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):  # the first error is the one to report
            partial.unlink()
        raise
    _flush_folder(path.parent)


@contextlib.contextmanager
def replaced_file(path: Path) -> Iterator[IO[bytes]]:
    """Like `replaced_path`, but yields the open file."""
    with replaced_path(path) as partial, partial.open("r+b") as file:
        yield file


def write_file(path: Path, content: str | bytes) -> None:
    """Replace a file's content. Text is written as UTF-8; surrogate escapes become their original bytes."""
    with replaced_file(path) as file:
        file.write(content if isinstance(content, bytes) else content.encode("utf-8", "surrogateescape"))


def write_rows(path: Path, header: Iterable[str], rows: Iterable[Iterable[Any]]) -> None:
    """Replace a CSV file; None is an empty cell."""
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(header)
    writer.writerows(rows)
    write_file(path, text.getvalue())


@contextlib.contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """Yield an empty folder, which replaces `target` when the block ends, flushed to the disk.

    An existing folder is deleted: the caller has checked that it may be replaced.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
    partial.mkdir()
    try:
        yield partial
        for file in partial.iterdir():
            flush(file)
        _flush_folder(partial)
        if target.exists() and any(target.iterdir()):
            old = target.with_name(f"{partial.name}.old")
            target.rename(old)
            partial.rename(target)
            shutil.rmtree(old)
        else:
            partial.rename(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    _flush_folder(target.parent)


def flush(path: Path) -> None:
    """Wait until a file's content is on the disk."""
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def _flush_folder(path: Path) -> None:
    """Wait until the names in a folder are on the disk, if the file system supports this."""
    with contextlib.suppress(OSError):
        number = os.open(path, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)
