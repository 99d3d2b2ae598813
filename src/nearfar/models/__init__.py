"""From images to embeddings.

image ──► nearfar.imaging ─► trunk ──► pooling.py ──► heads.py, hashing.py ──► L2
                             │
    trunks.py: by name       ├─ convnet, efficientnet, bn_inception, resnet, iresnet        our own, public key names
                             └─ hub                                                         transformers, LoRA, timm

    network.py        all of it as one module: what is computed, what is trained when
    embedder.py       the network by its name, over folders of images, saved and loaded
    extraction.py     many images, decoded ahead of the network, in bounded memory
    checkpoints.py    weights of others; storage.py: our own files

    >>> import torch
    >>> from nearfar.models import Embedder
    >>> model = Embedder("convnet", dimension=16)
    >>> model(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 16])

Pillow and safetensors are needed, and for some trunks more: the error says what.
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
