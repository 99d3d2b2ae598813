"""One image, from wherever it is to the tensor a network takes. `nearfar.data` and `nearfar.models` both build on this.

Source, ImageLike  ->  sources.py     a path, bytes, a place in a file, pixels; what tells one image from another
                   ->  decoding.py    eight-bit RGB the right way up, or BrokenImageError
                   ->  evaluation.py  EvalTransform: resized, cropped, normalised, the same every time
any other callable ->  foreign.py     torchvision, albumentations, kornia, a function of your own
a folder           ->  listing.py     the image files below it

    >>> import numpy as np
    >>> from nearfar.imaging import EvalTransform
    >>> EvalTransform(8, 10)(np.zeros((40, 20, 3), np.uint8)).shape
    torch.Size([3, 8, 8])
"""

from nearfar.imaging.decoding import load_image
from nearfar.imaging.evaluation import EvalTransform
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
