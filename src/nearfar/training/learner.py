"""`Learner`: one training step, as Lightning calls it. What happens around the steps: `recorder.py`."""

import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.optim import Optimizer

from nearfar.data import Batch
from nearfar.foundation.run_folder import RunError
from nearfar.losses.distributed import is_sharded
from nearfar.models import Embedder
from nearfar.training.config import TrainConfig
from nearfar.training.gradcache import GradCache
from nearfar.training.lazy import LazyRows
from nearfar.training.margins import RisingMargins
from nearfar.training.norms import set_norms
from nearfar.training.optimisers import Ema, Rates, clip, make_optimiser, make_schedule, parameter_groups
from nearfar.training.options import ConfigError
from nearfar.training.parts import (
    lazy_rows,
    load_plain_loss_state,
    make_room,
    optimiser_shards,
    plain_loss_state,
    plain_optimiser_state,
    table_shards,
)
from nearfar.training.shards import Shard, load_shards
from nearfar.training.spread import rows_here
from nearfar.training.subset import SubsetStep, check_keep
from nearfar.training.world import World

FORMAT = 1  # of the states below


@dataclass(frozen=True)
class Step:
    """What a step leaves for those who watch; nothing of it has a graph."""

    loss: Tensor
    embeddings: Tensor
    labels: Tensor


class Observer(Protocol):
    """Is told of every step once the weights have moved."""

    def before_step(self, learner: "Learner") -> None: ...

    def after_step(self, learner: "Learner", step: Step) -> None: ...


class Learner(LightningModule):
    """Embedder, loss, optimiser, schedule and averaged weights, and how far they are.

    What is random in a step depends on the seed and the step's number alone, so that a run that goes on from a
    checkpoint draws what it would have drawn.

    Args:
        config: resolved.
        total_steps: at which the schedule ends.
        observer: is told of every step.
        world: the processes that train together; the loss is `spread` over them.
    """

    optimiser: Optimizer

    def __init__(
        self,
        embedder: Embedder,
        loss: nn.Module,
        config: TrainConfig,
        total_steps: int,
        observer: Observer,
        world: World | None = None,
    ):
        super().__init__()
        self.embedder, self.loss, self.config, self.total_steps = embedder, loss, config, total_steps
        self.observer, self.world = observer, world or World()
        set_norms(embedder, loss, config.model)
        self._margins = RisingMargins(loss, config.schedule.margin_warmup_steps or 0)
        # Parts of class weights are each process's own, and what else a loss keeps, all of them change alike.
        own = [name for name, parameter in loss.named_parameters() if is_sharded(parameter)]
        own += [name for name, _ in loss.named_buffers()]
        self._ddp_params_and_buffers_to_ignore = [f"loss.{name}" for name in own]
        self._lazy: LazyRows | None = None
        self.done = 0  # steps
        self.ema: Ema | None = None
        self._resumed: Mapping[str, Any] | None = None
        self._resumed_shards: Path | None = None
        self._last: Step | None = None
        self._whole_step: GradCache | SubsetStep | None = None  # which goes backward by itself
        if config.select is not None:
            self._whole_step = SubsetStep(embedder, loss, config.select, config.select_keep, config.chunk)
        elif config.chunk is not None:
            self._whole_step = GradCache(embedder, loss, config.chunk)
        check_chunks(config)

    def configure_optimizers(self) -> Any:
        """Lightning asks once, when the weights are where they will be trained."""
        self.optimiser, self.schedule = make_optimisation(self.config, self.embedder, self.loss, self.total_steps)
        if self.config.sample_rate < 1:
            self._lazy = lazy_rows(self.loss, self.optimiser)
        return {"optimizer": self.optimiser, "lr_scheduler": {"scheduler": self.schedule, "interval": "step"}}

    def on_train_start(self) -> None:
        if self.config.ema:
            self.ema = Ema(self.embedder, self.config.ema)
        if self._resumed is not None:
            self.optimiser.load_state_dict(self._resumed["optimiser"])
            if self._resumed_shards is not None:
                make_room(self.loss, self.optimiser, self._resumed["shards"])
                load_shards(self._resumed_shards, self.shards())
            self.schedule.load_state_dict(self._resumed["schedule"])
            if self.ema is not None:
                self.ema.load_state_dict(self._resumed["ema"])
            self.trainer.precision_plugin.load_state_dict(self._resumed["precision"])
            self._resumed = None
        self.train()

    # A step

    def start_epoch(self, epoch: int) -> None:
        """Choose what this epoch trains; where warm-up ends, begin again with the optimiser, if it is to."""
        self.embedder.start_epoch(epoch)
        if self.config.optimiser.restart and epoch >= self.config.model.warmup_epochs:
            moved = any(parameter in self.optimiser.state for parameter in self.embedder.trunk_parameters())
            if not moved:  # nor will it be, if a run goes on in the middle of this epoch
                self.optimiser.state.clear()

    def training_step(self, batch: Batch) -> Tensor:
        """The loss of a batch."""
        self.observer.before_step(self)
        _seed_step(self.config.seed, self.done, self.global_rank, self.device)
        if self.embedder.binary:
            self.embedder.set_progress(self.done / self.total_steps)
        self._margins.set(self.done)
        if self._whole_step is not None:
            self.optimiser.zero_grad()
            loss = self._whole_step.step(batch.images, batch.labels)
            embeddings = self._whole_step.embeddings
        else:
            embed = self.embedder.project if self.config.model.freeze else self.embedder
            embeddings = embed(batch.images)
            if self.world.size > 1:  # what a loss draws, it draws alike everywhere
                _seed_step(self.config.seed, self.done, 0, self.device)
            loss = self.loss(embeddings, batch.labels)
        if loss.device.type == "cpu" and not torch.isfinite(loss):  # elsewhere it would wait for the device
            raise self.not_finite("the loss is not a number", self.done + 1)
        self._last = Step(loss.detach(), embeddings.detach(), batch.labels)
        return loss

    def backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        """In chunks, or of a part, it has been done already."""
        if self._whole_step is None:
            super().backward(loss, *args, **kwargs)

    def optimizer_zero_grad(self, *args: Any, **kwargs: Any) -> None:
        """Lightning calls it between the step and `backward`."""
        if self._whole_step is None:
            super().optimizer_zero_grad(*args, **kwargs)

    def configure_gradient_clipping(self, optimizer: Optimizer, *args: Any, **kwargs: Any) -> None:
        own = self.config.optimiser
        if own.clip_value is not None or own.clip_norm is not None:
            clip(self.parameters(), own.clip_value, own.clip_norm, self.world)
        if self._lazy is not None:
            self._lazy.step()

    def on_train_batch_end(self, *args: Any, **kwargs: Any) -> None:
        self.done += 1
        if self.ema is not None:
            self.world.share_buffers(self.embedder)
            self.ema.update()
        assert self._last is not None
        self.observer.after_step(self, self._last)

    # State

    def state(self) -> dict[str, Any]:
        """All that later steps depend on, but for the data and the `shards`."""
        here = [rows_here(p) if is_sharded(p) else p for p in self.parameters()]
        if self.world.any(not all(bool(torch.isfinite(parameter).all()) for parameter in here))[0]:
            raise self.not_finite("weights are not numbers any more", self.done)
        return {
            "format": FORMAT,
            "step": self.done,
            "embedder": self.embedder.state_dict(),
            "loss": plain_loss_state(self.loss),
            "optimiser": plain_optimiser_state(self.loss, self.optimiser),
            "shards": list(self.shards()),
            "schedule": self.schedule.state_dict(),
            "ema": None if self.ema is None else self.ema.state_dict(),
            "precision": self.trainer.precision_plugin.state_dict(),
        }

    def shards(self) -> dict[str, Shard]:
        """The part that this process has of large class weights, and of what the optimiser keeps for them."""
        return table_shards(self.loss) | optimiser_shards(self.loss, self.optimiser)

    def resume(self, state: Mapping[str, Any], shards: Path | None = None) -> None:
        """Take up a state before training begins; what needs an optimiser follows once there is one.

        Args:
            shards: the folder with what is saved in parts, if anything is.
        """
        if state.get("format") != FORMAT:
            raise RunError(
                f"the checkpoint has format {state.get('format')}, this version of nearfar goes on from {FORMAT}: "
                "use the version that began the run (environment.json names it)"
            )
        self.embedder.load_state_dict(state["embedder"])
        load_plain_loss_state(self.loss, state["loss"])
        self.done = state["step"]
        self._resumed, self._resumed_shards = state, shards

    def not_finite(self, what: str, step: int) -> RunError:
        """What to say when numbers have gone."""
        return RunError(
            f"{what} (step {step}). Start again more carefully: a lower --lr (it is {self.config.optimiser.lr:g}), "
            "--optimiser.clip_norm 1, --schedule.warmup_steps 100, --precision 32-true. nearfar doctor shows whether "
            "the batches are sound"
        )


def make_optimisation(config: TrainConfig, embedder: Embedder, loss: nn.Module, total_steps: int) -> tuple[Any, Any]:
    """The optimiser and the schedule of a resolved configuration."""
    own, planned = config.optimiser, config.schedule
    assert own.lr is not None
    rates = Rates(own.lr, own.trunk, own.head, own.proxies, own.classes, own.scale, own.boundary)
    warmup = planned.warmup_steps or 0
    groups = parameter_groups(embedder, loss, rates, own.weight_decay, decay_all=own.decay_all)
    optimiser = make_optimiser(own.name, groups, momentum=own.momentum, eps=own.eps)
    if warmup >= total_steps:
        raise ConfigError(f"schedule.warmup_steps={warmup} must be fewer than all {total_steps} steps")
    if any(not 0 < milestone < 1 for milestone in planned.milestones):
        raise ConfigError(f"schedule.milestones are fractions of all steps, between 0 and 1, not {planned.milestones}")
    schedule = make_schedule(
        optimiser,
        planned.kind,
        warmup_steps=warmup,
        total_steps=total_steps,
        milestones=[round(milestone * total_steps) for milestone in planned.milestones],
        gamma=planned.gamma,
    )
    return optimiser, schedule


def check_chunks(config: TrainConfig) -> None:
    """Refuse what does not go with GradCache, or with a part of the batch."""
    name = "select" if config.select is not None else "chunk"
    if config.chunk is None and config.select is None:
        return
    if config.model.freeze:
        raise ConfigError(f"--freeze trains a head on cached features, which fit into memory: leave {name} out")
    if config.devices * config.nodes > 1:
        raise ConfigError(f"{name} goes with one device: with several, raise devices instead")
    if config.precision == "16-mixed":
        raise ConfigError(f"{name} goes with precision 32-true and bf16-mixed, whose gradients need no scaling")
    if config.select is not None:
        check_keep(config.select_keep)


def _seed_step(seed: int, step: int, rank: int, device: torch.device) -> None:
    own = (seed * 1_000_003 + step + 1) * 1024 + rank
    if device.type == "cpu":
        torch.default_generator.manual_seed(own % 2**63)
    else:  # this keeps a stack trace for every kind of device that is not in use: 2 ms, and memory that grows
        torch.manual_seed(own % 2**63)
    random.seed(own)
    np.random.seed(own % 2**32)
