"""Models with weights and statistics of chance, and a run as training leaves it, without training."""

from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn

from nearfar.models import Embedder
from nearfar.training.config import TrainConfig
from nearfar.training.options import with_options
from nearfar.training.runs import Run
from tests.training.making import patterns

NETWORK = {"backbone": "convnet", "options": {"width": 8}, "size": 16, "dimension": 8, "framing": "crop", "resize": 20}


def unlike_new(model: Embedder) -> Embedder:
    """The model with batch normalisation as after training: statistics of what it sees, scales and shifts. A new one's
    does next to nothing, and could be lost unnoticed.
    """
    norms = [module for module in model.modules() if isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d))]
    for norm in norms:
        norm.momentum = 1.0
        nn.init.constant_(norm.weight, 1.2)
        nn.init.constant_(norm.bias, 0.1)
    model.trunk.train()
    with torch.no_grad():
        if norms:
            model.trunk(torch.randn(4, 3, *model.preprocess.height_width, generator=torch.Generator().manual_seed(1)))
    return model.eval()


def photos(folder: Path, classes: int = 8, each: int = 6) -> Path:
    """Pictures in a folder for each class, named after it. Their crop of 16 x 16 begins between two pixels."""
    table = patterns(classes=classes, each=each)
    assert table.images is not None
    for row in range(len(table)):
        path = folder / f"secret{table.label_name(row)[-1]}" / f"{row}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.asarray(table.images[row])).resize((27, 20), Image.Resampling.NEAREST).save(path)
    return folder


def make_run(folder: Path, data: Path, **options: object) -> Run:
    run = Run(folder)
    config = with_options(TrainConfig(), {"path": str(data), "loss": "ProxyAnchorLoss", **NETWORK, **options})
    run.begin(config)
    torch.manual_seed(0)
    model = Embedder(
        "convnet",
        dimension=8,
        trunk_options={"width": 8},
        label_names=("secret0", "secret1"),
        calibration={"threshold": {"threshold": 0.625, "precision": 0.95}},
    )
    from nearfar.training.build import prepared

    model.preprocess = model.transform = prepared(model.preprocess, config.data)
    unlike_new(model).save(run.folder)
    run.write_metrics(
        {
            "before": {"recall@1": 0.25, "map@r": 0.125},
            "after": {"recall@1": 0.75, "map@r": 0.5, "queries": 24},
            "measured_on": "test",
            "open_set": True,
            "steps": 1234,
        }
    )
    return run
