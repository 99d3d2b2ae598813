"""An ONNX file in eight bits: weights as bytes, a quarter of their size; activations quantised as they come.

onnxruntime's dynamic quantisation has one scale for all channels of a convolution. With batch normalisation folded into
the kernels, their channels differ by orders of magnitude, and the small ones lose all their bits. So every channel is
first divided by its largest weight and multiplied by it again after the convolution: then one scale serves all.
Depthwise convolutions stay as they are: they hold few of the weights, and on bytes they are slower and coarser.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper
from onnxruntime.quantization import QuantType, quantize_dynamic  # type: ignore[import-untyped]

from nearfar.export.network import ExportError, without_chatter

_MOST = 2**31 - 2**24  # bytes: a model in one file


def write_int8(source: Path, target: Path, metadata: Mapping[str, str]) -> None:
    """Write the model of `source` in eight bits.

    Args:
        metadata: added to what `source` has in its `metadata_props`.
    """
    weights = source.with_name(f"{source.name}.data")
    if source.stat().st_size + (weights.stat().st_size if weights.exists() else 0) > _MOST:
        raise ExportError("models of more than 2 GB cannot be quantised here: leave --quantise out")
    model = onnx.load(source)
    kept = {entry.key: entry.value for entry in model.metadata_props}
    untouched = [node.name for node in model.graph.node if _is_grouped(node)]
    _equalise(model.graph)
    # Shapes are inferred anew: onnxruntime transposes the weights of linear layers, but not what is noted of them.
    del model.graph.value_info[:]
    with without_chatter():
        # Bytes without a sign: onnxruntime's convolutions of them are the fast ones.
        quantize_dynamic(model, target, weight_type=QuantType.QUInt8, per_channel=True, nodes_to_exclude=untouched)
    quantised = onnx.load(target)
    del quantised.metadata_props[:]
    helper.set_model_props(quantised, {**kept, **metadata})
    onnx.save(quantised, target)


def _is_grouped(node: onnx.NodeProto) -> bool:
    return node.op_type == "Conv" and any(entry.name == "group" and entry.i > 1 for entry in node.attribute)


def _equalise(graph: onnx.GraphProto) -> None:
    """Make the largest weight of every channel of a convolution 1, and scale what comes out of it accordingly."""
    weights = {tensor.name: tensor for tensor in graph.initializer}
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        nodes.append(node)
        if node.op_type == "Conv" and not _is_grouped(node) and node.input[1] in weights:
            nodes += _equalised(node, graph, weights)
    del graph.node[:]
    graph.node.extend(nodes)
    used = set(_names(graph))
    unused = [tensor for tensor in graph.initializer if tensor.name not in used]
    for tensor in unused:
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


def _names(graph: onnx.GraphProto) -> Iterator[str]:
    """Of everything that a node takes."""
    return (name for node in graph.node for name in node.input)
