"""`Learner`: one training step, called by Lightning. `recorder.py` handles what happens between steps."""

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
from nearfar.training.class_shards import local_rows
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
from nearfar.training.subset import SubsetStep, check_keep
from nearfar.training.world import World

FORMAT = 1  # version of the checkpoint state


@dataclass(frozen=True)
class Step:
    """The result of a step for observers; all tensors are detached."""

    loss: Tensor
    embeddings: Tensor
    labels: Tensor


class Observer(Protocol):
    """Receives every step, before it and after the update of the weights."""

    def before_step(self, learner: "Learner") -> None: ...

    def after_step(self, learner: "Learner", step: Step) -> None: ...


class Learner(LightningModule):
    """The state of training: embedder, loss, optimiser, schedule, averaged weights and step count.

    Random numbers in a step depend only on the seed and the step number, so that a resumed run draws the same ones.

    Args:
        config: the resolved configuration.
        total_steps: the step at which the schedule ends.
        observer: is notified of every step.
        world: the processes that train together; the loss is distributed over them.
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
        # DDP must not synchronise shards of class weights, nor the loss's buffers, which change alike in all processes.
        ignored = [name for name, parameter in loss.named_parameters() if is_sharded(parameter)]
        ignored += [name for name, _ in loss.named_buffers()]
        self._ddp_params_and_buffers_to_ignore = [f"loss.{name}" for name in ignored]
        self._lazy: LazyRows | None = None
        self.done = 0  # steps
        self.ema: Ema | None = None
        self._resumed: Mapping[str, Any] | None = None
        self._resumed_shards: Path | None = None
        self._last: Step | None = None
        self._whole_step: GradCache | SubsetStep | None = None  # does its own backward pass
        if config.select is not None:
            self._whole_step = SubsetStep(embedder, loss, config.select, config.select_keep, config.chunk)
        elif config.chunk is not None:
            self._whole_step = GradCache(embedder, loss, config.chunk)
        check_chunks(config)

    def configure_optimizers(self) -> Any:
        """Called by Lightning once the weights are on their device."""
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
        """Choose what this epoch trains; restart the optimiser when the warm-up ends, if configured."""
        self.embedder.start_epoch(epoch)
        if self.config.optimiser.restart and epoch >= self.config.model.warmup_epochs:
            moved = any(parameter in self.optimiser.state for parameter in self.embedder.trunk_parameters())
            if not moved:  # a run resumed in the middle of this epoch must not restart it again
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
            if self.world.size > 1:  # the loss draws the same numbers in all processes
                _seed_step(self.config.seed, self.done, 0, self.device)
            loss = self.loss(embeddings, batch.labels)
        if loss.device.type == "cpu" and not torch.isfinite(loss):  # on other devices this would synchronise
            raise self.not_finite("the loss is not a number", self.done + 1)
        self._last = Step(loss.detach(), embeddings.detach(), batch.labels)
        return loss

    def backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        """Do nothing if the step did its own backward pass."""
        if self._whole_step is None:
            super().backward(loss, *args, **kwargs)

    def optimizer_zero_grad(self, *args: Any, **kwargs: Any) -> None:
        """Keep the gradients of a step that did its own backward pass: Lightning calls this after it."""
        if self._whole_step is None:
            super().optimizer_zero_grad(*args, **kwargs)

    def configure_gradient_clipping(self, optimizer: Optimizer, *args: Any, **kwargs: Any) -> None:
        limits = self.config.optimiser
        if limits.clip_value is not None or limits.clip_norm is not None:
            clip(self.parameters(), limits.clip_value, limits.clip_norm, self.world)
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
        """Everything that later steps depend on, except the data and the `shards`."""
        local = [local_rows(p) if is_sharded(p) else p for p in self.parameters()]
        if self.world.any(not all(bool(torch.isfinite(parameter).all()) for parameter in local))[0]:
            raise self.not_finite("weights are no longer finite", self.done)
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
        """This process's shards of large class weights and of their optimiser state."""
        return table_shards(self.loss) | optimiser_shards(self.loss, self.optimiser)

    def resume(self, state: Mapping[str, Any], shards: Path | None = None) -> None:
        """Load a checkpoint before training; the optimiser's state is loaded once the optimiser exists.

        Args:
            shards: the folder of the checkpoint's shards, if any.
        """
        if state.get("format") != FORMAT:
            raise RunError(
                f"the checkpoint has format {state.get('format')}, but this version of nearfar resumes format {FORMAT}"
                ": use the version that started the run (environment.json names it)"
            )
        self.embedder.load_state_dict(state["embedder"])
        load_plain_loss_state(self.loss, state["loss"])
        self.done = state["step"]
        self._resumed, self._resumed_shards = state, shards

    def not_finite(self, what: str, step: int) -> RunError:
        """The error for values that are NaN or infinite."""
        return RunError(
            f"{what} (step {step}). Start again more carefully: a lower --lr (it is {self.config.optimiser.lr:g}), "
            "--optimiser.clip_norm 1, --schedule.warmup_steps 100, --precision 32-true. nearfar doctor shows whether "
            "the batches are sound"
        )


def make_optimisation(config: TrainConfig, embedder: Embedder, loss: nn.Module, total_steps: int) -> tuple[Any, Any]:
    """Build the optimiser and the schedule of a resolved configuration."""
    chosen, planned = config.optimiser, config.schedule
    assert chosen.lr is not None
    rates = Rates(chosen.lr, chosen.trunk, chosen.head, chosen.proxies, chosen.classes, chosen.scale, chosen.boundary)
    warmup = planned.warmup_steps or 0
    groups = parameter_groups(embedder, loss, rates, chosen.weight_decay, decay_all=chosen.decay_all)
    optimiser = make_optimiser(chosen.name, groups, momentum=chosen.momentum, eps=chosen.eps)
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
    """Reject options that do not work with GradCache or a subset of the batch."""
    name = "select" if config.select is not None else "chunk"
    if config.chunk is None and config.select is None:
        return
    if config.model.freeze:
        raise ConfigError(f"--freeze trains a head on cached features, which fit into memory: leave {name} out")
    if config.devices * config.nodes > 1:
        raise ConfigError(f"{name} works on one device only: leave it out, and use more devices instead")
    if config.precision == "16-mixed":
        raise ConfigError(f"{name} needs precision 32-true or bf16-mixed, whose gradients are not scaled")
    if config.select is not None:
        check_keep(config.select_keep)


def _seed_step(seed: int, step: int, rank: int, device: torch.device) -> None:
    step_seed = (seed * 1_000_003 + step + 1) * 1024 + rank
    if device.type == "cpu":
        torch.default_generator.manual_seed(step_seed % 2**63)
    else:  # on a CPU, this would keep a stack trace for every unused kind of device: 2 ms, and growing memory
        torch.manual_seed(step_seed % 2**63)
    random.seed(step_seed)
    np.random.seed(step_seed % 2**32)
