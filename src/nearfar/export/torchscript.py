"""Writes and runs frozen TorchScript archives, for libtorch and torch.jit.load."""

import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor

from nearfar.export.network import ExportError, example_inputs, plain_network, quiet_exporters, trunk_name
from nearfar.models import Embedder

_DEBUG_FILES = ".debug_pkl"  # source paths of this machine


def write_torchscript(model: Embedder, path: Path, extra_files: Mapping[str, str]) -> None:
    """Write the model.

    Args:
        extra_files: text files to add to the archive, which `torch.jit.load(path, _extra_files=...)` returns.
    """
    try:
        with quiet_exporters(), torch.no_grad():
            traced = torch.jit.trace(plain_network(model), (example_inputs(model),), check_trace=False)  # type: ignore[no-untyped-call]
            torch.jit.save(torch.jit.freeze(traced), path, _extra_files=dict(extra_files))
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[0]
        name = trunk_name(model.trunk_description)
        raise ExportError(f"{name} cannot be written as TorchScript: {reason}. Try --format onnx") from error
    _remove_debug_files(path)


def _remove_debug_files(path: Path) -> None:
    original = path.with_name(f"{path.name}.original")
    path.rename(original)
    with zipfile.ZipFile(original) as source, zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as target:
        for entry in source.infolist():
            if not entry.filename.endswith(_DEBUG_FILES):
                target.writestr(entry, source.read(entry))
    original.unlink()


def torchscript_network(path: Path) -> Callable[[Tensor], Tensor]:
    """The network of an archive that was just written."""
    with quiet_exporters():
        loaded = torch.jit.load(path, map_location="cpu")  # type: ignore[no-untyped-call]

    def embed(inputs: Tensor) -> Tensor:
        with torch.inference_mode():
            return torch.as_tensor(loaded(inputs))

    return embed
