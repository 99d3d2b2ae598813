"""Losses that may own class vectors: how these begin, how classes are added, which class a sample is most like.

Shapes: N samples, C classes of K vectors, D dimensions.
"""

import math
from dataclasses import KW_ONLY
from typing import Any, Self

import torch
from torch import Tensor, nn

from nearfar.errors import InputError, StateError
from nearfar.losses.engine.pools import Nearest
from nearfar.losses.engine.spec import LossSpec, StripSpec
from nearfar.losses.engine.vectors import unit, wide
from nearfar.losses.sums import Summand

BY_CLASS = ("weight", "bias", "centers", "margin", "m", "beta")  # what may have rows, or numbers, by class


class WithClasses(Summand, common=True):
    """A loss that may own class vectors, with what belongs to the classes besides: biases, margins, a scale.

    Args:
        sharded: leave the class weights without values, for more classes than fit into one process;
            `nearfar.losses.distributed.distribute` then draws every rank's part of them.
    """

    _: KW_ONLY
    sharded: bool = False

    used = (*Summand.used, "num_classes", "extend_classes", "class_vectors", "logits", "predict", "reset_parameters")
    class_level = False  # whether samples are compared with vectors of the classes, and not with each other
    weighted = False  # whether it owns these vectors as `weight`; faster to read than the parameter
    vectors_per_class = 1

    def create_state(self) -> None:
        self._unset = False  # whether the class vectors may be without values, after `to_empty`
        self.weight: nn.Parameter | None
        self.bias: nn.Parameter | None
        self.logit_scale: nn.Parameter | None  # the logarithm of a learned scale
        for name in ("weight", "bias", "logit_scale"):
            self.register_parameter(name, None)

    def spec(self) -> LossSpec | StripSpec:
        """The setting of the formula that this loss is. A field of a map may be a tensor: a number that all rows share,
        or one of every class (C,). It is differentiated, too.
        """
        raise TypeError(f"{type(self).__name__} does not say which formula it is: define spec()")

    def prepare(self, embeddings: Tensor) -> Tensor:
        """Transform the embeddings before they are compared; differentiable."""
        return embeddings

    def add_classes(
        self, num_classes: int | None, embedding_size: int | None, *, bias: bool = False, vectors_per_class: int = 1
    ) -> None:
        """Own vectors for every class, drawn from He's normal distribution (fan-out), and perhaps biases of zero."""
        if self.weight is not None:
            raise InputError(
                f"{type(self).__name__} has vectors of {self.num_classes} classes: extend_classes(n) adds n to them"
            )
        if num_classes is None or embedding_size is None:
            raise InputError("the class-level form needs both num_classes and embedding_size")
        if num_classes < 1 or embedding_size < 1:
            raise InputError(f"num_classes and embedding_size must be positive, not {num_classes} and {embedding_size}")
        self.weighted = self.class_level = True
        self.vectors_per_class = vectors_per_class
        device = torch.device("meta") if self.sharded else None
        self.weight = nn.Parameter(torch.randn(num_classes * vectors_per_class, embedding_size, device=device))
        self.weight.data *= self.initial_scale
        if bias:
            self.bias = nn.Parameter(torch.zeros(num_classes, device=device))
        for setting in self.settings.values():  # a number given as a tensor is one of every class
            if setting.attribute and isinstance(value := getattr(self, setting.name), Tensor):
                self.number_by_class(setting.name, value, num_classes)

    def number_by_class(self, name: str, value: float | Tensor, num_classes: int | None) -> None:
        """Keep a number, or one of every class (C,): a buffer, or a parameter if it is given as one."""
        if isinstance(value, Tensor) and (value.shape != (num_classes,) or not value.is_floating_point()):
            raise InputError(
                f"{name} by class must be a floating-point tensor of shape (num_classes,), "
                f"not {value.dtype} {tuple(value.shape)} for num_classes={num_classes}"
            )
        if isinstance(value, Tensor) and not isinstance(value, nn.Parameter):
            vars(self).pop(name, None)
            self.register_buffer(name, value.clone())
        else:
            setattr(self, name, value)

    @property
    def initial_scale(self) -> float:
        """The standard deviation of class weights when they are drawn."""
        return float((2 / max(1, self.num_classes * self.vectors_per_class)) ** 0.5)

    @property
    def class_table(self) -> Tensor | None:
        """The tensor that has the class vectors, those of a class one after the other."""
        return self.weight

    @property
    def num_classes(self) -> int:
        """The number of classes that the loss has vectors of; `extend_classes` adds some."""
        table = self.class_table
        return 0 if table is None else table.numel() // (table.shape[-1] * self.vectors_per_class)

    def extend_classes(self, number: int, optimizer: torch.optim.Optimizer | None = None) -> None:
        """Add classes, with the ids that follow, and keep those that the loss has.

        New vectors are random, of the size of the others; numbers by class begin at the mean of the others. Wrap the
        loss in DistributedDataParallel again.

        Args:
            optimizer: one that trains the loss already: its state (as of momentum) is extended, too. If it is left out,
                the next step of an optimiser with a state raises an error.
        """
        if isinstance(number, bool) or not isinstance(number, int) or number < 1:
            raise InputError(f"extend_classes adds a positive number of classes, not {number!r}")
        named = {name: getattr(self, name, None) for name in BY_CLASS}
        tables = {name: table for name, table in named.items() if isinstance(table, Tensor) and table.ndim}
        if not tables:
            raise InputError(f"{type(self).__name__} has no classes: make it with num_classes")
        if optimizer is not None:
            held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
            for name, table in tables.items():
                if table.requires_grad and id(table) not in held:
                    raise InputError(f"the optimizer does not have the loss's {name}: give it loss.parameters()")
        for name, table in tables.items():
            rows = number * (self.vectors_per_class if name == "weight" else 1)
            grown = torch.cat([_whole(table).detach(), _more(table.detach(), rows)])
            if isinstance(table, nn.Parameter):
                _grow(table, grown, {} if optimizer is None else optimizer.state.get(table, {}))
            else:
                setattr(self, name, grown)

    def reset_parameters(self) -> None:
        """Give parameters and buffers the values that a loss has when it is made, such as after `to_empty`."""
        changed = ("num_classes",) if self.num_classes else ()
        arguments = {  # numbers by class stay as they are
            name: getattr(self, name) if name in changed or (isinstance(value, Tensor) and value.ndim) else value
            for name, value in self._arguments.items()
        }
        tensors = [tensor for tensor in self.state_dict().values() if tensor.is_floating_point()]
        if tensors:
            with torch.device(tensors[0].device):
                again = type(self)(**arguments | {"sharded": False}).to(tensors[0].dtype)
            self.load_state_dict(again.state_dict())

    @torch.no_grad()
    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        table = self.class_table
        was_meta = table is not None and table.is_meta
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if was_meta and (table := self.class_table) is not None and not table.is_meta:
            table.fill_(torch.nan)  # instead of what the memory held, so that it is noticed
            self._unset = True
        return self

    def check_values(self) -> None:
        """Raise `StateError` if the class vectors have no values."""
        table, kind = self.class_table, type(self).__name__
        if table is None or not (table.is_meta or self._unset):
            return
        if not table.is_meta and not bool(table[0].isnan().all()):
            self._unset = False
            return
        if self.sharded:
            raise StateError(
                f"{kind} was made with sharded=True, and its class weights have no values yet: "
                "call nearfar.losses.distributed.distribute(loss) first"
            )
        raise StateError(
            f"the class vectors of {kind} have no values (device meta): call loss.to_empty(device=...), and then "
            "loss.reset_parameters() or loss.load_state_dict(...)"
        )

    def class_vectors(self) -> Tensor:
        """The vectors of the classes (C, D), or (C, K, D) if each has several; of length 1 where cosines are compared.

        They are differentiable, and at least float32.
        """
        if self.class_table is None:
            raise InputError(
                f"{type(self).__name__} has no class vectors: it compares samples with each other. To name the "
                "class of a sample, search its nearest neighbours among samples whose class is known"
            )
        table, spec = wide(_whole(self.class_table)), self.spec() if self.weighted else None
        if spec is not None and spec.normalize[1 if spec.anchors == "samples" else 0]:
            table = unit(table)
        return table if self.vectors_per_class == 1 else table.view(self.num_classes, self.vectors_per_class, -1)

    def logits(self, embeddings: Tensor) -> Tensor:
        """The logits (N, C) of samples (N, D), differentiable, without margins: the loss's scale times the similarity
        to every class, with the bias. Of several vectors of a class the nearest counts, or the mean that the loss has.
        """
        vectors, spec = self.class_vectors(), self.spec()
        x = wide(self.prepare(embeddings))
        x = unit(x) if spec.normalize[0 if spec.anchors == "samples" else 1] else x
        dtype = torch.promote_types(x.dtype, vectors.dtype)
        s = x.to(dtype) @ vectors.reshape(-1, vectors.shape[-1]).to(dtype).t()
        if self.vectors_per_class > 1:
            pool = getattr(spec, "pool", None) or Nearest(self.vectors_per_class)
            s = pool.value(s.view(len(s), self.num_classes, -1).movedim(2, 0))
        s = s if self.bias is None else s + self.bias
        negative = getattr(spec, "negative", None)
        scale: Tensor | float = getattr(negative, "scale", getattr(negative, "gamma", 1.0))
        return s * scale

    @torch.no_grad()
    def predict(self, embeddings: Tensor) -> Tensor:
        """The most likely class (N,) of samples (N, D)."""
        return self.logits(embeddings).argmax(1)

    def learn_scale(self, scale: float) -> None:
        """Learn a scale of the similarities, which stays positive, as the parameter `logit_scale` = log(scale). The
        setting `scale`, or `temperature` = 1/scale, is then its value, also when it is assigned.
        """
        self._learned = "temperature" if vars(self).pop("temperature", None) is not None else "scale"
        vars(self).pop(self._learned, None)
        self.logit_scale = nn.Parameter(torch.tensor(math.log(scale)))

    def scales(self, scale: float) -> tuple[Any, Any]:
        """The learned scale, or else this one, and its negative: for linear maps of negative and positive pairs."""
        current = scale if self.logit_scale is None else self.logit_scale.exp()
        return current, -current

    def __getattr__(self, name: str) -> Any:
        if name in ("scale", "temperature") and name == vars(self).get("_learned"):
            scale = self.scales(1.0)[0].detach()
            return scale if name == "scale" else 1 / scale
        return super().__getattr__(name)

    def __setattr__(self, name: str, value: Tensor | nn.Module) -> None:
        new: Any = value
        if name == vars(self).get("_learned"):
            scale = self.settings[name].checked(new)
            name, new = "logit_scale", math.log(scale if name == "scale" else 1 / scale)
        super().__setattr__(name, new)


def _whole(table: Tensor) -> Tensor:
    """The table, if this process has the vectors of all classes; otherwise raise `StateError`."""
    if hasattr(table, "to_local"):
        raise StateError(
            "the class vectors are sharded: load full_state(loss), from nearfar.losses.distributed, into a plain loss"
        )
    return table


def _more(table: Tensor, rows: int) -> Tensor:
    """Random vectors as long as those of the table, on average; or numbers that are the mean of its numbers."""
    if table.ndim == 1:
        return table.mean().expand(rows)
    size = torch.linalg.vector_norm(table, dtype=torch.float64) / table.numel() ** 0.5
    return table.new_empty(rows, *table.shape[1:]).normal_().mul_(size)


@torch.no_grad()
def _grow(parameter: nn.Parameter, grown: Tensor, state: dict[str, Any]) -> None:
    """Give the parameter, which stays the one that optimisers have, more rows; and its state zeros for these."""
    before = len(parameter)
    # While a graph is alive, torch remembers the old shape for its gradients. A change of type makes it forget.
    parameter.data = parameter.data.to(torch.float16 if parameter.dtype != torch.float16 else torch.float32)
    parameter.data, parameter.grad = grown, None
    for name, value in state.items():
        if isinstance(value, Tensor) and value.ndim and len(value) == before:
            state[name] = torch.cat([value, value.new_zeros(len(grown) - before, *value.shape[1:])])
