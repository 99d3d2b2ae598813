"""Eight bits: what is quantised, how well, and what stays."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import QuantType, quantize_dynamic

from nearfar.export import quantise
from nearfar.export.network import ExportError, quiet_exporters

CHANNELS = 8


def uneven_model(path: Path) -> Path:
    """A convolution whose channels differ by six orders of magnitude, and a depthwise one after it. The small channels
    matter: the second brings all of them to one size.
    """
    rng = np.random.default_rng(0)
    sizes = np.logspace(-3, 3, CHANNELS).astype(np.float32)
    wide = rng.normal(size=(CHANNELS, 3, 3, 3)).astype(np.float32) * sizes[:, None, None, None]
    deep = rng.normal(size=(CHANNELS, 1, 3, 3)).astype(np.float32) / sizes[:, None, None, None]
    weights = {"wide": wide, "bias": sizes, "deep": deep, "head": rng.normal(size=(CHANNELS, 4)).astype(np.float32)}
    nodes = [
        helper.make_node("Conv", ["images", "wide", "bias"], ["a"], name="one", pads=[1, 1, 1, 1]),
        helper.make_node("Conv", ["a", "deep"], ["b"], name="two", group=CHANNELS),
        helper.make_node("GlobalAveragePool", ["b"], ["c"], name="three"),
        helper.make_node("Flatten", ["c"], ["d"], name="four"),
        helper.make_node("MatMul", ["d", "head"], ["embeddings"], name="five"),
    ]
    graph = helper.make_graph(
        nodes,
        "uneven",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, ["batch", 3, 8, 8])],
        [helper.make_tensor_value_info("embeddings", TensorProto.FLOAT, ["batch", 4])],
        [numpy_helper.from_array(values, name) for name, values in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    helper.set_model_props(model, {"nearfar": "about it"})
    onnx.save(model, path)
    return path


def run(path: Path) -> np.ndarray:
    images = np.random.default_rng(1).normal(size=(5, 3, 8, 8)).astype(np.float32)
    return onnxruntime.InferenceSession(path).run(None, {"images": images})[0]


def worst_cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float(((a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)).min())


def test_channels_of_any_size_keep_their_bits(tmp_path):
    source = uneven_model(tmp_path / "model.onnx")
    quantise.write_int8(source, tmp_path / "int8.onnx", {"quantised": "int8"})
    assert worst_cosine(run(source), run(tmp_path / "int8.onnx")) > 0.999
    # onnxruntime by itself loses the small ones: the test above is not vacuous.
    with quiet_exporters():
        quantize_dynamic(source, tmp_path / "plain.onnx", weight_type=QuantType.QUInt8, nodes_to_exclude=["two"])
    assert worst_cosine(run(source), run(tmp_path / "plain.onnx")) < 0.99


def test_what_is_quantised(tmp_path):
    source = uneven_model(tmp_path / "model.onnx")
    quantise.write_int8(source, tmp_path / "int8.onnx", {"quantised": "int8"})
    stored = onnx.load(tmp_path / "int8.onnx")
    kinds = [node.op_type for node in stored.graph.node]
    assert kinds.count("ConvInteger") == 1 and kinds.count("MatMulInteger") == 1
    assert [node.name for node in stored.graph.node if node.op_type == "Conv"] == ["two"]  # the depthwise one
    assert {"wide", "bias"}.isdisjoint(tensor.name for tensor in stored.graph.initializer)
    assert {entry.key: entry.value for entry in stored.metadata_props} == {"nearfar": "about it", "quantised": "int8"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["int8.onnx", "model.onnx"]


def test_equalising_changes_nothing_by_itself(tmp_path):
    source = uneven_model(tmp_path / "model.onnx")
    model = onnx.load(source)
    quantise._equalise(model.graph)
    onnx.checker.check_model(model)
    onnx.save(model, tmp_path / "equalised.onnx")
    np.testing.assert_allclose(run(tmp_path / "equalised.onnx"), run(source), rtol=1e-4, atol=1e-4)
    kernel = next(numpy_helper.to_array(t) for t in model.graph.initializer if t.name == "a_kernel")
    np.testing.assert_allclose(np.abs(kernel).reshape(CHANNELS, -1).max(1), 1, rtol=1e-6)


def test_too_large(tmp_path, monkeypatch):
    monkeypatch.setattr(quantise, "_MAX_BYTES", 100)
    with pytest.raises(ExportError, match="more than 2 GB cannot be quantised"):
        quantise.write_int8(uneven_model(tmp_path / "model.onnx"), tmp_path / "int8.onnx", {})
