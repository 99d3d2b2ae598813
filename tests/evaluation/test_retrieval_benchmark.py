"""The benchmark's data are what it says, and everybody computes the same of them."""

from pathlib import Path

import pytest
import torch
from benchmarks import evaluation
from benchmarks.__main__ import main
from benchmarks.evaluation import BY_NAME, Case, nearfar_metrics, pml_metrics, problem
from benchmarks.results import read


@pytest.mark.parametrize("case", [Case(600, 16), Case(600, 16, queries=100, noise=1.0)])
def test_everybody_computes_the_same(case: Case) -> None:
    data = problem(case)
    sizes = torch.bincount(data.searched[1])
    assert sizes.sum() == 600 and sizes.min() >= 2 and sizes.max() <= 12
    assert data.k == max(8, sizes.max())
    ours, theirs = nearfar_metrics(data)(), pml_metrics(data)()
    assert 0.05 < ours["map@r"] < 0.99
    pairs = {"recall@1": "precision_at_1", "r_precision": "r_precision", "map@r": "mean_average_precision_at_r"}
    for own, other in pairs.items():
        assert ours[own] == pytest.approx(theirs[other], abs=1e-6)


def test_rows_are_appended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = Case(200, 8)
    monkeypatch.setitem(BY_NAME, evaluation.QUICK_CASES[0].name, small)
    monkeypatch.setattr(evaluation, "cores", torch.get_num_threads)  # which it would set
    measured = evaluation.measure(small, "nearfar", evaluation.QUICK)
    assert measured["p50_ms"] > 0 and measured["limit_ms"] > 0
    out = tmp_path / "rows.csv"
    assert main(["evaluation", "--quick", "--implementations", "limit", "--time", "0", "--out", str(out)]) == 0
    (row,) = read(out)
    assert (row.case, row.implementation, row.status) == ("retrieval-2000x64-noise1.5", "limit", "timeout")
