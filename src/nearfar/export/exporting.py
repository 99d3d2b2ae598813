"""Exports a run's model to a folder."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from nearfar.data import Table
from nearfar.errors import InputError, NearfarError
from nearfar.export.accuracy import Accuracy, accuracy, whole_classes
from nearfar.export.card import CardFacts, card
from nearfar.export.inputs import inputs_of, sample_inputs
from nearfar.export.network import ExportError
from nearfar.export.parity import Network, Parity, check, parity
from nearfar.export.preprocessing import FILE_NAME, description, to_json
from nearfar.export.safetensors import torch_network
from nearfar.foundation.files import new_folder
from nearfar.models import Embedder
from nearfar.training.evaluate import rows_of
from nearfar.training.runs import Run

Format = Literal["onnx", "torchscript", "safetensors"]
Quantise = Literal["int8"]
FILES = {"onnx": "model.onnx", "torchscript": "model.pt", "safetensors": "model.safetensors"}
INT8_FILE = "model-int8.onnx"
_LARGE_FILES = "*.onnx *.onnx.data *.pt *.safetensors"  # tracked by git-lfs on the hub


@dataclass(frozen=True)
class Exported:
    """An exported folder and its comparison with PyTorch."""

    folder: Path
    files: dict[str, int]
    """Sizes in bytes, by name."""
    parity: Parity
    accuracy: Accuracy | None
    notes: tuple[str, ...]
    """Changes of the run's data since training, and rows left out."""


def export(
    run: Run | str | os.PathLike[str],
    to: Format = "onnx",
    *,
    quantise: Quantise | None = None,
    out: str | os.PathLike[str] | None = None,
    licence: str | None = None,
    data: str | os.PathLike[str] | Table | None = None,
    rows: int | None = None,
    replace: bool = False,
    progress: bool = False,
) -> Exported:
    """Write a run's model to a folder: the model itself, `preprocessing.json`, and a card for the Hugging Face hub.

    The loss with its class vectors, the optimiser and the names of the training classes are left out. The file is
    loaded again and compared with PyTorch; if the cosine of any row is below 0.9999, the export fails and leaves
    no files.

    Args:
        run: a run, or its folder.
        to: the format.
        quantise: "int8" adds `model-int8.onnx`, a quarter of the size, and measures its accuracy.
        out: the folder to create; by default `export-FORMAT` in the run's folder.
        licence: the model's licence for the card: an identifier of the hub, such as "apache-2.0", or any other name.
        data: the data for the comparison and the measurement; by default the run's test rows. If these are missing,
            the comparison uses random inputs.
        rows: measure the int8 model on at most this many rows, in whole classes.
        replace: replace an existing export.
        progress: show a bar while measuring.
    """
    if to not in get_args(Format):
        raise InputError(f"the format must be one of {', '.join(get_args(Format))}, not {to!r}")
    if quantise not in (None, *get_args(Quantise)):
        raise InputError(f'quantise must be "int8", not {quantise!r}')
    if quantise is not None and to != "onnx":
        raise InputError(f"quantise needs the format onnx, not {to}")
    if rows is not None and (rows < 1 or quantise is None):
        raise InputError("rows must be at least 1, and needs quantise: it limits the rows that int8 is measured on")
    run = run if isinstance(run, Run) else Run(run)
    target = Path(out) if out is not None else run.folder / f"export-{to}"
    _check_target(target, replace)
    config, model = run.config, run.model()
    table, notes = _rows(run, data, needed=quantise is not None)
    if table is not None:
        inputs_of(model, table)  # raises if the model cannot take these data
    text = to_json(description(model))
    with new_folder(target) as folder:
        file = folder / FILES[to]
        exported = _write(model, to, file, text)
        comparison = parity(torch_network(model), exported, *sample_inputs(model, table))
        check(comparison, f"the {to} file")
        measured = None
        if quantise is not None:
            assert table is not None
            from nearfar.export.onnx import onnx_network
            from nearfar.export.quantise import write_int8

            write_int8(file, folder / INT8_FILE, {"quantised": "int8"})
            table = whole_classes(table, rows)
            int8 = onnx_network(folder / INT8_FILE)
            measured = accuracy(exported, int8, model, table, max_broken=config.data.max_broken, progress=progress)
        (folder / FILE_NAME).write_text(text, encoding="utf-8")
        lfs = "".join(f"{pattern} filter=lfs diff=lfs merge=lfs -text\n" for pattern in _LARGE_FILES.split())
        (folder / ".gitattributes").write_text(lfs, encoding="utf-8")
        sizes = {path.name: path.stat().st_size for path in sorted(folder.iterdir()) if path.name[0] != "."}
        name = run.folder.resolve().name
        facts = CardFacts(name, to, config, run.metrics, licence, comparison, measured, sizes)
        (folder / "README.md").write_text(card(model, facts), encoding="utf-8")
        _check_target(target, replace)  # again, because the folder may have been created in the meantime
    return Exported(target, sizes, comparison, measured, notes)


def _check_target(target: Path, replace: bool) -> None:
    """Raise unless `target` is missing, empty, or an export that may be replaced."""
    if not target.exists():
        return
    if not target.is_dir():
        raise ExportError(f"{target} is a file: --out must name a folder")
    if not any(target.iterdir()):
        return
    if not (target / FILE_NAME).is_file():
        raise ExportError(f"{target} has files that are not an export: choose another --out")
    if not replace:
        raise ExportError(f"{target} already has an export: replace it with --replace, or choose another --out")


def _rows(run: Run, data: str | os.PathLike[str] | Table | None, needed: bool) -> tuple[Table | None, tuple[str, ...]]:
    """The rows for the comparison with their notes; None if the run's data are missing and not needed."""
    try:
        return rows_of(run, data)
    except (OSError, NearfarError) as error:
        if data is not None:
            raise
        if needed:
            raise ExportError(
                f"int8 is measured on the run's test rows, but these cannot be read: {error}. Give data with "
                "--data, or leave --quantise out"
            ) from error
        return None, ()


def _write(model: Embedder, to: Format, file: Path, described: str) -> Network:
    """Write the model's file and return the network loaded from it."""
    if to == "onnx":
        from nearfar.export.onnx import onnx_network, write_onnx

        write_onnx(model, file, {"nearfar": described})
        return onnx_network(file)
    if to == "torchscript":
        from nearfar.export.torchscript import torchscript_network, write_torchscript

        write_torchscript(model, file, {FILE_NAME: described})
        return torchscript_network(file)
    from nearfar.export.safetensors import safetensors_network, write_safetensors

    write_safetensors(model, file)
    return safetensors_network(file)
