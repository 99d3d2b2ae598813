"""What moves the weights: parameter groups with rates of their own, optimisers, schedules, clipping, averages."""

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
from nearfar.training.spread import rows_here
from nearfar.training.world import World, total_norm

OptimiserName = Literal["adamw", "adam", "sgd", "rmsprop"]
ScheduleKind = Literal["constant", "cosine", "step"]
NO_DECAY = "/no-decay"
KINDS = {"classes": "proxies", "scale": "scale", "boundary": "boundary"}  # of what a loss learns, and their groups
PROXIES = 100.0  # times the base, where no rate is given


@dataclass(frozen=True)
class Rates:
    """Learning rates: one, and what it is multiplied by.

    Args:
        base: the rate.
        trunk, head: multiples of it.
        proxies: the multiple for everything the loss learns. Proxy-Anchor and SoftTriple have 100 on pretrained
            networks, with Adam, whose steps do not grow with the gradient: vectors that start at random have far to
            go. Papers on faces have 1, with sgd.
        classes, scale, boundary: the rates themselves of class vectors, of scales and temperatures, and of boundaries,
            which count unless `proxies` is given.
    """

    base: float = 1e-4
    trunk: float = 1.0
    head: float = 1.0
    proxies: float | None = None
    classes: float | None = None
    scale: float | None = None
    boundary: float | None = None

    def __post_init__(self) -> None:
        for own in fields(self):
            value, name = getattr(self, own.name), own.name
            if value is not None and not 0 <= value < math.inf:
                raise InputError(f"the rate {name}={value} must be a number, not negative")

    def of(self, kind: str) -> float:
        """Of a kind of what the loss learns."""
        own: float | None = getattr(self, kind)
        if self.proxies is not None or own is None:
            return self.base * (PROXIES if self.proxies is None else self.proxies)
        return own


def parameter_groups(
    embedder: Embedder, loss: nn.Module, rates: Rates, weight_decay: float = 0.0, *, decay_all: bool = False
) -> list[dict[str, Any]]:
    """What an optimiser takes: groups named "trunk" and "head", and of what the loss learns "proxies" (class vectors),
    "scale" and "boundary", each with its rate.

    Parameters of one dimension or none (biases, scales of normalisations, boundaries, temperatures) are not decayed,
    unless `decay_all`; they are in groups of their own, "trunk/no-decay" and so on. A trunk that is only warmed up to
    (`start_epoch`) is there from the beginning, and moves once it has gradients; one that is frozen for good is left
    out.
    """
    trunk = [] if embedder.settings.freeze_trunk else embedder.trunk_parameters()
    learned = list(_learned(loss))
    parts: list[tuple[str, Iterable[nn.Parameter], float]] = [
        ("trunk", trunk, rates.base * rates.trunk),
        ("head", embedder.head_parameters(), rates.base * rates.head),
        *((group, [p for p, own in learned if own == kind], rates.of(kind)) for kind, group in KINDS.items()),
    ]
    groups = []
    for name, parameters, rate in parts:
        own = list(parameters)
        for suffix, decay, members in (
            ("", weight_decay, [p for p in own if decay_all or p.ndim > 1]),
            (NO_DECAY, 0.0, [p for p in own if not decay_all and p.ndim <= 1]),
        ):
            if members:
                groups.append({"name": name + suffix, "params": members, "lr": rate, "weight_decay": decay})
    if not groups:
        raise InputError("there is nothing to train: the trunk is frozen, and neither head nor loss has parameters")
    return groups


def _learned(loss: nn.Module) -> Iterator[tuple[nn.Parameter, str]]:
    """What a loss learns, and of which kind it is; of what does not say so, vectors are class vectors."""
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
    """The optimiser of these groups.

    Args:
        name: "adamw" (decay apart from the gradient), "adam" (decay added to it), "sgd" or "rmsprop".
        groups: as `parameter_groups` gives them: each has its rate and decay.
        momentum: of sgd, and of rmsprop; the Adams have β = (0.9, 0.999).
        eps: what adam, adamw and rmsprop add to the root of the squared gradients' mean, 1e-8 unless given. With large
            values, as 1.0 in Proxy-NCA++'s code, they become like sgd.
    """
    if eps is not None and name == "sgd":
        raise InputError("sgd divides by nothing: eps goes with adam, adamw and rmsprop")
    options: dict[str, Any] = {} if eps is None else {"eps": eps}
    if name in ("sgd", "rmsprop"):
        options["momentum"] = momentum
    kind = _chosen("optimiser", name, {"adamw": AdamW, "adam": Adam, "sgd": SGD, "rmsprop": RMSprop})
    try:
        made: Optimizer = kind(groups, **options)
    except ValueError as error:  # of torch, about a number that cannot be
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
    """How the rates change; call `step()` after every step of the optimiser.

    The factor of all rates at step t = 0, 1, ...:

        constant   1
        cosine     (1 + cos(π (t - warmup) / (total - warmup))) / 2, from 1 down to 0 at the end
        step       gamma^(number of milestones ≤ t)

    and in the first `warmup_steps`, (t + 1) / (warmup_steps + 1) times the constant or the step one; the cosine begins
    after it. `state_dict` has where it is, and no more: one that goes on may have another end.

    Args:
        total_steps: of training, for the cosine.
        milestones, gamma: of step; the milestones are steps.
    """
    if warmup_steps < 0:
        raise InputError(f"warmup_steps={warmup_steps} must not be negative")
    if kind == "cosine" and (total_steps is None or total_steps <= warmup_steps):
        raise InputError(f"a cosine ends: total_steps={total_steps} must be more than warmup_steps={warmup_steps}")

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
    """Clip the gradients in place: every entry to ± by_value, then all together to a norm of by_norm.

    Args:
        world: the processes among which some parameters are cut; their norm is that of the whole.

    Returns:
        The norm before it was clipped to by_norm (what is worth logging); None without by_norm.
    """
    for name, limit in (("by_value", by_value), ("by_norm", by_norm)):
        if limit is not None and not limit > 0:
            raise InputError(f"{name}={limit} must be positive; None does not clip")
    with_gradients = [p for p in parameters if p.grad is not None]
    cut = [p for p in with_gradients if is_sharded(p)]
    if not cut:
        if by_value is not None:
            nn.utils.clip_grad_value_(with_gradients, by_value)
        return None if by_norm is None else torch.nn.utils.clip_grad_norm_(with_gradients, by_norm)
    own = [rows_here(p.grad) for p in cut if p.grad is not None]
    shared = [p.grad for p in with_gradients if p.grad is not None and not is_sharded(p)]
    if by_value is not None:
        for gradient in (*own, *shared):
            gradient.clamp_(-by_value, by_value)
    if by_norm is None:
        return None
    norm = total_norm(own, shared, world or World())
    for gradient in (*own, *shared):
        gradient.mul_((by_norm / (norm + 1e-6)).clamp(max=1.0))
    return norm


class Ema:
    """An exponential moving average of a module's parameters and buffers, which often scores better than they do.

        average <- average + (1 - d) (weights - average),   d = min(decay, (1 + t) / (10 + t)) at update t = 1, 2, ...

    The first updates count more, so that the start is soon forgotten, however short training is. What is not a floating
    number (counters) is taken as it is.

    Args:
        module: what is averaged; it goes on training as before.
        decay: how much of the average stays with every update.

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
        """Take in the weights as they are now."""
        if self._swapped:
            raise RuntimeError(
                "the model has the average now, which is not to be averaged again: leave swapped() first"
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
        """In this context, the module has the average; afterwards its own weights again, whatever happens."""
        if self._swapped:
            raise RuntimeError("the model has the average already: swapped() does not nest")
        self._exchange()
        self._swapped = True
        try:
            yield
        finally:
            self._exchange()
            self._swapped = False

    @torch.no_grad()
    def _exchange(self) -> None:
        for name, live in self._module.state_dict().items():  # which shares its memory with the module
            own = live.clone()
            live.copy_(self._average[name])
            self._average[name].copy_(own)

    def state_dict(self) -> dict[str, int | dict[str, Tensor]]:
        """The average and how many updates it has seen."""
        return {"updates": self.updates, "average": dict(self._average)}

    def load_state_dict(self, state: Mapping[str, int | dict[str, Tensor]]) -> None:
        """Go on from there."""
        average, updates = state["average"], state["updates"]
        assert isinstance(average, dict) and isinstance(updates, int)
        if average.keys() != self._average.keys():
            different = sorted(average.keys() ^ self._average.keys())
            raise InputError(f"the averaged weights are of another model: only one of the two has {different[0]}")
        for name, value in average.items():
            if value.shape != self._average[name].shape:
                raise InputError(
                    f"the averaged weights are of another model: {name} is {tuple(value.shape)} there, "
                    f"{tuple(self._average[name].shape)} here"
                )
            self._average[name].copy_(value)
        self.updates = updates


def _chosen(what: str, name: str, known: Mapping[str, Callable[..., Any]]) -> Callable[..., Any]:
    if name not in known:
        raise InputError(f"there is no {what} {name!r}: {suggestion(name, known)}")
    return known[name]
