"""A trained model, put into a folder from which others can use it: `nearfar export RUN`.

run ─► network.py        images to embeddings and nothing else
    ─► onnx.py           model.onnx;  quantise.py  model-int8.onnx
       torchscript.py    model.pt
       weights.py        model.safetensors
    ─► inputs.py         rows of a table as the model takes them
       parity.py         the file against PyTorch: the same vectors, or nothing is left behind
       accuracy.py       what int8 costs, on the run's test rows
    ─► preparation.py    preprocessing.json: how images are prepared, what comes out
       card.py           README.md: the model card of the Hugging Face hub
       folder.py         all of it at once, or nothing

from nearfar.export import export
exported = export("runs/photos-proxyanchor-1", "onnx", quantise="int8")
exported.folder, exported.parity.least, exported.accuracy.after["recall@1"]
"""

from nearfar.export.exporting import Exported, export
from nearfar.export.network import ExportError

__all__ = ["ExportError", "Exported", "export"]
