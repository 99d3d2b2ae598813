"""`preprocessing.json`: preprocessing, inputs and outputs of an exported model, for programs in any language."""

import json
from typing import Any

import nearfar
from nearfar.export.network import OUTPUT, input_name, input_shape
from nearfar.imaging import EvalTransform
from nearfar.models import Embedder

FILE_NAME = "preprocessing.json"


def description(model: Embedder) -> dict[str, Any]:
    """The contents of `preprocessing.json`."""
    features = input_name(model) == "features"
    binary = model.binary
    return {
        "nearfar": nearfar.__version__,
        "preprocess": None if features else model.preprocess.to_dict(),
        "steps": ["use the features as the encoder returns them"] if features else steps(model.preprocess),
        "input": {"name": input_name(model), "dtype": "float32", "shape": ["batch", *input_shape(model)]},
        "output": {"name": OUTPUT, "dtype": "float32", "dimension": model.dimension, "binary": binary},
        "compare": "Hamming distance of the signs" if binary else "cosine, the dot product of unit vectors",
        "calibration": model.calibration,
    }


def steps(transform: EvalTransform) -> list[str]:
    """The preprocessing of an image in words, in order.

    >>> steps(EvalTransform(224, 256))[1]
    'crop the centre in whole pixels: height 224/256 and width 224/256 of the shorter side'
    """
    height, width = transform.height_width
    if not transform.crop:
        crop = "take the whole image"
    elif transform.resize is None:
        crop = f"crop the largest centred box with ratio {width} : {height} (width : height), in whole pixels"
    else:
        crop = (
            f"crop the centre in whole pixels: height {height}/{transform.resize} and width "
            f"{width}/{transform.resize} of the shorter side"
        )
    colours = {"RGB": "red, green, blue", "BGR": "blue, green, red", "L": "grey (ITU-R BT.601)"}[transform.channels]
    return [
        "decode to 8-bit RGB, rotate by the EXIF orientation, composite transparency on white",
        crop,
        f"resize to width {width} and height {height}: {transform.interpolation}, antialiased",
        f"channels: {colours}",
        "for each channel: divide by 255, subtract mean, divide by std",
        "axes: batch, channel, row, column",
    ]


def to_json(values: dict[str, Any]) -> str:
    """The text of `preprocessing.json`."""
    return json.dumps(values, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
