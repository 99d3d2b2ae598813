"""Search pictures with an exported model: onnxruntime, numpy and Pillow are all it needs.

nearfar export RUN --out exported
python examples/onnx_search.py exported/model.onnx query.jpg photos/*.jpg
"""

import json
import sys
from typing import Any

import numpy as np
import onnxruntime
from PIL import Image, ImageOps

model_file, *pictures = sys.argv[1:]
session = onnxruntime.InferenceSession(model_file)
about = json.loads(session.get_modelmeta().custom_metadata_map["nearfar"])
how, (_, channels, height, width) = about["preprocess"], about["input"]["shape"]


def prepare(path: str) -> Any:
    """An image as the model was trained to see it: (channels, height, width)."""
    image = ImageOps.exif_transpose(Image.open(path)).convert("RGBA")
    image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
    if how["crop"]:  # the centre, in whole pixels
        scale = min(image.size) / how["resize"] if how["resize"] else min(image.width / width, image.height / height)
        left, top = round((image.width - width * scale) / 2), round((image.height - height * scale) / 2)
        image = image.crop((left, top, left + round(width * scale), top + round(height * scale)))
    image = image.resize((width, height), Image.Resampling[how["interpolation"].upper()])
    pixels = np.asarray(image.convert("L") if channels == 1 else image, np.float32).reshape(height, width, channels)
    pixels = pixels[:, :, ::-1] if how["channels"] == "BGR" else pixels
    return ((pixels / 255 - how["mean"]) / how["std"]).transpose(2, 0, 1)


vectors = [session.run(None, {"images": prepare(path)[None].astype(np.float32)})[0][0] for path in pictures]
similarities = np.stack(vectors[1:]) @ vectors[0]
for found in np.argsort(-similarities)[:10]:
    print(f"{similarities[found]:.3f}  {pictures[1 + found]}")
