"""Every trunk, and every way to pool and project, as ONNX and as TorchScript: the same vectors, for any batch."""

import json
import os
import zipfile
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import Tensor, nn

from nearfar.export.network import ExportError, input_name, input_shape, plain_network
from nearfar.export.onnx import OPSET, write_onnx
from nearfar.export.torchscript import torchscript_network, write_torchscript
from nearfar.models import Embedder, EvalTransform, list_trunks
from tests.export.making import unlike_new

# The variants of a family have the same layers, more of them: they take minutes, and are tested where that is wished.
FAMILIES = ("convnet", "efficientnet-lite0", "bn-inception", "resnet-18", "iresnet-34", "features")
EVERY = bool(os.environ.get("NEARFAR_EVERY_TRUNK"))
SIZES = {"convnet": 16, "bn-inception": 32}


def small(size: int) -> EvalTransform:
    return EvalTransform(size, None, crop=False)


def embedder(name: str, size: int | None = None, **options) -> Embedder:
    torch.manual_seed(0)
    if name.startswith("iresnet"):  # its head is its own
        size, options = 112, {"head": None, "trunk_options": {"dimension": 8}}
    if name == "features":
        options = {"trunk_options": {"dimension": 6}}
    preprocess = small(size or SIZES.get(name, 33))
    return unlike_new(Embedder(name, weights="random", preprocess=preprocess, **{"dimension": 8, **options}))


def images_for(model: Embedder, count: int) -> Tensor:
    generator = torch.Generator().manual_seed(2)
    return torch.randn(count, *input_shape(model), generator=generator)


def assert_same(model: Embedder, file: Path) -> None:
    session = onnxruntime.InferenceSession(file)
    for count in (1, 3):
        images = images_for(model, count)
        with torch.no_grad():
            expected = model(images).numpy()
        found = session.run(None, {input_name(model): images.numpy()})[0]
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, expected, rtol=0, atol=2e-5)
    assert np.abs(expected[0] - expected[1]).max() > 1e-3  # it does tell images apart


@pytest.mark.parametrize("name", [trunk.name for trunk in list_trunks() if EVERY or trunk.name in FAMILIES])
def test_trunks(name, tmp_path):
    model = embedder(name)
    write_onnx(model, tmp_path / "model.onnx", {"nearfar": '{"a": 1}'})
    assert_same(model, tmp_path / "model.onnx")
    meta = onnxruntime.InferenceSession(tmp_path / "model.onnx").get_modelmeta()
    assert (meta.producer_name, meta.custom_metadata_map) == ("nearfar", {"nearfar": '{"a": 1}'})
    stored = onnx.load(tmp_path / "model.onnx")
    assert [entry.version for entry in stored.opset_import if entry.domain == ""] == [OPSET]
    size = model.preprocess.height_width[0]
    taken = ("batch", 6) if name == "features" else ("batch", 3, size, size)
    for value, shape in ((stored.graph.input[0], taken), (stored.graph.output[0], ("batch", 8))):
        dims = value.type.tensor_type.shape.dim
        assert tuple(dim.dim_param or dim.dim_value for dim in dims) == shape
    # Batch normalisation lies in the kernels, which are constants, so that quantisation finds them.
    constants = {tensor.name for tensor in stored.graph.initializer}
    assert all(node.input[1] in constants for node in stored.graph.node if node.op_type == "Conv")
    # Nothing tells of the machine it was made on.
    content = (tmp_path / "model.onnx").read_bytes()
    assert b"site-packages" not in content and str(Path.cwd()).encode() not in content
    write_torchscript(model, tmp_path / "model.pt", {"about.json": "{}"})
    run = torchscript_network(tmp_path / "model.pt")
    for count in (1, 3):
        images = images_for(model, count)
        with torch.no_grad():
            torch.testing.assert_close(run(images), model(images), rtol=0, atol=2e-5)


def test_every_trunk_is_of_a_tested_family():
    families = {name.rstrip("0123456789") for name in FAMILIES}
    assert {trunk.name.rstrip("0123456789") for trunk in list_trunks()} == families


@pytest.mark.parametrize(
    "options",
    [
        # A map three rows high in two stripes, which share a row.
        {"pool": "gem", "parts": (1, 2), "head": "mlp", "layer_norm": True, "dimension": 12},
        {"pool": "avg+max", "head": "hash"},
        {"pool": "max", "head": "linear", "head_start": "pca-whiten", "freeze_trunk": True},
    ],
    ids=lambda options: options["pool"],
)
def test_pooling_and_heads(options, tmp_path):
    model = embedder("convnet", size=24, trunk_options={"width": 4}, **options)
    if options.get("head_start"):
        with pytest.raises(ValueError, match="was never fitted"):
            plain_network(model)
        model.fit_head(torch.randn(32, model.feature_size))
    write_onnx(model, tmp_path / "model.onnx", {})
    assert_same(model, tmp_path / "model.onnx")
    assert model.settings.head_start == options.get("head_start", "random")  # the model is as it was


def test_tokens_of_transformers(tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, image_size=16, patch_size=8
    )
    torch.manual_seed(0)
    transformers.AutoModel.from_config(config).save_pretrained(tmp_path / "vit")
    model = Embedder(f"hf:{tmp_path / 'vit'}", dimension=8, preprocess=small(16)).eval()
    write_onnx(model, tmp_path / "model.onnx", {})
    assert_same(model, tmp_path / "model.onnx")


class Undecided(nn.Module):
    """Asks about the values of its input, which no graph can."""

    def forward(self, images: Tensor) -> Tensor:
        return images.mean(3) if bool(images.sum() > 1) else images.amax(3)


def test_what_cannot_be_traced(tmp_path):
    model = Embedder(Undecided(), head=None, preprocess=small(8), pool="avg")
    with pytest.raises(ExportError, match=r"Undecided cannot be written as ONNX: .*--format torchscript"):
        write_onnx(model, tmp_path / "model.onnx", {})
    assert list(tmp_path.iterdir()) == []


def test_torchscript_archive(tmp_path):
    write_torchscript(
        embedder("convnet", trunk_options={"width": 4}), tmp_path / "model.pt", {"about.json": '{"a": 1}'}
    )
    assert [path.name for path in tmp_path.iterdir()] == ["model.pt"]
    with zipfile.ZipFile(tmp_path / "model.pt") as archive:
        content = b"".join(archive.read(name) for name in archive.namelist())
    assert b"site-packages" not in content and str(Path.cwd()).encode() not in content
    files = {"about.json": ""}
    with pytest.warns(DeprecationWarning, match=r"torch\.jit\.load"):
        torch.jit.load(tmp_path / "model.pt", _extra_files=files)
    assert json.loads(files["about.json"]) == {"a": 1}
