"""Retrieval by several processes: what one finds, in every digit."""

from pathlib import Path

import numpy as np
import pytest
import torch.distributed as dist

from nearfar.evaluation import distributed_retrieval_metrics
from nearfar.evaluation.protocols import Protocol, Share
from tests.evaluation import searching_together
from tests.losses.distributed.processes import PASSED, run


@pytest.mark.skipif(not dist.is_gloo_available(), reason="torch has no gloo")
def test_three_processes_find_what_one_finds(tmp_path: Path) -> None:
    results = run(searching_together.checks, 3, tmp_path)
    for name, told in results.items():
        assert told == [PASSED] * 3, f"{name}\n" + "\n".join(told)
    assert len(results) == 2 * len(searching_together.CASES) + 2


def test_shares_of_a_protocol_are_the_protocol() -> None:
    """Pairs and ignored items of all shares together, by hand."""
    labels, gallery = np.array([0, 1, 0, 2]), np.array([0, 0, 1, -1, 2, 0])
    protocol = Protocol(labels, gallery, junk=-1)
    found: list[tuple[int, int, bool]] = []
    for queries in (np.array([0, 1]), np.array([2, 3])):
        for columns in (slice(0, 2), slice(2, 6)):
            share = Share(protocol, queries, columns)
            assert share.labels.tolist() == protocol.labels[queries].tolist()
            assert share.junk_columns.tolist() == ([] if columns.stop == 2 else [1])
            pairs = share.pairs(np.arange(2))
            found += [
                (int(queries[row]), int(column) + columns.start, bool(match))
                for row, column, match in zip(pairs.row, pairs.column, pairs.match, strict=True)
            ]
    equal = [(q, g, True) for q in range(4) for g in range(6) if labels[q] == gallery[g]]
    assert sorted(found) == equal  # each of them once


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"holds": "some"}, 'holds must be "all" or "part"'),
        ({"similarity": "hamming"}, "in a distributed search"),
        ({"ties": "random"}, "ties must be"),
        ({"metrics": "nmi"}, "use clustering_metrics"),
        ({"gallery": np.ones((3, 2), np.float32)}, "go together"),
    ],
)
def test_refusals(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        distributed_retrieval_metrics(np.ones((3, 2), np.float32), [0, 1, 2], **options)


def test_without_other_processes() -> None:
    with pytest.raises(RuntimeError, match="init_process_group first"):
        distributed_retrieval_metrics(np.ones((3, 2), np.float32), [0, 1, 2])
