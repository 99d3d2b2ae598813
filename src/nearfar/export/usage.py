"""The example code in a model card."""

from nearfar.export.network import input_name, input_shape
from nearfar.export.preprocessing import FILE_NAME
from nearfar.models import Embedder

_ONNX = """\
`pip install onnxruntime pillow`; neither torch nor nearfar is needed.

```python
import numpy as np
import onnxruntime
from PIL import Image, ImageOps

session = onnxruntime.InferenceSession("{file}")


def prepare(path):
    image = ImageOps.exif_transpose(Image.open(path)).convert("RGBA")
    image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
{crop}
    pixels = np.asarray(image{convert}, np.float32).reshape({height}, {width}, {count}){flip} / 255
    return ((pixels - {mean}) / {std}).transpose(2, 0, 1)


def embed(paths):
    return session.run(None, {{"{input}": np.stack([prepare(path) for path in paths]).astype(np.float32)}})[0]


a, b = embed([{paths}])
print({compare})    # {meaning}
```"""

_ONNX_OF_FEATURES = """\
`pip install onnxruntime`; neither torch nor nearfar is needed.

```python
import numpy as np
import onnxruntime

session = onnxruntime.InferenceSession("{file}")
a, b = session.run(None, {{"{input}": np.zeros((2, {shape}), np.float32)}})[0]    # of features, float32
print({compare})    # {meaning}
```"""

_STRETCH = "    image = image.resize(({width}, {height}), Image.Resampling.{filter})"
_CROP = """\
    scale = {scale}
    left, top = round((image.width - {width} * scale) / 2), round((image.height - {height} * scale) / 2)
    image = image.crop((left, top, left + round({width} * scale), top + round({height} * scale)))
    image = image.resize(({width}, {height}), Image.Resampling.{filter})"""

_TORCHSCRIPT = """\
TorchScript archives contain programs: load them only from sources you trust.

```python
import torch

model = torch.jit.load("model.pt")
a, b = model(torch.zeros(2, {shape}))    # {input}, prepared as `{file}` says
print({compare})    # {meaning}
```

libtorch loads it with `torch::jit::load`. The archive holds `{file}` too: `torch.jit.load("model.pt",
_extra_files=files)` puts it into `files = {{"{file}": ""}}`."""

_SAFETENSORS = """\
`pip install 'nearfar[models]'`. The file contains only tensors and JSON.

```python
{torch}from nearfar.models import Embedder

model = Embedder.load("model.safetensors")
a, b = model.embed({example})
print({compare})    # {meaning}
```"""


def text(kind: str, model: Embedder, *, quantised: bool) -> str:
    """The section "Use" of the card."""
    transform, shape = model.preprocess, input_shape(model)
    height, width = transform.height_width
    binary = model.binary
    values = {
        "height": height,
        "width": width,
        "count": len(transform.channels),
        "file": FILE_NAME,
        "input": input_name(model),
        "shape": ", ".join(map(str, shape)),
        "meaning": "the number of different bits" if binary else "the cosine",
        "paths": '"a.jpg", "b.jpg"',
        "compare": "((a > 0) != (b > 0)).sum()" if binary else "a @ b",
    }
    if kind == "torchscript":
        return _TORCHSCRIPT.format(**values)
    if kind == "safetensors":
        values["example"] = f"[{values['paths']}]" if len(shape) == 3 else f"torch.zeros(2, {shape[0]})"
        values["torch"] = "" if len(shape) == 3 else "import torch\n"
        return _SAFETENSORS.format(**values)
    file = "model-int8.onnx" if quantised else "model.onnx"
    if len(shape) == 1:
        return _ONNX_OF_FEATURES.format(**{**values, "file": file})
    if transform.resize is None:
        scale = f"min(image.width / {width}, image.height / {height})"
    else:
        scale = f"min(image.size) / {transform.resize}"
    values |= {
        "file": file,
        "filter": transform.interpolation.upper(),
        "scale": scale,
        "convert": '.convert("L")' if transform.channels == "L" else "",
        "flip": "[:, :, ::-1]" if transform.channels == "BGR" else "",
        "mean": list(transform.mean),
        "std": list(transform.std),
    }
    values["crop"] = (_CROP if transform.crop else _STRETCH).format(**values)
    return _ONNX.format(**values)
