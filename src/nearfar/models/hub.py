"""Trunks of transformers (`hf:MODEL`), with LoRA by peft, and of timm (`timm:MODEL`)."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from torch import Tensor, nn

from nearfar.errors import InputError, MissingPackageError
from nearfar.imaging import EvalTransform
from nearfar.imaging.pixels import IMAGENET_MEAN, IMAGENET_STD, Interpolation

_BILINEAR = 2  # Pillow's number in configurations; others, mostly 3, are taken as bicubic


class HuggingFaceTrunk(nn.Module):
    """A vision model of transformers. It returns the last hidden state: a map (N, C, H, W) or tokens (N, T, C)."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        return cast(Tensor, self.model(pixel_values=images).last_hidden_state)


def _vision(model: nn.Module) -> nn.Module:
    """The vision model of a model of text and images."""
    return cast(nn.Module, getattr(model, "vision_model", model))


def hugging_face(model: str, *, pretrained: bool = True) -> tuple[HuggingFaceTrunk, EvalTransform]:
    """Load a model from the hub, or from a local folder of `save_pretrained`."""
    transformers = _transformers()
    try:
        if pretrained:
            loaded = transformers.AutoModel.from_pretrained(model, trust_remote_code=False)
        else:
            loaded = transformers.AutoModel.from_config(transformers.AutoConfig.from_pretrained(model))
    except (OSError, ValueError) as error:
        hint = "" if Path(model).is_dir() else f", and there is no local folder {model}"
        raise InputError(f"hf:{model} cannot be loaded{hint}: {str(error).splitlines()[0]}") from error
    trunk = HuggingFaceTrunk(_vision(loaded))
    return trunk, _preprocess_of(model, trunk)


def hugging_face_from_config(config: Mapping[str, Any]) -> HuggingFaceTrunk:
    """A model with random weights from the result of `hugging_face_config`, without the hub."""
    transformers = _transformers()
    model = transformers.AutoModel.from_config(transformers.AutoConfig.for_model(**config))
    return HuggingFaceTrunk(_vision(model))


def hugging_face_config(trunk: HuggingFaceTrunk) -> dict[str, Any]:
    """The model's configuration as JSON values."""
    config = json.loads(trunk.model.config.to_json_string(use_diff=False))  # type: ignore[union-attr,operator]
    # The path may be a folder of this machine.
    return {key: value for key, value in config.items() if key not in ("_name_or_path", "transformers_version")}


def _transformers() -> Any:
    try:
        import transformers
    except ImportError as error:
        raise MissingPackageError("hf: trunks need transformers: pip install 'nearfar[models]'") from error
    return transformers


def _preprocess_of(model: str, trunk: HuggingFaceTrunk) -> EvalTransform:
    """The transform of the model's image processor, with ImageNet's defaults for missing settings."""
    from transformers.image_processing_base import ImageProcessingMixin

    try:
        config, _ = ImageProcessingMixin.get_image_processor_dict(model)
    except OSError:
        config = {}
    native = getattr(trunk.model.config, "image_size", None) or 224
    size, crop = _edges(config.get("size"), native), _edges(config.get("crop_size"), native)
    mean = tuple(config.get("image_mean") or IMAGENET_MEAN) if config.get("do_normalize", True) else (0.0,) * 3
    std = tuple(config.get("image_std") or IMAGENET_STD) if config.get("do_normalize", True) else (1.0,) * 3
    interpolation: Interpolation = "bilinear" if config.get("resample") == _BILINEAR else "bicubic"

    def cropped(resize: int) -> EvalTransform:
        height, width = (crop, crop) if isinstance(crop, int) else crop
        return EvalTransform((height, width), max(resize, height, width), True, mean, std, interpolation)

    if isinstance(size, int):  # the shorter edge
        if "crop_pct" in config and "crop_size" not in config:
            # ConvNeXt and ResNet: `size` is the crop, and below 384 pixels the resize is larger.
            crop, size = size, (int(size / config["crop_pct"]) if size < 384 else size)
        elif not config.get("do_center_crop", "crop_size" in config):
            crop = size
        return cropped(size)
    if config.get("do_center_crop", False):
        return cropped(max(size))
    return EvalTransform(size, None, False, mean, std, interpolation)


def _edges(size: Any, native: Any) -> int | tuple[int, int]:
    """Parse a size of a configuration: the shorter edge, or (height, width)."""
    if size is None:
        size = native
    if isinstance(size, Mapping):
        if "shortest_edge" in size:
            return int(size["shortest_edge"])
        return int(size["height"]), int(size["width"])
    if isinstance(size, (list, tuple)):
        return int(size[0]), int(size[-1])
    return int(size), int(size)


def add_lora(module: nn.Module, options: Mapping[str, Any]) -> None:
    """Add low-rank adapters to linear layers of a module, and freeze all other parameters.

    Args:
        module: the module, changed in place.
        options: options of `peft.LoraConfig`, such as {"r": 8, "target_modules": ["query", "value"]}.

    References: E. Hu et al., "LoRA", ICLR 2022, arXiv:2106.09685.
    """
    try:
        import peft  # type: ignore[import-not-found]
    except ImportError as error:
        raise MissingPackageError("lora= needs peft: pip install 'nearfar[lora]'") from error
    try:
        peft.inject_adapter_in_model(peft.LoraConfig(**options), module)
    except (TypeError, ValueError) as error:
        raise InputError(f"peft cannot add adapters with lora={dict(options)}: {error}") from error
    for name, parameter in module.named_parameters():
        parameter.requires_grad_("lora_" in name)


class TimmTrunk(nn.Module):
    """A model of timm. It returns the unpooled features: a map (N, C, H, W) or tokens (N, T, C)."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        x = cast(Tensor, self.model.forward_features(images))  # type: ignore[operator]
        if x.ndim == 4 and x.shape[1] != self.model.num_features and x.shape[3] == self.model.num_features:
            return x.permute(0, 3, 1, 2)  # Swin and similar models have the channels last
        return x


def timm(model: str, *, pretrained: bool = True) -> tuple[TimmTrunk, EvalTransform]:
    """Load an image model of timm, without its classifier."""
    try:
        import timm as library  # type: ignore[import-not-found]
    except ImportError as error:
        raise MissingPackageError("timm: trunks need timm: pip install 'nearfar[timm]'") from error
    if not library.is_model(model.split(".")[0]):
        near = library.list_models(f"*{model.split('.')[0]}*")[:3]
        raise InputError(f"timm has no model {model!r}" + (f": did you mean {', '.join(near)}?" if near else ""))
    try:
        trunk = TimmTrunk(library.create_model(model, pretrained=pretrained, num_classes=0))
    except (OSError, ValueError, RuntimeError) as error:
        raise InputError(f"timm:{model} cannot be loaded: {error}") from error
    config = library.data.resolve_data_config({}, model=trunk.model)
    _, height, width = config["input_size"]
    resize = max(height, width, int(max(height, width) / config["crop_pct"]))
    mean, std = tuple(config["mean"]), tuple(config["std"])
    interpolation: Interpolation = "bilinear" if config["interpolation"] == "bilinear" else "bicubic"
    return trunk, EvalTransform((height, width), resize, config["crop_mode"] == "center", mean, std, interpolation)
