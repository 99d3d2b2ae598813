"""Replace every None in a configuration by a value for this data and model."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from nearfar.data import Table
from nearfar.data.opening import EMBEDDED
from nearfar.models import Embedder, list_trunks
from nearfar.models.trunks import check_trunk
from nearfar.training.config import LossConfig, ModelConfig, OptimiserConfig, SamplerConfig, ScheduleConfig, TrainConfig
from nearfar.training.loss_defaults import LossDefaults, Start, defaults_of_sum, with_arguments
from nearfar.training.options import ConfigError, loss_info

FROM_PRETRAINED, FROM_NOTHING = "ProxyAnchorLoss", "MultiSimilarityLoss"
GLYPH_EPOCHS, GLYPH_WIDTH = 12, 16  # a minute on two cores
FITTED = ("pca", "pca-whiten")  # initialisations of the head that are fitted to the features


def resolve(config: TrainConfig, train: Table) -> TrainConfig:
    """Replace every None that does not need the built model, for these training rows."""
    small = train.embedded
    model = config.model if train.images is not None else _without_trunk(config, train)
    backbone = model.backbone or ("convnet" if small else "efficientnet-lite0")
    if backbone != "features":
        check_trunk(backbone)
    pretrained = backbone == "features" or is_pretrained(backbone, model.weights)
    if model.views > 1 and not model.freeze:
        raise ConfigError("model.views are augmented versions of cached features: add --freeze")
    if model.freeze and not pretrained:
        raise ConfigError(
            f"--freeze keeps the weights of {backbone}, which are random: leave it out, or choose a pretrained "
            "--backbone or --weights FILE"
        )
    losses = config.loss or (LossConfig(FROM_PRETRAINED if pretrained else FROM_NOTHING),)
    begun = start_of(replace(model, backbone=backbone))
    losses = tuple(with_arguments(loss, begun) for loss in losses)
    chosen = defaults_of_sum(losses, begun)
    start = model.head_start or ("pca" if pretrained and model.head in ("linear", "mlp") else "random")
    keep = config.evaluation.keep or ("trained" if model.dimension is not None or model.head == "hash" else "best")
    model = replace(
        model,
        backbone=backbone,
        weights=_absolute(model.weights, ("default", "random")),
        dimension=model.dimension or _dimension(model.head, small),
        options={"width": GLYPH_WIDTH} if small and model.backbone is None and not model.options else model.options,
        head_start="random" if model.head == "none" else start,
        head_scale=chosen.head_scale if model.head_scale is None else model.head_scale,
        freeze_batch_norm=pretrained if model.freeze_batch_norm is None else model.freeze_batch_norm,
    )
    data = replace(
        config.data,
        path=_absolute(config.data.path, (EMBEDDED,)),
        test=None if config.data.test is None else _absolute(config.data.test, (EMBEDDED,)),
        flip=(0.0 if small else 0.5) if config.data.flip is None else config.data.flip,
        pad=(2 if small else 0) if config.data.pad is None else config.data.pad,
        workers=_workers(small or model.freeze, config.devices) if config.data.workers is None else config.data.workers,
    )
    epochs = config.epochs or (40 if model.freeze else GLYPH_EPOCHS if small else 20)
    sampler = _sampler(config, losses, train, chosen.batch_size)
    return replace(
        config,
        data=data,
        sampler=sampler,
        model=model,
        loss=losses,
        class_start=config.class_start or ("means" if model.head_start in FITTED else "random"),
        optimiser=_optimiser(config.optimiser, chosen),
        schedule=_schedule(config, chosen, epochs, len(train), sampler),
        evaluation=replace(config.evaluation, keep=keep),
        epochs=epochs,
    )


def _without_trunk(config: TrainConfig, train: Table) -> ModelConfig:
    """The model for data that consists of features: only the head is trained."""
    assert train.features is not None
    model = config.model
    if model.backbone not in (None, "features"):
        raise ConfigError(f"{train.name} has no images, only features: leave --backbone {model.backbone} out")
    if model.views > 1 or config.evaluation.flip:
        raise ConfigError(f"{train.name} has no images to augment or to mirror: leave --views and --flip out")
    return replace(model, backbone="features", options={"dimension": train.features.shape[1]}, freeze=True)


def with_images_of(config: TrainConfig, embedder: Embedder) -> TrainConfig:
    """Fill in the preparation of images, which the built model knows."""
    preprocess = embedder.preprocess
    data = replace(
        config.data,
        size=preprocess.size if config.data.size is None else config.data.size,
        resize=preprocess.resize,
        framing="crop" if preprocess.crop else "stretch",
        interpolation=preprocess.interpolation,
    )
    return replace(config, data=data)


def is_pretrained(backbone: str, weights: str) -> bool:
    """Whether the trunk starts from pretrained weights."""
    if weights != "default":
        return weights != "random"
    if backbone.startswith(("hf:", "timm:")):
        return True
    return any(info.name == backbone and info.default_weights is not None for info in list_trunks())


def start_of(model: ModelConfig) -> Start:
    """The kind of start, which decides the learning rates."""
    if model.freeze:
        return "frozen"
    assert model.backbone is not None
    return "tuned" if is_pretrained(model.backbone, model.weights) else "scratch"


def compares_samples(loss: LossConfig) -> bool:
    """Whether the loss needs several samples of a class in a batch."""
    level = loss_info(loss.name).level
    return bool(level == "pair" or (level == "pair or class" and not loss.class_level))


def _optimiser(settings: OptimiserConfig, defaults: LossDefaults) -> OptimiserConfig:
    """Fill in the network's rate and one for each kind of parameter of the loss, unless one factor sets them all."""
    lr = settings.lr or defaults.lr
    if settings.proxies is not None:
        return replace(settings, lr=lr)
    rates = {
        name: lr if settings.name == "sgd" else getattr(defaults, name) for name in ("classes", "scale", "boundary")
    }
    chosen: dict[str, Any] = {
        name: rate if getattr(settings, name) is None else getattr(settings, name) for name, rate in rates.items()
    }
    return replace(settings, lr=lr, **chosen)


def _schedule(
    config: TrainConfig, defaults: LossDefaults, epochs: int, rows: int, sampler: SamplerConfig
) -> ScheduleConfig:
    """Fill in the warm-ups that the loss needs: of rates in at most a tenth of all steps, of a margin in a third."""
    schedule = config.schedule
    epoch = max(1, rows // ((sampler.batch_size or 1) * config.devices * config.nodes))
    steps = min(epochs * epoch, config.max_steps or epochs * epoch)
    warmup = min(round(defaults.warmup * epoch), steps // 10)
    margin = min(round(defaults.margin_warmup * epoch), steps // 3)
    return replace(
        schedule,
        warmup_steps=warmup if schedule.warmup_steps is None else schedule.warmup_steps,
        margin_warmup_steps=margin if schedule.margin_warmup_steps is None else schedule.margin_warmup_steps,
    )


def _sampler(config: TrainConfig, losses: tuple[LossConfig, ...], table: Table, batch_size: int) -> SamplerConfig:
    sampler = config.sampler
    kind = sampler.kind
    if kind == "auto":
        kind = "pk" if any(map(compares_samples, losses)) else "plain"
    size = sampler.batch_size or batch_size
    p = sampler.p
    if kind in ("pk", "hierarchical"):
        per_class = sampler.k * (sampler.s if kind == "hierarchical" else 1)
        if p is None:
            classes = table.num_classes // (
                config.nodes * config.devices * (sampler.s if kind == "hierarchical" else 1)
            )
            p = max(1, min(size // per_class, classes))
        elif sampler.batch_size is not None and sampler.batch_size != p * per_class:
            raise ConfigError(
                f"sampler.batch_size={sampler.batch_size}, but p x k = {p * per_class}: set only one of them"
            )
        size = p * per_class
    elif p is not None:
        raise ConfigError(f"sampler.p goes with the samplers pk and hierarchical, not with {kind}")
    if size * config.devices * config.nodes < 2:
        raise ConfigError("a batch of one image has no other to compare it with: use --batch-size 2 or more")
    return replace(sampler, kind=kind, p=p, batch_size=size)


def _dimension(head: str, small: bool) -> int | None:
    return None if head == "none" else 128 if small else 512


def _workers(in_memory: bool, devices: int) -> int:
    """The number of loading processes. Small images in memory take less time to prepare than to send."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return 0 if in_memory else max(1, min(8, cores // devices - 1))


def _absolute(path: str, names: tuple[str, ...]) -> str:
    """Make a path absolute, unless it is one of the names."""
    return path if path in names else str(Path(path).expanduser().absolute())
