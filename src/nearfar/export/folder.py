"""A folder that is there whole or not at all."""

import contextlib
import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

from nearfar.export.network import ExportError
from nearfar.export.preparation import FILE_NAME


def check_free(target: Path, replace: bool) -> None:
    """Raise if a folder cannot take this place: what is there is lost only if it is an export, and that is wished."""
    if not target.exists():
        return
    if not target.is_dir():
        raise ExportError(f"{target} is a file: --out is a folder to be made")
    if not any(target.iterdir()):
        return
    if not (target / FILE_NAME).is_file():
        raise ExportError(f"{target} holds other things than an export: choose another --out")
    if not replace:
        raise ExportError(f"{target} holds an export already: --replace puts the new one in its place; or choose --out")


@contextlib.contextmanager
def appearing(target: Path, replace: bool = False) -> Iterator[Path]:
    """A folder to fill, which takes its place once it is whole and on the disk. If anything fails, it never was."""
    check_free(target, replace)
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
    partial.mkdir()
    try:
        yield partial
        for file in partial.iterdir():
            _flush(file)
        _flush(partial)
        check_free(target, replace)  # it took its time
        if target.exists() and any(target.iterdir()):
            old = target.with_name(f"{partial.name}.old")
            target.rename(old)
            partial.rename(target)
            shutil.rmtree(old)
        else:
            partial.rename(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _flush(path: Path) -> None:
    with contextlib.suppress(OSError):  # not every file system has folders to flush
        number = os.open(path, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)
