"""Quantises an ONNX file to 8 bits, with weights a quarter of their size and dynamic quantisation of activations.

onnxruntime's dynamic quantisation has one scale for all channels of a convolution. With batch normalisation folded into
the kernels, channels differ by orders of magnitude, and small ones would lose all their bits. So each channel is
divided by its largest weight before quantisation, and its output is multiplied by that weight. Depthwise convolutions
stay in float32: they hold few of the weights, and int8 makes them slower and less accurate.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper
from onnxruntime.quantization import QuantType, quantize_dynamic  # type: ignore[import-untyped]

from nearfar.export.network import ExportError, quiet_exporters

_MAX_BYTES = 2**31 - 2**24  # ONNX models in one file must be smaller than 2 GB


def write_int8(source: Path, target: Path, metadata: Mapping[str, str]) -> None:
    """Write the model of `source` with 8-bit weights.

    Args:
        metadata: added to the `metadata_props` of `source`.
    """
    weights = source.with_name(f"{source.name}.data")
    if source.stat().st_size + (weights.stat().st_size if weights.exists() else 0) > _MAX_BYTES:
        raise ExportError("models of more than 2 GB cannot be quantised: leave --quantise out")
    model = onnx.load(source)
    properties = {entry.key: entry.value for entry in model.metadata_props}
    grouped = [node.name for node in model.graph.node if _is_grouped(node)]
    _equalise(model.graph)
    # onnxruntime transposes the weights of linear layers without updating their stored shapes.
    del model.graph.value_info[:]
    with quiet_exporters():
        # onnxruntime's convolutions are faster for unsigned weights.
        quantize_dynamic(model, target, weight_type=QuantType.QUInt8, per_channel=True, nodes_to_exclude=grouped)
    quantised = onnx.load(target)
    del quantised.metadata_props[:]
    helper.set_model_props(quantised, {**properties, **metadata})
    onnx.save(quantised, target)


def _is_grouped(node: onnx.NodeProto) -> bool:
    return node.op_type == "Conv" and any(entry.name == "group" and entry.i > 1 for entry in node.attribute)


def _equalise(graph: onnx.GraphProto) -> None:
    """Scale every output channel of a convolution to a largest weight of 1, and multiply its output accordingly."""
    weights = {tensor.name: tensor for tensor in graph.initializer}
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        nodes.append(node)
        if node.op_type == "Conv" and not _is_grouped(node) and node.input[1] in weights:
            nodes += _equalised(node, graph, weights)
    del graph.node[:]
    graph.node.extend(nodes)
    used = {name for node in graph.node for name in node.input}
    for tensor in [tensor for tensor in graph.initializer if tensor.name not in used]:
        graph.initializer.remove(tensor)


def _equalised(
    node: onnx.NodeProto, graph: onnx.GraphProto, weights: Mapping[str, onnx.TensorProto]
) -> list[onnx.NodeProto]:
    output = node.output[0]

    def add(name: str, values: NDArray[np.float32]) -> str:
        graph.initializer.append(numpy_helper.from_array(values, f"{output}_{name}"))
        return f"{output}_{name}"

    kernel = numpy_helper.to_array(weights[node.input[1]])
    largest = np.abs(kernel).reshape(len(kernel), -1).max(1)
    largest[largest == 0] = 1
    node.input[1] = add("kernel", kernel / largest.reshape(-1, *[1] * (kernel.ndim - 1)))
    if len(node.input) > 2 and node.input[2]:
        node.input[2] = add("bias", numpy_helper.to_array(weights[node.input[2]]) / largest)
    node.output[0] = f"{output}_equalised"
    factor = add("largest", largest.reshape(1, -1, *[1] * (kernel.ndim - 2)))
    return [helper.make_node("Mul", [node.output[0], factor], [output], name=f"{node.name}_largest")]
