"""Checkpoints of tensors that no process has whole: saved by so many processes, loaded by any other number of them.

    shards = {"loss.weight": Shard(local, (classes, dimension), offset), ...}
    save_shards(folder, shards)          every process writes its own rows
    load_shards(folder, shards)          every process reads the rows that are its own now

The files are those of `torch.distributed.checkpoint`. They hold numbers in files beside a pickled index: load what you
trust.
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
    """Consecutive rows of a tensor: `local` are the rows from `offset` on of one of that `shape`.

    It speaks to torch.distributed.checkpoint as its own kinds of tensors do, which all cut by one rule: here, the rows
    of a class stay together, and parts may be of any size, or empty.
    """

    local: Tensor
    shape: tuple[int, ...]
    offset: int

    def __post_init__(self) -> None:
        rows = len(self.local)
        if self.local.shape[1:] != self.shape[1:] or not 0 <= self.offset <= self.offset + rows <= self.shape[0]:
            raise ValueError(f"{tuple(self.local.shape)} from row {self.offset} on is no part of {self.shape}")

    def size(self) -> torch.Size:
        """Of the whole."""
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
        """Torch's own would give values to tensors without, and takes what it does not know for data."""
        self.original_state_dict = self.state_dict = state_dict
        self.metadata, self.is_coordinator = metadata, is_coordinator

    def lookup_tensor(self, index: MetadataIndex) -> Tensor:
        local: Tensor = self.state_dict[index.fqn].local.detach()
        return local


def save_shards(
    folder: str | os.PathLike[str], shards: Mapping[str, Shard], group: distributed.ProcessGroup | None = None
) -> None:
    """Write the shards of all processes (of a group); every process calls it, with the same names."""
    path = Path(folder)
    if distributed.is_initialized():
        if distributed.get_rank(group) == 0:
            _remove(path)
        distributed.barrier(group)
    else:
        _remove(path)
    with _quietly():
        alone = not distributed.is_initialized()
        save(dict(shards), checkpoint_id=path, planner=_Save(), process_group=group, no_dist=alone)


def load_shards(
    folder: str | os.PathLike[str], shards: Mapping[str, Shard], group: distributed.ProcessGroup | None = None
) -> None:
    """Read into the shards of every process what these rows of the tensors were; every process calls it."""
    saved = _saved(folder)
    if saved.keys() != shards.keys():
        different = sorted(saved.keys() ^ shards.keys())
        raise InputError(f"{folder} is of another model: only one of the two has {different[0]}")
    for name, shard in shards.items():
        if saved[name].size != shard.size():
            raise InputError(
                f"{folder} is of another model: {name} is {tuple(saved[name].size)} there, {shard.shape} here"
            )
    with _quietly():
        alone = not distributed.is_initialized()
        load(dict(shards), checkpoint_id=Path(folder), planner=_Load(), process_group=group, no_dist=alone)


def whole(folder: str | os.PathLike[str]) -> dict[str, Tensor]:
    """Every tensor of a checkpoint, whole, in one process: for those who want plain class weights."""
    tensors = {name: torch.empty(own.size, dtype=own.properties.dtype) for name, own in _saved(folder).items()}
    shards = {name: Shard(tensor, tuple(tensor.shape), 0) for name, tensor in tensors.items()}
    with _quietly():
        load(dict(shards), checkpoint_id=Path(folder), planner=_Load(), no_dist=True)
    return tensors


def _saved(folder: str | os.PathLike[str]) -> dict[str, Any]:
    try:
        return dict(FileSystemReader(Path(folder)).read_metadata().state_dict_metadata)
    except OSError:
        raise
    except Exception as error:  # bad bytes may be anything to it
        raise InputError(
            f"{folder} is damaged ({type(error).__name__}): remove {Path(folder).parent}, and the run begins again"
        ) from error


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Without being warned that one process is one process; and errors are errors, which torch's are not here."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable or uninitialized")
        try:
            yield
        except CheckpointException as failed:
            first = next(iter(failed.failures.values()))[0]
            raise FileError(f"the shards of a checkpoint could not be written or read: {first}") from failed


def _remove(path: Path) -> None:
    """What a process left that was killed before it was done."""
    if path.exists():
        shutil.rmtree(path)
