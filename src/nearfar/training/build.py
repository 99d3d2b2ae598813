"""Build the model and the loss of a configuration."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from nearfar import losses
from nearfar.errors import MissingFileError
from nearfar.losses import CrossBatchMemory, MatryoshkaLoss, SumLoss
from nearfar.models import Embedder, EvalTransform
from nearfar.training.config import DataConfig, LossConfig, ModelConfig, TrainConfig
from nearfar.training.downloads import WEIGHTS
from nearfar.training.options import ConfigError, loss_info


def build_embedder(config: TrainConfig, label_names: tuple[str, ...] = ()) -> Embedder:
    """Build the embedder of a resolved configuration; random weights come from torch's generator."""
    model = config.model
    try:
        embedder = _embedder(model, label_names)
    except MissingFileError as error:
        known = WEIGHTS.get(Path(model.weights).name)
        if known is None:
            raise
        raise MissingFileError(f"{error}. Download {known}") from None
    if model.head_scale is not None and not embedder.settings.fits_head:
        embedder.scale_head(model.head_scale)
    embedder.preprocess = embedder.transform = prepared(embedder.preprocess, config.data)
    return embedder


def _embedder(model: ModelConfig, label_names: tuple[str, ...]) -> Embedder:
    return Embedder(
        model.backbone or "efficientnet-lite0",
        weights=model.weights,
        pool=model.pool,
        head=None if model.head == "none" else model.head,
        dimension=model.dimension,
        hidden=model.hidden,
        layer_norm=model.layer_norm,
        parts=model.parts,
        head_start=model.head_start,
        freeze_trunk=model.freeze,
        freeze_to=model.freeze_to,
        freeze_batch_norm=model.freeze_batch_norm or False,
        batch_norm_momentum=model.batch_norm_momentum,
        warmup_epochs=model.warmup_epochs,
        trunk_options=model.options,
        lora=model.lora,
        label_names=label_names,
    )


def prepared(default: EvalTransform, data: DataConfig) -> EvalTransform:
    """The trunk's transform with the changes that the configuration asks for."""
    if data.test_size is not None and data.size is None:
        raise ConfigError("data.test_size, the size in evaluation, needs data.size, the size in training")
    size = data.test_size or data.size or default.size
    crop = default.crop if data.framing is None else data.framing == "crop"
    resize = None
    if crop:
        longest = max(size if isinstance(size, tuple) else (size, size))
        usual = 8 / 7 if default.resize is None else default.resize / max(default.height_width)
        resize = data.resize or round(longest * usual)
    elif data.resize is not None:
        raise ConfigError("data.resize applies to the centre crop: it does not go with framing stretch")
    interpolation = data.interpolation or default.interpolation
    return replace(default, size=size, resize=resize, crop=crop, interpolation=interpolation)


def build_loss(configured: tuple[LossConfig, ...], num_classes: int, embedding_size: int) -> nn.Module:
    """Build the loss, or the weighted sum of losses; class weights are drawn from torch's generator."""
    if configured and all(is_penalty(loss) for loss in configured):
        name = configured[0].name
        raise ConfigError(f"{name} is a penalty: add it to a loss, such as --loss 'ProxyAnchorLoss + 0.1 * {name}'")
    parts = [_build_one(loss, num_classes, embedding_size) for loss in configured]
    if len(parts) == 1 and configured[0].weight == 1:
        return parts[0]
    return SumLoss(parts, [loss.weight for loss in configured])


def is_penalty(loss: LossConfig) -> bool:
    """Whether this is a penalty on binary codes, which is not a loss by itself."""
    return bool(loss_info(loss.name).level == "penalty")


def check_penalties(config: TrainConfig) -> None:
    """Reject penalties on binary codes for models without codes."""
    penalties = [loss.name for loss in config.loss if is_penalty(loss)]
    if penalties and config.model.head != "hash":
        raise ConfigError(f"{penalties[0]} is a penalty on binary codes: it needs --head hash, not {config.model.head}")


def _build_one(loss: LossConfig, num_classes: int, embedding_size: int) -> nn.Module:
    info = loss_info(loss.name)
    if info.level == "towers":
        raise ConfigError(
            f"{loss.name} compares two views of the same samples and takes no labels: with labels use SupConLoss or "
            "NTXentLoss"
        )
    kwargs: dict[str, Any] = dict(loss.arguments)
    if loss.class_level and "num_classes" not in info.arguments:
        raise ConfigError(f"{loss.name} has no class-level form: leave class_level out")
    if info.level in ("class", "proxy") or loss.class_level:
        sizes = {"num_classes": num_classes, "embedding_size": embedding_size}
        kwargs |= {name: value for name, value in sizes.items() if name in info.arguments}
    try:
        built: nn.Module = getattr(losses, loss.name)(**kwargs)
        if loss.dims is not None:
            built = MatryoshkaLoss(built, loss.dims)
        if loss.memory is not None:
            built = CrossBatchMemory(built, embedding_size, loss.memory)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{loss.name}: {error}") from error
    return built
