"""Model files: safetensors with the tensors, and a JSON description in the header."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from nearfar.errors import FileError, InputError, MissingFileError, MissingPackageError
from nearfar.foundation.files import replaced_path

try:
    from safetensors import SafetensorError, safe_open
    from safetensors.torch import save_file
except ImportError as missing:
    raise MissingPackageError("nearfar.models needs safetensors: pip install 'nearfar[models]'") from missing

FILE_NAME = "model.safetensors"
_ENTRY = "nearfar"  # key in the header
_FORMAT = 1


def model_file(path: str | os.PathLike[str]) -> Path:
    """The path of a model file, or of the one in a folder."""
    path = Path(path)
    return path / FILE_NAME if path.is_dir() else path


def write(path: str | os.PathLike[str], tensors: Mapping[str, Tensor], description: Mapping[str, Any]) -> Path:
    """Write a model file atomically: other processes see the old file or the new one."""
    target = model_file(path)
    try:
        text = json.dumps({"format": _FORMAT, **description}, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InputError(f"label names and calibration must be plain JSON: {error}") from error
    try:
        with replaced_path(target) as partial:
            mode = partial.stat().st_mode  # safetensors makes files readable only for their owner
            save_file({k: v.detach().cpu().contiguous().clone() for k, v in tensors.items()}, partial, {_ENTRY: text})
            partial.chmod(mode)
    except SafetensorError as error:  # with the operating system's message
        raise FileError(f"{target} could not be written: {error}") from error
    return target


def read(path: str | os.PathLike[str]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read the tensors and the description of a model file."""
    source = model_file(path)
    if not source.is_file():
        raise MissingFileError(f"there is no model {source}")
    try:
        with safe_open(source, framework="pt") as file:
            header = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118, not a dictionary
    except (SafetensorError, OSError) as error:
        raise InputError(f"{source} is damaged or not a safetensors file: {error}") from error
    if _ENTRY not in header:
        raise InputError(f"{source} has tensors, but was not saved by nearfar: open it as weights of a trunk instead")
    try:
        description = json.loads(header[_ENTRY])
        version = description["format"]
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"the description in {source} is damaged: {error}") from error
    if version != _FORMAT:
        raise InputError(f"{source} has format {version}, this version of nearfar reads {_FORMAT}: upgrade nearfar")
    return tensors, description
