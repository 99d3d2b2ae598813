"""Memory that is kept between steps."""

import resource
import sys

import pytest
import torch

from nearfar.training.memory import freed_memory_kept


def faults_of_large_blocks() -> int:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(5):
        torch.ones(2**24)  # 64 MB: 16,384 pages
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's allocator")
def test_large_blocks_are_used_again_and_given_back_in_the_end():
    with freed_memory_kept("cpu"):
        faults_of_large_blocks()
        assert faults_of_large_blocks() < 2_000
    assert faults_of_large_blocks() > 4 * 2**14
    with freed_memory_kept("cuda"):
        assert faults_of_large_blocks() > 4 * 2**14
