"""Writes and runs ONNX files: any batch size, constants folded, preprocessing in the metadata."""

from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor

import nearfar
from nearfar.errors import MissingPackageError
from nearfar.export.network import (
    OUTPUT,
    ExportError,
    example_inputs,
    input_name,
    plain_network,
    quiet_exporters,
    trunk_name,
)
from nearfar.models import Embedder

try:
    import onnx_ir
    import onnxruntime  # type: ignore[import-untyped]
    from onnxscript import optimizer
except ImportError as missing:
    raise MissingPackageError(
        "writing ONNX needs onnx, onnxscript and onnxruntime: pip install 'nearfar[export]'"
    ) from missing

OPSET = 18
"""Supported by onnxruntime since 1.14 (2023)."""
_NO_LIMIT = 2**62  # on the size of folded constants, such as kernels that include their batch normalisation


def write_onnx(model: Embedder, path: Path, metadata: Mapping[str, str]) -> None:
    """Write the model. Weights of more than 2 GB, the limit of the format, go into a second file.

    Args:
        metadata: entries of the file's `metadata_props`.
    """
    network = plain_network(model)
    batch = torch.export.Dim("batch", min=1)
    try:
        with quiet_exporters():
            program = torch.onnx.export(
                network,
                (example_inputs(model),),
                dynamo=True,
                input_names=[input_name(model)],
                output_names=[OUTPUT],
                opset_version=OPSET,
                dynamic_shapes=({0: batch},),
                optimize=False,  # optimised below, without a size limit
                verbose=False,
            )
            assert program is not None
            optimizer.optimize(program.model, input_size_limit=_NO_LIMIT, output_size_limit=_NO_LIMIT)
    except torch.onnx.OnnxExporterError as error:
        raise ExportError(
            f"{trunk_name(model.trunk_description)} cannot be written as ONNX: {_reason(error)}. "
            "try --format torchscript or --format safetensors"
        ) from error
    _describe(program.model, metadata)
    program.save(path, external_data=False)


def _reason(error: BaseException) -> str:
    """The first line of the root cause, without the exporter's advice to its own developers."""
    while error.__cause__ is not None:
        error = error.__cause__
    return str(error).strip().splitlines()[0].rstrip(".")


def _describe(model: onnx_ir.Model, metadata: Mapping[str, str]) -> None:
    """Set nearfar's metadata, and remove the source paths that the exporter adds to each node."""
    model.producer_name, model.producer_version = "nearfar", nearfar.__version__
    model.metadata_props.clear()
    model.metadata_props.update(metadata)
    model.graph.metadata_props.clear()
    for node in onnx_ir.traversal.RecursiveGraphIterator(model.graph):
        node.metadata_props.clear()
        node.doc_string = None
        for value in node.outputs:
            value.metadata_props.clear()
    for value in (*model.graph.inputs, *model.graph.initializers.values()):
        value.metadata_props.clear()


def onnx_network(path: Path, threads: int | None = None) -> Callable[[Tensor], Tensor]:
    """The network of a file, on the CPU, with torch's number of threads by default."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads() if threads is None else threads
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    (graph_input,) = session.get_inputs()

    def embed(inputs: Tensor) -> Tensor:
        return torch.from_numpy(session.run([OUTPUT], {graph_input.name: inputs.numpy()})[0])

    return embed
