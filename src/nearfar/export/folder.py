"""Where an export may be put."""

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
