"""Checkpoints of shards: written by some number of processes, read by any other; in one process, the same files."""

from pathlib import Path

import pytest
import torch

from nearfar.errors import InputError
from nearfar.training.shards import Shard, load_shards, save_shards, whole


def test_one_process_saves_and_loads_any_rows(tmp_path: Path) -> None:
    weight = torch.arange(21.0).view(7, 3)
    save_shards(tmp_path / "saved", {"weight": Shard(weight, (7, 3), 0), "count": Shard(weight[:, 0], (7,), 0)})
    for offset, rows in ((0, 7), (2, 3), (6, 1), (7, 0)):
        local, count = torch.full((rows, 3), -1.0), torch.full((rows,), -1.0)
        shards = {"weight": Shard(local, (7, 3), offset), "count": Shard(count, (7,), offset)}
        load_shards(tmp_path / "saved", shards)
        assert torch.equal(local, weight[offset : offset + rows])
        assert torch.equal(count, weight[offset : offset + rows, 0])
    assert torch.equal(whole(tmp_path / "saved")["weight"], weight)


def test_what_does_not_fit(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"\(3, 2\) from row 5 does not fit into \(7, 2\)"):
        Shard(torch.zeros(3, 2), (7, 2), 5)
    with pytest.raises(ValueError, match="does not fit into"):
        Shard(torch.zeros(3, 4), (7, 2), 0)
    save_shards(tmp_path / "saved", {"weight": Shard(torch.zeros(4, 2), (4, 2), 0)})
    with pytest.raises(ValueError, match=r"weight has shape \(4, 2\) in it, \(8, 2\) in this one"):
        load_shards(tmp_path / "saved", {"weight": Shard(torch.zeros(4, 2), (8, 2), 0)})
    with pytest.raises(ValueError, match="only one of the two has other"):
        load_shards(tmp_path / "saved", {"other": Shard(torch.zeros(4, 2), (4, 2), 0)})
    next((tmp_path / "saved").glob("*.distcp")).unlink()
    with pytest.raises(OSError, match=r"could not be written or read.*No such file"):
        load_shards(tmp_path / "saved", {"weight": Shard(torch.zeros(4, 2), (4, 2), 0)})


def test_an_unfinished_one_is_written_over(tmp_path: Path) -> None:
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved" / "__0_0.distcp").write_bytes(b"half of it")
    save_shards(tmp_path / "saved", {"weight": Shard(torch.ones(2, 2), (2, 2), 0)})
    assert torch.equal(whole(tmp_path / "saved")["weight"], torch.ones(2, 2))


def test_damage_is_told(tmp_path: Path) -> None:
    save_shards(tmp_path / "checkpoints" / "shards-1", {"weight": Shard(torch.ones(3, 2), (3, 2), 0)})
    (tmp_path / "checkpoints" / "shards-1" / ".metadata").write_bytes(b"rubbish")
    with pytest.raises(InputError, match=r"shards-1 is damaged .*: remove .*checkpoints, and the run starts again"):
        load_shards(tmp_path / "checkpoints" / "shards-1", {"weight": Shard(torch.zeros(3, 2), (3, 2), 0)})
