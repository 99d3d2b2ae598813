"""`preprocessing.json`: what a program in any language must know to use an exported model."""

import json
from typing import Any

import nearfar
from nearfar.export.network import OUTPUT, input_name, input_shape
from nearfar.imaging import EvalTransform
from nearfar.models import Embedder

FILE_NAME = "preprocessing.json"


def description(model: Embedder) -> dict[str, Any]:
    """How images are prepared, what goes in and what comes out; plain JSON values."""
    features = input_name(model) == "features"
    binary = model.binary
    return {
        "nearfar": nearfar.__version__,
        "preprocess": None if features else model.preprocess.to_dict(),
        "steps": ["take features as the encoder gives them"] if features else steps(model.preprocess),
        "input": {"name": input_name(model), "dtype": "float32", "shape": ["batch", *input_shape(model)]},
        "output": {"name": OUTPUT, "dtype": "float32", "dimension": model.dimension, "binary": binary},
        "compare": "the signs, by Hamming distance" if binary else "by cosine: the dot product, of unit vectors",
        "calibration": model.calibration,
    }


def steps(transform: EvalTransform) -> list[str]:
    """The preparation of an image in words, to be followed in this order.

    >>> steps(EvalTransform(224, 256))[1]
    'cut out the centre, in whole pixels: 224/256 of the shorter side high, 224/256 of it wide'
    """
    height, width = transform.height_width
    if not transform.crop:
        cut = "take the whole image"
    elif transform.resize is None:
        cut = f"cut out the largest box of {width} : {height} (width : height) around the centre, in whole pixels"
    else:
        cut = (
            f"cut out the centre, in whole pixels: {height}/{transform.resize} of the shorter side high, "
            f"{width}/{transform.resize} of it wide"
        )
    colours = {"RGB": "red, green, blue", "BGR": "blue, green, red", "L": "grey (ITU-R BT.601)"}[transform.channels]
    return [
        "decode to 8-bit RGB, turned as the EXIF orientation says, transparency laid on white",
        cut,
        f"resize it to {width} wide, {height} high: {transform.interpolation}, antialiased",
        f"channels: {colours}",
        "divide by 255, subtract mean, divide by std, for each channel",
        "order: batch, channel, row, column",
    ]


def to_json(described: dict[str, Any]) -> str:
    """As it stands in the file."""
    return json.dumps(described, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
