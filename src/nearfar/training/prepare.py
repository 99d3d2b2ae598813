"""Build everything that training needs from a configuration. All checks run here, before any work."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import nn

from nearfar.data import Loader, Table
from nearfar.data.opening import reopen
from nearfar.models import Embedder
from nearfar.training.build import build_embedder, build_loss, check_penalties
from nearfar.training.checks import check_batches, check_metric, check_parameters
from nearfar.training.config import TrainConfig
from nearfar.training.data import FeatureLoader, make_loader, make_sampler
from nearfar.training.defaults import FITTED, resolve, with_images_of
from nearfar.training.gradcache import check_batch_norm
from nearfar.training.kept_split import KeptSplit, with_test_data
from nearfar.training.learner import check_chunks, make_optimisation
from nearfar.training.loggers import check_installed
from nearfar.training.options import ConfigError
from nearfar.training.progress import Display, counted
from nearfar.training.reading import readable
from nearfar.training.runs import Run
from nearfar.training.splits import Parts, split
from nearfar.training.world import World

Choose = Callable[[TrainConfig, Table, Display], TrainConfig]


@dataclass
class Prepared:
    """Everything training needs, built and checked; `given` is the configuration before defaults were filled in."""

    given: TrainConfig
    config: TrainConfig
    parts: Parts
    embedder: Embedder
    loss: nn.Module
    loader: Loader | FeatureLoader
    total_steps: int
    split: KeptSplit | None = None


def prepare(
    config: TrainConfig,
    table: Table | None = None,
    world: World | None = None,
    display: Display | None = None,
    run: Run | None = None,
    choose: Choose | None = None,
) -> Prepared:
    """Open, split, build and check what a configuration describes.

    Args:
        table: the data; by default those that the configuration names.
        run: the run to resume, whose split is used.
        choose: for a new run, fills in the configuration by a budget, given the readable rows of the data.
    """
    display = display or Display(quiet=True)
    check_installed(config.loggers)
    check_metric(config.evaluation.metric, config.evaluation.ks)
    if table is None:
        table = reopen(config.data.path, config.data.layout)
    elif config.data.path == TrainConfig().data.path:
        config = replace(config, data=replace(config.data, path=table.name))
    rows, survey_result = readable(table, config.data.max_broken, display, config.data.path)
    kept = None if run is None else KeptSplit.load(run)
    if kept is not None:
        assert run is not None
        parts = kept.match(table, survey_result).parts_to_resume(run)
    else:
        if choose is not None:
            config = choose(config, rows, display)
        parts = split(rows, config.data, config.seed, frozen=config.model.freeze or table.images is None)
        kept = KeptSplit.of(table, survey_result, parts)
    parts = with_test_data(parts, kept, config.data)
    return replace(build(config, parts, world, display), split=kept)


def _embedder(config: TrainConfig, parts: Parts) -> Embedder:
    torch.manual_seed(config.seed)
    return build_embedder(config, tuple(parts.train.label_names))


def _with_shorter_warmup(config: TrainConfig, steps: int, epoch: int, display: Display) -> TrainConfig:
    """Cut every warm-up that would take all `steps` to a tenth of them, and note it on the display."""
    schedule, model = config.schedule, config.model
    warmup = schedule.warmup_steps or 0
    if warmup >= steps:
        schedule = replace(schedule, warmup_steps=steps // 10)
        display.note(
            f"warm-up of the rates shortened from {warmup:,} steps to {schedule.warmup_steps:,}: the run has {steps:,}"
        )
    if model.warmup_epochs * epoch >= steps and not model.freeze:
        model = replace(model, warmup_epochs=steps // epoch // 10)
        display.note(
            f"warm-up of the head (trunk frozen) shortened from {counted(config.model.warmup_epochs, 'epoch')} to "
            f"{model.warmup_epochs}: the run has {counted(steps, 'step')}, an epoch {epoch:,}"
        )
    return replace(config, schedule=schedule, model=model)


def build(config: TrainConfig, parts: Parts, world: World | None = None, display: Display | None = None) -> Prepared:
    """Build and check everything for training on these rows."""
    world, display = world or World(), display or Display(quiet=True)
    check_chunks(config)
    if not 0 < config.sample_rate <= 1:
        raise ConfigError(f"sample_rate={config.sample_rate} must be a share of the classes, above 0 and at most 1")
    if config.sample_rate < 1 and config.precision == "16-mixed":
        raise ConfigError("sample_rate needs precision 32-true or bf16-mixed, whose gradients are not scaled")
    given = config
    config = resolve(config, parts.train)
    sampler = make_sampler(config.sampler, parts.train, config.seed, world_size=config.nodes * config.devices)
    assert config.epochs is not None
    total = config.epochs * len(sampler)
    total = total if config.max_steps is None else min(total, config.max_steps)
    if total < 1:
        raise ConfigError(f"max_steps={config.max_steps} and epochs={config.epochs} leave nothing to train")
    config = _with_shorter_warmup(config, total, len(sampler), display)
    embedder = _embedder(config, parts)
    requested, size = config.model.dimension, embedder.feature_size
    if (
        given.model.dimension is None
        and config.model.head_start in FITTED
        and requested is not None
        and requested > size
    ):
        config = replace(config, model=replace(config.model, dimension=size))  # the number of principal components
        embedder = _embedder(config, parts)
    if config.chunk is not None and config.select is None:
        check_batch_norm(embedder.train())
    config = with_images_of(config, embedder)
    check_penalties(config)
    loss = build_loss(config.loss, parts.train.num_classes, embedder.dimension)
    check_batches(sampler, parts.train.labels, loss)
    check_parameters(loss, make_optimisation(config, embedder, loss, total)[0])
    wanted = len(parts.train) * config.model.views // world.size
    with display.looking("features of training images", wanted) as advance:
        loader = make_loader(config, parts.train, embedder, world, advance)
    return Prepared(given, config, parts, embedder, loss, loader, total)
