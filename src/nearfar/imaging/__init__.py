"""Decoding and preprocessing of single images, used by `nearfar.data` and `nearfar.models`.

sources.py         kinds of image sources (path, bytes, byte range, pixels) and their identity
decoding.py        decodes a source to upright 8-bit RGB, or raises BrokenImageError
pixels.py          cropping, resizing, channel order and normalisation
eval_transform.py  EvalTransform: the deterministic transform of evaluation
callables.py       transforms of torchvision, albumentations and kornia, and plain functions
listing.py         image files below a folder

>>> import numpy as np
>>> from nearfar.imaging import EvalTransform
>>> EvalTransform(8, 10)(np.zeros((40, 20, 3), np.uint8)).shape
torch.Size([3, 8, 8])
"""

from nearfar.imaging.decoding import load_image
from nearfar.imaging.eval_transform import EvalTransform
from nearfar.imaging.listing import images_below
from nearfar.imaging.sources import BrokenImageError, ImageLike, Source, Span, TooManyBrokenImagesError, identity

__all__ = [
    "BrokenImageError",
    "EvalTransform",
    "ImageLike",
    "Source",
    "Span",
    "TooManyBrokenImagesError",
    "identity",
    "images_below",
    "load_image",
]
