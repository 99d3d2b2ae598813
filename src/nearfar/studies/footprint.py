"""The memory of a step, counted tensor by tensor: the same on every machine, independent of the allocator."""

import weakref
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Footprint(TorchDispatchMode):
    """Context that records the peak bytes of the storages created in it.

    >>> import torch
    >>> with Footprint() as footprint:
    ...     for _ in range(5):
    ...         doubled = 2 * torch.zeros(1000)
    >>> footprint.most  # a result lives until the next one is created
    12000
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.bytes = self.most = 0
        self._known: weakref.WeakSet[Any] = weakref.WeakSet()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = function(*args, **(kwargs or {}))
        existing = {t.untyped_storage().data_ptr() for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)}
        for tensor in tree_leaves(made):
            if not isinstance(tensor, Tensor):
                continue
            storage = tensor.untyped_storage()
            if storage in self._known or storage.data_ptr() in existing:  # views and in-place results
                continue
            self._known.add(storage)
            self.bytes += storage.nbytes()
            self.most = max(self.most, self.bytes)
            weakref.finalize(storage, self._freed, storage.nbytes())
        return made

    def _freed(self, size: int) -> None:
        self.bytes -= size
