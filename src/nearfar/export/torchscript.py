"""A model as a TorchScript file, for libtorch and torch.jit.load: frozen, its preparation of images among its files."""

import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor

from nearfar.export.network import ExportError, example_inputs, plain_network, trunk_name, without_chatter
from nearfar.models import Embedder

_PLACES = ".debug_pkl"  # where in whose files each operation was written: it tells of this machine, and serves nobody


def write_torchscript(model: Embedder, path: Path, extra_files: Mapping[str, str]) -> None:
    """Write the model.

    Args:
        extra_files: text to keep in the archive, by name; `torch.jit.load(path, _extra_files=...)` gives it back.
    """
    try:
        with without_chatter(), torch.no_grad():
            traced = torch.jit.trace(plain_network(model), (example_inputs(model),), check_trace=False)  # type: ignore[no-untyped-call]
            torch.jit.save(torch.jit.freeze(traced), path, _extra_files=dict(extra_files))
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[0]
        name = trunk_name(model.trunk_description)
        raise ExportError(f"{name} cannot be written as TorchScript: {reason}. Try --format onnx") from error
    _without_places(path)


def _without_places(path: Path) -> None:
    whole = path.with_name(f"{path.name}.whole")
    path.rename(whole)
    with zipfile.ZipFile(whole) as source, zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as target:
        for entry in source.infolist():
            if not entry.filename.endswith(_PLACES):
                target.writestr(entry, source.read(entry))
    whole.unlink()


def torchscript_network(path: Path) -> Callable[[Tensor], Tensor]:
    """The file just written, as a function of what the model takes."""
    with without_chatter():
        loaded = torch.jit.load(path, map_location="cpu")  # type: ignore[no-untyped-call]

    def embed(inputs: Tensor) -> Tensor:
        with torch.inference_mode():
            return torch.as_tensor(loaded(inputs))

    return embed
