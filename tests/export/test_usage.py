"""The code in a model card prepares images as nearfar does."""

import numpy as np
import pytest
from PIL import Image

from nearfar.export.usage import text
from nearfar.models import Embedder, EvalTransform

ONE_GREY = {"mean": (0.5,), "std": (0.25,), "channels": "L"}


@pytest.mark.parametrize(
    "transform",
    [
        EvalTransform(16, 20),
        EvalTransform(16, 31),  # the shorter side: nothing is resized, and half a pixel would blur everything
        EvalTransform((20, 12), None),
        EvalTransform((12, 20), None, crop=False, interpolation="bilinear"),
        EvalTransform(16, 20, channels="BGR", mean=(0.1, 0.5, 0.9)),
        EvalTransform(16, 20, **ONE_GREY),
    ],
    ids=str,
)
@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L"])
def test_preparation(transform, mode, tmp_path):
    rng = np.random.default_rng(0)
    noise = Image.fromarray(rng.integers(0, 256, (31, 46, 4), dtype=np.uint8)).convert(mode)
    noise.save(tmp_path / "noise.png")
    options = {"inputs": len(transform.channels) if transform.channels == "L" else 3, "width": 2}
    model = Embedder("convnet", dimension=4, preprocess=transform, trunk_options=options)
    code = text("onnx", model, quantised=False).split("```python\n")[1].split("def embed")[0]
    namespace: dict = {}
    exec(code.replace('session = onnxruntime.InferenceSession("model.onnx")', ""), namespace)
    found = namespace["prepare"](tmp_path / "noise.png")
    expected = transform(tmp_path / "noise.png").numpy()
    assert found.shape == expected.shape
    levels = np.abs(found - expected) * 255 * np.array(transform.std)[:, None, None]
    assert levels.max() < 2.01 and levels.mean() < 0.3  # Pillow and torch round differently


@pytest.mark.parametrize("kind", ["torchscript", "safetensors", "onnx"])
def test_code_for_features(kind):
    model = Embedder("features", trunk_options={"dimension": 5}, dimension=4)
    shown = text(kind, model, quantised=False)
    assert "2, 5" in shown and "PIL" not in shown
    compile(shown.split("```python\n")[1].split("```")[0], kind, "exec")
