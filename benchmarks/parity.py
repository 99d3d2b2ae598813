"""Every built-in trunk, written as ONNX and as TorchScript, against PyTorch: the table of docs/export.md.

Weights are those of the trunk's package where it has one, drawn otherwise, with batch statistics of the inputs: without
them, activations of a deep residual network leave float32. Inputs are noise, of the size the trunk is made for.
"""

import tempfile
from pathlib import Path

import torch
from torch import nn

from benchmarks.results import ROOT
from nearfar.export.network import input_shape
from nearfar.export.onnx import onnx_network, write_onnx
from nearfar.export.parity import parity
from nearfar.export.safetensors import torch_network
from nearfar.export.torchscript import torchscript_network, write_torchscript
from nearfar.models import Embedder, TrunkInfo, list_trunks

PAGE = ROOT / "docs" / "export.md"
BEGIN, END = "<!-- parity:begin -->", "<!-- parity:end -->"
ROWS = 16


def embedder(trunk: TrunkInfo) -> Embedder:
    """With a head of 512 dimensions, as far as the trunk has none of its own."""
    torch.manual_seed(0)
    if trunk.name == "features":
        return Embedder(trunk.name, dimension=512, trunk_options={"dimension": 1280})
    own_head = trunk.name.startswith("iresnet")
    weights = "default" if trunk.name == "efficientnet-lite0" else "random"
    return Embedder(trunk.name, weights=weights, **({"head": None} if own_head else {"dimension": 512}))


def set_statistics(model: Embedder, inputs: torch.Tensor) -> None:
    """Let batch normalisation take its mean and variance from these inputs."""
    for part in model.modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm):
            part.momentum = 1.0
    with torch.no_grad():
        model.train()(inputs)


def measured(trunk: TrunkInfo) -> str:
    """A row of the table."""
    model = embedder(trunk)
    shape = input_shape(model)
    inputs = torch.randn(ROWS, *shape, generator=torch.Generator().manual_seed(1))
    if trunk.name != "efficientnet-lite0":
        set_statistics(model, inputs)
    model.eval()
    parameters = sum(weights.numel() for weights in model.parameters())
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        onnx, script = Path(folder) / "model.onnx", Path(folder) / "model.pt"
        write_onnx(model, onnx, {})
        write_torchscript(model, script, {})
        megabytes = sum(path.stat().st_size for path in Path(folder).glob("model.onnx*")) / 1e6
        differences = [
            1 - parity(torch_network(model), exported, inputs, "noise").least
            for exported in (onnx_network(onnx), torchscript_network(script))
        ]
    size = " × ".join(map(str, shape))
    return (
        f"| {trunk.name} | {size} | {parameters:,} | {megabytes:.1f} MB | {differences[0]:.0e} | {differences[1]:.0e} |"
    )


def write() -> int:
    """Measure every trunk, and put the table into the documentation."""
    lines = [
        f"| trunk | input | parameters | ONNX file | ONNX: 1 − cosine, largest of {ROWS} | TorchScript |",
        "|---|---|---|---|---|---|",
    ]
    for trunk in list_trunks():
        lines.append(measured(trunk))
        print(lines[-1], flush=True)
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n" + "\n".join(lines) + f"\n{END}{after}", encoding="utf-8")
    return 0
