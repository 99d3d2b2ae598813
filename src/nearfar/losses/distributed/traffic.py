"""The number of bytes that a process sends to others."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

# By kind of message: the share of a call's bytes that each of N ranks sends.
SHARES: dict[str, Callable[[int], float]] = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "all_gather": lambda n: n - 1,
    "reduce_scatter": lambda n: (n - 1) / n,
    "all_to_all": lambda n: (n - 1) / n,
    "broadcast": lambda n: (n - 1) / n,
    "scatter": lambda n: (n - 1) / n,
    "gather": lambda n: (n - 1) / n,
    "send": lambda n: 1,
}
# torch's operators: the kind of message, and which argument holds the tensors that are sent.
OPERATORS = {
    "allreduce_": ("all_reduce", 0),
    "allgather_": ("all_gather", 1),
    "_allgather_base_": ("all_gather", 1),
    "reduce_scatter_": ("reduce_scatter", 1),
    "_reduce_scatter_base_": ("reduce_scatter", 1),
    "alltoall_": ("all_to_all", 1),
    "alltoall_base_": ("all_to_all", 1),
    "broadcast_": ("broadcast", 0),
    "scatter_": ("scatter", 1),
    "gather_": ("gather", 1),
    "send": ("send", 0),
    "all_reduce": ("all_reduce", 0),
    "all_gather_into_tensor": ("all_gather", 0),
    "reduce_scatter_tensor": ("reduce_scatter", 0),
    "all_to_all_single": ("all_to_all", 0),
    "broadcast": ("broadcast", 0),
}


@dataclass
class Traffic:
    """
    Attributes:
        by_kind: bytes sent by this rank, by the kind of message, in optimal rings: of S bytes on each of N ranks, an
            all-reduce sends 2 S (N - 1) / N, an all-gather S (N - 1), the others S (N - 1) / N.
        calls: how many messages of each kind.
    """

    by_kind: Counter[str] = field(default_factory=Counter)
    calls: Counter[str] = field(default_factory=Counter)

    @property
    def sent(self) -> int:
        """Bytes of all messages."""
        return self.by_kind.total()


@contextmanager
def count_traffic() -> Iterator[Traffic]:
    """Count the bytes that this process sends by torch.distributed's collectives, in forward and in backward.

    Example:
        >>> with count_traffic() as traffic:
        ...     pass  # loss(embeddings, labels).backward()
        >>> traffic.sent
        0
    """
    traffic = Traffic()
    with _Counting(traffic):
        yield traffic


class _Counting(TorchDispatchMode):
    """Intercepts every operator of torch, and so its collectives."""

    def __init__(self, traffic: Traffic):
        super().__init__()  # type: ignore[no-untyped-call]
        self.traffic = traffic

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func.namespace in ("c10d", "_c10d_functional"):
            kind, sent = OPERATORS.get(func._schema.name.partition("::")[2], (None, 0))
            if kind is not None:
                groups = [a for a in args if hasattr(a, "size") and hasattr(a, "rank")]
                size = int(groups[0].size()) if groups else dist.get_world_size()
                self.traffic.calls[kind] += 1
                self.traffic.by_kind[kind] += round(_bytes(args[sent]) * SHARES[kind](size))
        return func(*args, **(kwargs or {}))


def _bytes(tensors: Any) -> int:
    return tensors.nbytes if isinstance(tensors, Tensor) else sum(_bytes(part) for part in tensors)
