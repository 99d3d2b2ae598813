"""Checkpoints of sharded tensors, saved by any number of processes and loaded by any other number.

    shards = {"loss.weight": Shard(local, (classes, dimension), offset), ...}
    save_shards(folder, shards)          every process writes its own rows
    load_shards(folder, shards)          every process reads its present rows

The files have the format of `torch.distributed.checkpoint`, which includes a pickled index: load only files you trust.
"""

import contextlib
import os
import shutil
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, Metadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from nearfar.errors import FileError, InputError


@dataclass(frozen=True)
class Shard:
    """Consecutive rows of a tensor of the given `shape`: `local`, which begins at row `offset`.

    It implements the protocol of torch.distributed.checkpoint. Unlike torch's sharded tensors, it keeps the rows of a
    class together, and shards may have any size or be empty.
    """

    local: Tensor
    shape: tuple[int, ...]
    offset: int

    def __post_init__(self) -> None:
        rows = len(self.local)
        if self.local.shape[1:] != self.shape[1:] or not 0 <= self.offset <= self.offset + rows <= self.shape[0]:
            raise ValueError(f"{tuple(self.local.shape)} from row {self.offset} does not fit into {self.shape}")

    def size(self) -> torch.Size:
        """The size of the whole tensor."""
        return torch.Size(self.shape)

    def _chunks(self) -> list[ChunkStorageMetadata]:
        if not self.local.numel():
            return []
        offsets = torch.Size([self.offset, *(0 for _ in self.shape[1:])])
        return [ChunkStorageMetadata(offsets, self.local.shape)]

    def __create_write_items__(self, name: str, shard: "Shard") -> list[WriteItem]:
        properties = TensorProperties.create_from_tensor(self.local)
        return [
            WriteItem(
                MetadataIndex(name, chunk.offsets),
                WriteItemType.SHARD,
                tensor_data=TensorWriteData(chunk, properties, self.size()),
            )
            for chunk in self._chunks()
        ]

    def __create_chunk_list__(self) -> list[ChunkStorageMetadata]:
        return self._chunks()


class _Save(DefaultSavePlanner):
    def lookup_object(self, index: MetadataIndex) -> Any:
        return self.state_dict[index.fqn].local.detach()


class _Load(DefaultLoadPlanner):
    def __init__(self) -> None:
        super().__init__(flatten_state_dict=False)

    def set_up_planner(
        self, state_dict: dict[str, Any], metadata: Metadata | None = None, is_coordinator: bool = False
    ) -> None:
        """Set the attributes without torch's preparations, which would allocate tensors and mistake shards for data."""
        self.original_state_dict = self.state_dict = state_dict
        self.metadata, self.is_coordinator = metadata, is_coordinator

    def lookup_tensor(self, index: MetadataIndex) -> Tensor:
        local: Tensor = self.state_dict[index.fqn].local.detach()
        return local


def save_shards(
    folder: str | os.PathLike[str], shards: Mapping[str, Shard], group: distributed.ProcessGroup | None = None
) -> None:
    """Write the shards of all processes (of a group). Every process must call it with the same names."""
    path = Path(folder)
    if distributed.is_initialized():
        if distributed.get_rank(group) == 0:
            _remove(path)
        distributed.barrier(group)
    else:
        _remove(path)
    with _quietly():
        single = not distributed.is_initialized()
        save(dict(shards), checkpoint_id=path, planner=_Save(), process_group=group, no_dist=single)


def load_shards(
    folder: str | os.PathLike[str], shards: Mapping[str, Shard], group: distributed.ProcessGroup | None = None
) -> None:
    """Read the shards of all processes in place. Every process must call it."""
    saved = _saved(folder)
    if saved.keys() != shards.keys():
        different = sorted(saved.keys() ^ shards.keys())
        raise InputError(f"{folder} belongs to another model: only one of the two has {different[0]}")
    for name, shard in shards.items():
        if saved[name].size != shard.size():
            raise InputError(
                f"{folder} belongs to another model: {name} has shape {tuple(saved[name].size)} in it, "
                f"{shard.shape} in this one"
            )
    with _quietly():
        single = not distributed.is_initialized()
        load(dict(shards), checkpoint_id=Path(folder), planner=_Load(), process_group=group, no_dist=single)


def whole(folder: str | os.PathLike[str]) -> dict[str, Tensor]:
    """Load every tensor of a checkpoint whole in one process, to get plain class weights."""
    tensors = {name: torch.empty(meta.size, dtype=meta.properties.dtype) for name, meta in _saved(folder).items()}
    shards = {name: Shard(tensor, tuple(tensor.shape), 0) for name, tensor in tensors.items()}
    with _quietly():
        load(dict(shards), checkpoint_id=Path(folder), planner=_Load(), no_dist=True)
    return tensors


def _saved(folder: str | os.PathLike[str]) -> dict[str, Any]:
    try:
        return dict(FileSystemReader(Path(folder)).read_metadata().state_dict_metadata)
    except OSError:
        raise
    except Exception as error:  # damaged files can raise anything
        raise InputError(
            f"{folder} is damaged ({type(error).__name__}): remove {Path(folder).parent}, and the run starts again"
        ) from error


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Suppress torch's warning about a single process, and raise its failures as errors for users."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable or uninitialized")
        try:
            yield
        except CheckpointException as failed:
            first = next(iter(failed.failures.values()))[0]
            raise FileError(f"the shards of a checkpoint could not be written or read: {first}") from failed


def _remove(path: Path) -> None:
    """Remove what a killed process left."""
    if path.exists():
        shutil.rmtree(path)
