"""Embedding networks: trunks, pooling and heads.

image ──► nearfar.imaging ─► trunk ──► pooling.py ──► heads.py, hashing.py ──► L2
                             │
    trunks.py: by name       ├─ convnet, efficientnet, bn_inception, resnet, iresnet        with public parameter names
                             └─ hub                                                         transformers, LoRA, timm

    network.py        the whole network as a module: forward pass, frozen and trained parts
    embedder.py       Embedder: the network by name, over many images, saved and loaded
    extraction.py     runs a network over many images, decoded ahead of it in bounded memory
    checkpoints.py    reads weights of other projects; storage.py reads and writes model files

    >>> import torch
    >>> from nearfar.models import Embedder
    >>> model = Embedder("convnet", dimension=16)
    >>> model(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 16])

Needs Pillow and safetensors. Some trunks need more packages, which the error names.
"""

from nearfar.imaging import BrokenImageError, EvalTransform, TooManyBrokenImagesError
from nearfar.models.embedder import Embedder
from nearfar.models.extraction import images_in
from nearfar.models.hashing import HashingHead, HashingPenalty, pack_codes
from nearfar.models.heads import pca
from nearfar.models.pooling import Pooling
from nearfar.models.trunks import Trunk, TrunkInfo, list_trunks, open_trunk

__all__ = [
    "BrokenImageError",
    "Embedder",
    "EvalTransform",
    "HashingHead",
    "HashingPenalty",
    "Pooling",
    "TooManyBrokenImagesError",
    "Trunk",
    "TrunkInfo",
    "images_in",
    "list_trunks",
    "open_trunk",
    "pack_codes",
    "pca",
]
