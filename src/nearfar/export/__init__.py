"""Exports of a trained model for use without nearfar: `nearfar export RUN`.

    exporting.py      export: writes, compares and describes a model
    network.py        the network from images to embeddings, as exporters trace it
    onnx.py           model.onnx;  quantise.py  model-int8.onnx
    torchscript.py    model.pt
    safetensors.py    model.safetensors
    inputs.py         inputs for comparisons: rows of a table, or random ones
    parity.py         compares the exported file with PyTorch
    accuracy.py       metrics of the float32 and the int8 file
    preprocessing.py  preprocessing.json
    card.py           README.md, the model card; usage.py  its example code

from nearfar.export import export
exported = export("runs/photos-proxyanchor-1", "onnx", quantise="int8")
exported.folder, exported.parity.least, exported.accuracy.after["recall@1"]
"""

from nearfar.export.exporting import Exported, export
from nearfar.export.network import ExportError

__all__ = ["ExportError", "Exported", "export"]
