"""Parameter groups, optimisers, schedules, gradient clipping and averaged weights."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer, RMSprop
from torch.optim.lr_scheduler import LambdaLR

from nearfar.errors import InputError
from nearfar.foundation.suggestions import suggestion
from nearfar.losses import Loss
from nearfar.losses.distributed import is_sharded
from nearfar.models import Embedder
from nearfar.training.class_shards import local_rows
from nearfar.training.world import World, total_norm

OptimiserName = Literal["adamw", "adam", "sgd", "rmsprop"]
ScheduleKind = Literal["constant", "cosine", "step"]
NO_DECAY = "/no-decay"
KINDS = {"classes": "proxies", "scale": "scale", "boundary": "boundary"}  # kinds of loss parameters, and their groups
PROXIES = 100.0  # default rate of class vectors, as a multiple of the base rate


@dataclass(frozen=True)
class Rates:
    """Learning rates: a base rate and its multiples.

    Args:
        base: the base rate.
        trunk, head: multiples of the base rate.
        proxies: the multiple for all parameters of the loss. Proxy-Anchor and SoftTriple use 100 on pretrained networks
            with Adam, whose steps do not grow with the gradient: random vectors have far to move. Papers on faces use 1
            with sgd.
        classes, scale, boundary: absolute rates of class vectors, of scales and temperatures, and of boundaries, used
            unless `proxies` is set.
    """

    base: float = 1e-4
    trunk: float = 1.0
    head: float = 1.0
    proxies: float | None = None
    classes: float | None = None
    scale: float | None = None
    boundary: float | None = None

    def __post_init__(self) -> None:
        for rate in fields(self):
            value, name = getattr(self, rate.name), rate.name
            if value is not None and not 0 <= value < math.inf:
                raise InputError(f"the rate {name}={value} must be a finite number, not negative")

    def of(self, kind: str) -> float:
        """The rate of a kind of loss parameters."""
        absolute: float | None = getattr(self, kind)
        if self.proxies is not None or absolute is None:
            return self.base * (PROXIES if self.proxies is None else self.proxies)
        return absolute


def parameter_groups(
    embedder: Embedder, loss: nn.Module, rates: Rates, weight_decay: float = 0.0, *, decay_all: bool = False
) -> list[dict[str, Any]]:
    """Parameter groups for an optimiser, each with its rate: "trunk", "head" and, for the loss's parameters, "proxies"
    (class vectors), "scale" and "boundary".

    Parameters with at most one dimension (biases, scales of normalisations, boundaries, temperatures) are not decayed
    unless `decay_all`; their groups are "trunk/no-decay" and so on. A trunk that is frozen only during warm-up
    (`start_epoch`) is included from the beginning; one that is frozen for the whole training is left out.
    """
    trunk = [] if embedder.settings.freeze_trunk else embedder.trunk_parameters()
    learned = list(_learned(loss))
    parts: list[tuple[str, Iterable[nn.Parameter], float]] = [
        ("trunk", trunk, rates.base * rates.trunk),
        ("head", embedder.head_parameters(), rates.base * rates.head),
        *((group, [p for p, p_kind in learned if p_kind == kind], rates.of(kind)) for kind, group in KINDS.items()),
    ]
    groups = []
    for name, parameters, rate in parts:
        all_members = list(parameters)
        for suffix, decay, members in (
            ("", weight_decay, [p for p in all_members if decay_all or p.ndim > 1]),
            (NO_DECAY, 0.0, [p for p in all_members if not decay_all and p.ndim <= 1]),
        ):
            if members:
                groups.append({"name": name + suffix, "params": members, "lr": rate, "weight_decay": decay})
    if not groups:
        raise InputError("there is nothing to train: the trunk is frozen, and neither head nor loss has parameters")
    return groups


def _learned(loss: nn.Module) -> Iterator[tuple[nn.Parameter, str]]:
    """The parameters of a loss with their kinds; undeclared matrices count as class vectors."""
    seen: set[nn.Parameter] = set()
    for part in loss.modules():
        kinds = part.learned if isinstance(part, Loss) else {}
        for name, parameter in part.named_parameters(recurse=False):
            if parameter.requires_grad and parameter not in seen:
                seen.add(parameter)
                yield parameter, kinds.get(name, "classes" if parameter.ndim > 1 else "scale")


def make_optimiser(
    name: OptimiserName,
    groups: Sequence[dict[str, Any]],
    *,
    momentum: float = 0.9,
    eps: float | None = None,
) -> Optimizer:
    """Build the optimiser of these groups.

    Args:
        name: "adamw" (decoupled weight decay), "adam" (decay added to the gradient), "sgd" or "rmsprop".
        groups: groups with rates and decays, as `parameter_groups` returns them.
        momentum: momentum of sgd and rmsprop; adam and adamw use β = (0.9, 0.999).
        eps: the term that adam, adamw and rmsprop add to the root of the mean squared gradient, by default 1e-8. With
            large values, such as 1.0 in Proxy-NCA++'s code, they resemble sgd.
    """
    if eps is not None and name == "sgd":
        raise InputError("sgd has no eps: it applies to adam, adamw and rmsprop")
    options: dict[str, Any] = {} if eps is None else {"eps": eps}
    if name in ("sgd", "rmsprop"):
        options["momentum"] = momentum
    kind = _chosen("optimiser", name, {"adamw": AdamW, "adam": Adam, "sgd": SGD, "rmsprop": RMSprop})
    try:
        made: Optimizer = kind(groups, **options)
    except ValueError as error:  # torch rejects a value
        raise InputError(f"{name}: {error}") from error
    return made


def make_schedule(
    optimiser: Optimizer,
    kind: ScheduleKind = "constant",
    *,
    warmup_steps: int = 0,
    total_steps: int | None = None,
    milestones: Sequence[int] = (),
    gamma: float = 0.1,
) -> LambdaLR:
    """Build the schedule of the rates; call its `step()` after every step of the optimiser.

    The factor of all rates at step t = 0, 1, ...:

        constant   1
        cosine     (1 + cos(π (t - warmup) / (total - warmup))) / 2, from 1 down to 0 at the end
        step       gamma^(number of milestones ≤ t)

    In the first `warmup_steps`, the factor is multiplied by (t + 1) / (warmup_steps + 1); the cosine begins after them.
    `state_dict` contains only the position: a resumed schedule may have another end.

    Args:
        total_steps: number of training steps, for the cosine.
        milestones, gamma: steps and factor of the step schedule.
    """
    if warmup_steps < 0:
        raise InputError(f"warmup_steps={warmup_steps} must not be negative")
    if kind == "cosine" and (total_steps is None or total_steps <= warmup_steps):
        raise InputError(f"a cosine needs an end: total_steps={total_steps} must exceed warmup_steps={warmup_steps}")

    def constant(step: int) -> float:
        return 1.0

    def cosine(step: int) -> float:
        assert total_steps is not None
        done = min(max(step - warmup_steps, 0) / (total_steps - warmup_steps), 1.0)
        return (1 + math.cos(math.pi * done)) / 2

    def stepwise(step: int) -> float:
        return float(gamma ** sum(step >= milestone for milestone in milestones))

    falling = _chosen("schedule", kind, {"constant": constant, "cosine": cosine, "step": stepwise})
    return LambdaLR(optimiser, lambda step: falling(step) * min(1.0, (step + 1) / (warmup_steps + 1)))


def clip(
    parameters: Iterable[nn.Parameter],
    by_value: float | None = None,
    by_norm: float | None = None,
    world: World | None = None,
) -> Tensor | None:
    """Clip the gradients in place: every entry to ± by_value, then the whole gradient to the norm by_norm.

    Args:
        world: the processes over which some parameters are sharded; the norm includes all shards.

    Returns:
        The norm before clipping to by_norm, for logs; None without by_norm.
    """
    for name, limit in (("by_value", by_value), ("by_norm", by_norm)):
        if limit is not None and not limit > 0:
            raise InputError(f"{name}={limit} must be positive, or None for no clipping")
    with_gradients = [p for p in parameters if p.grad is not None]
    sharded = [p for p in with_gradients if is_sharded(p)]
    if not sharded:
        if by_value is not None:
            nn.utils.clip_grad_value_(with_gradients, by_value)
        return None if by_norm is None else torch.nn.utils.clip_grad_norm_(with_gradients, by_norm)
    local = [local_rows(p.grad) for p in sharded if p.grad is not None]
    shared = [p.grad for p in with_gradients if p.grad is not None and not is_sharded(p)]
    if by_value is not None:
        for gradient in (*local, *shared):
            gradient.clamp_(-by_value, by_value)
    if by_norm is None:
        return None
    norm = total_norm(local, shared, world or World())
    for gradient in (*local, *shared):
        gradient.mul_((by_norm / (norm + 1e-6)).clamp(max=1.0))
    return norm


class Ema:
    """An exponential moving average of a module's parameters and buffers, which often evaluates better than they do.

        average <- average + (1 - d) (weights - average),   d = min(decay, (1 + t) / (10 + t)) at update t = 1, 2, ...

    The first updates weigh more, so that the initial values are soon forgotten even in short trainings. Integer tensors
    (counters) are copied.

    Args:
        module: the module to average; its training is not affected.
        decay: the share of the average that each update keeps.

    Example:
        >>> model = nn.Linear(2, 2)
        >>> ema = Ema(model, decay=0.999)
        >>> ema.update()                        # after every step of the optimiser
        >>> with ema.swapped():                 # the model has the average here
        ...     output = model(torch.ones(1, 2))
    """

    def __init__(self, module: nn.Module, decay: float = 0.999):
        if not 0 <= decay < 1:
            raise InputError(f"decay={decay} must be at least 0 and below 1, such as 0.999")
        self.decay = decay
        self.updates = 0
        self._swapped = False
        self._module = module
        self._average = {name: value.detach().clone() for name, value in module.state_dict().items()}

    @torch.no_grad()
    def update(self) -> None:
        """Update the average with the present weights."""
        if self._swapped:
            raise RuntimeError(
                "the model holds the average now, which must not be averaged again: leave swapped() first"
            )
        self.updates += 1
        kept = min(self.decay, (1 + self.updates) / (10 + self.updates))
        for name, live in self._module.state_dict().items():
            average = self._average[name]
            if average.is_floating_point():
                average.lerp_(live, 1 - kept)
            else:
                average.copy_(live)

    @contextmanager
    def swapped(self) -> Iterator[None]:
        """Context in which the module holds the average instead of its own weights."""
        if self._swapped:
            raise RuntimeError("the model already holds the average: swapped() does not nest")
        self._exchange()
        self._swapped = True
        try:
            yield
        finally:
            self._exchange()
            self._swapped = False

    @torch.no_grad()
    def _exchange(self) -> None:
        for name, live in self._module.state_dict().items():  # shares its memory with the module
            weights = live.clone()
            live.copy_(self._average[name])
            self._average[name].copy_(weights)

    def state_dict(self) -> dict[str, int | dict[str, Tensor]]:
        """The average and its number of updates."""
        return {"updates": self.updates, "average": dict(self._average)}

    def load_state_dict(self, state: Mapping[str, int | dict[str, Tensor]]) -> None:
        """Restore the average."""
        average, updates = state["average"], state["updates"]
        assert isinstance(average, dict) and isinstance(updates, int)
        if average.keys() != self._average.keys():
            different = sorted(average.keys() ^ self._average.keys())
            raise InputError(f"the averaged weights belong to another model: only one of the two has {different[0]}")
        for name, value in average.items():
            if value.shape != self._average[name].shape:
                raise InputError(
                    f"the averaged weights belong to another model: {name} has shape {tuple(value.shape)} in them, "
                    f"{tuple(self._average[name].shape)} in this one"
                )
            self._average[name].copy_(value)
        self.updates = updates


def _chosen(what: str, name: str, known: Mapping[str, Callable[..., Any]]) -> Callable[..., Any]:
    if name not in known:
        raise InputError(f"there is no {what} {name!r}: {suggestion(name, known)}")
    return known[name]
