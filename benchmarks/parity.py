"""Every built-in trunk, written as ONNX and as TorchScript, against PyTorch: the table of docs/export.md.

Weights are those of the trunk's package where it has one, drawn otherwise; inputs are noise, of the size the trunk is
made for.
"""

import tempfile
from pathlib import Path

import torch

from benchmarks.results import ROOT
from nearfar.export.network import input_shape
from nearfar.export.onnx import onnx_network, write_onnx
from nearfar.export.parity import Parity, parity
from nearfar.export.torchscript import torchscript_network, write_torchscript
from nearfar.export.weights import torch_network
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


def measured(trunk: TrunkInfo) -> tuple[int, int, Parity, Parity]:
    """Parameters, bytes of the ONNX file, and what ONNX and TorchScript give."""
    model = embedder(trunk).eval()
    inputs = torch.randn(ROWS, *input_shape(model), generator=torch.Generator().manual_seed(1))
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        onnx, script = Path(folder) / "model.onnx", Path(folder) / "model.pt"
        write_onnx(model, onnx, {})
        write_torchscript(model, script, {})
        size = sum(path.stat().st_size for path in Path(folder).glob("model.onnx*"))
        found = [
            parity(torch_network(model), exported, inputs, "noise")
            for exported in (onnx_network(onnx), torchscript_network(script))
        ]
    return sum(weights.numel() for weights in model.parameters()), size, found[0], found[1]


def write() -> int:
    """Measure every trunk, and put the table into the documentation."""
    lines = [
        f"| trunk | input | parameters | ONNX file | ONNX: least cosine of {ROWS} | TorchScript |",
        "|---|---|---|---|---|---|",
    ]
    for trunk in list_trunks():
        parameters, size, onnx, script = measured(trunk)
        shape = " × ".join(map(str, input_shape(embedder(trunk))))
        line = (
            f"| {trunk.name} | {shape} | {parameters:,} | {size / 1e6:.1f} MB | {onnx.least:.8f} | {script.least:.8f} |"
        )
        print(line, flush=True)
        lines.append(line)
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n" + "\n".join(lines) + f"\n{END}{after}", encoding="utf-8")
    return 0
