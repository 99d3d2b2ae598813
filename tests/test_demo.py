import runpy
from pathlib import Path

import pytest
import torch

pytest.importorskip("sklearn")

DEMO = runpy.run_path(str(Path(__file__).parent.parent / "demo" / "digits.py"))


@pytest.mark.parametrize("name", DEMO["LOSSES"])
def test_training_helps_on_unseen_digits(name):
    result = DEMO["run"](DEMO["LOSSES"][name], steps=100)
    assert result.before < 0.6  # the task is not solved from the start
    assert result.after > result.before + 0.05


def test_recall_at_1_excludes_the_sample_itself():
    vectors = torch.tensor([[1.0, 0.0], [2.0, 0.1], [0.0, 1.0], [0.1, 3.0]])
    assert DEMO["recall_at_1"](vectors, torch.tensor([0, 0, 1, 1])) == 1.0
    assert DEMO["recall_at_1"](vectors, torch.tensor([0, 1, 2, 3])) == 0.0
    assert DEMO["recall_at_1"](vectors, torch.tensor([0, 0, 1, 2])) == 0.5
