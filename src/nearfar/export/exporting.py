"""`export`: a run's model, as a folder for others."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from nearfar.data import Table
from nearfar.errors import InputError, NearfarError
from nearfar.export.accuracy import Accuracy, accuracy, whole_classes
from nearfar.export.card import Facts, card
from nearfar.export.folder import check_free
from nearfar.export.inputs import inputs_of, some_inputs
from nearfar.export.network import ExportError
from nearfar.export.parity import Network, Parity, check, parity
from nearfar.export.preparation import FILE_NAME, description, to_json
from nearfar.export.weights import torch_network
from nearfar.foundation.files import new_folder
from nearfar.models import Embedder
from nearfar.training.evaluate import rows_of
from nearfar.training.runs import Run

Format = Literal["onnx", "torchscript", "safetensors"]
Quantise = Literal["int8"]
FILES = {"onnx": "model.onnx", "torchscript": "model.pt", "safetensors": "model.safetensors"}
INT8_FILE = "model-int8.onnx"
_LARGE_FILES = "*.onnx *.onnx.data *.pt *.safetensors"  # which git keeps elsewhere, on the hub


@dataclass(frozen=True)
class Exported:
    """What an export left, and what was found out about it."""

    folder: Path
    files: dict[str, int]
    """Names and bytes."""
    parity: Parity
    accuracy: Accuracy | None
    notes: tuple[str, ...]
    """What has changed in the run's data, or was left out."""


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

    What training alone needed (the loss and its class vectors, the optimiser, the names of the training classes) is not
    in it. The file is loaded again and compared with PyTorch; unless the cosine of every image is 0.9999 at least,
    nothing is left.

    Args:
        run: a run, or its folder.
        to: the format.
        quantise: "int8" adds `model-int8.onnx`, a quarter of the size, and measures what that costs.
        out: the folder to be made; by default `export-FORMAT` in the run's.
        licence: of the model, for the card; a name of the hub's, such as "apache-2.0", or any other.
        data: to compare and to measure on; by default the run's own test rows. Where they are gone, the comparison
            is on images of chance.
        rows: measure what int8 costs on so many rows at most, of whole classes.
        replace: put it in the place of an export that is there.
        progress: show a bar while measuring.
    """
    if to not in get_args(Format):
        raise InputError(f"the format must be one of {', '.join(get_args(Format))}, not {to!r}")
    if quantise not in (None, *get_args(Quantise)):
        raise InputError(f'quantise must be "int8", not {quantise!r}')
    if quantise is not None and to != "onnx":
        raise InputError(f"int8 goes with the format onnx, not with {to}")
    if rows is not None and (rows < 1 or quantise is None):
        raise InputError("rows says on how many, at least 1, to measure what int8 costs: it goes with quantise")
    run = run if isinstance(run, Run) else Run(run)
    target = Path(out) if out is not None else run.folder / f"export-{to}"
    check_free(target, replace)
    config, model = run.config, run.model()
    table, notes = _rows(run, data, needed=quantise is not None)
    if table is not None:
        inputs_of(model, table)  # which refuses what the model does not take
    described = description(model)
    text = to_json(described)
    with new_folder(target) as folder:
        file = folder / FILES[to]
        exported = _write(model, to, file, text)
        found = parity(torch_network(model), exported, *some_inputs(model, table))
        check(found, f"the {to} file")
        cost = None
        if quantise is not None:
            assert table is not None
            from nearfar.export.onnx import onnx_network
            from nearfar.export.quantise import write_int8

            write_int8(file, folder / INT8_FILE, {"quantised": "int8"})
            measured = whole_classes(table, rows)
            small = onnx_network(folder / INT8_FILE)
            cost = accuracy(exported, small, model, measured, max_broken=config.data.max_broken, progress=progress)
        (folder / FILE_NAME).write_text(text, encoding="utf-8")
        lfs = "".join(f"{pattern} filter=lfs diff=lfs merge=lfs -text\n" for pattern in _LARGE_FILES.split())
        (folder / ".gitattributes").write_text(lfs, encoding="utf-8")
        sizes = {path.name: path.stat().st_size for path in sorted(folder.iterdir()) if path.name[0] != "."}
        name = run.folder.resolve().name
        facts = Facts(name, to, config, run.metrics, licence, found, cost, sizes)
        (folder / "README.md").write_text(card(model, facts), encoding="utf-8")
        check_free(target, replace)  # again: something may have been put there meanwhile
    return Exported(target, sizes, found, cost, notes)


def _rows(run: Run, data: str | os.PathLike[str] | Table | None, needed: bool) -> tuple[Table | None, tuple[str, ...]]:
    """The rows to compare and to measure on, and what is to be said of them; None where none are there or needed."""
    try:
        return rows_of(run, data)
    except (OSError, NearfarError) as error:
        if data is not None:
            raise
        if needed:
            raise ExportError(
                f"what int8 costs is measured on the run's test rows, but these cannot be had: {error}. Give data with "
                "--data, or leave --quantise out"
            ) from error
        return None, ()


def _write(model: Embedder, to: Format, file: Path, described: str) -> Network:
    """Write the model's file; what it computes."""
    if to == "onnx":
        from nearfar.export.onnx import onnx_network, write_onnx

        write_onnx(model, file, {"nearfar": described})
        return onnx_network(file)
    if to == "torchscript":
        from nearfar.export.torchscript import torchscript_network, write_torchscript

        write_torchscript(model, file, {FILE_NAME: described})
        return torchscript_network(file)
    from nearfar.export.weights import safetensors_network, write_safetensors

    write_safetensors(model, file)
    return safetensors_network(file)
