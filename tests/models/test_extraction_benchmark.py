import csv

import pytest


def test_the_benchmark_runs(tmp_path, capsys):
    pytest.importorskip("pytorch_metric_learning")
    from benchmarks.__main__ import main

    out = tmp_path / "r.csv"
    wanted = ["--count", "16", "--trunk", "convnet", "--samples", "600", "--rounds", "1", "--out", str(out)]
    assert main(["extraction", *wanted]) == 0
    with out.open() as file:
        rows = list(csv.DictReader(file))
    assert [row["case"].split()[0] for row in rows] == ["embed", "train"]
    assert all(float(row["ours"]) > 0 and float(row["ratio"]) > 0 for row in rows)
    assert "ratio" in capsys.readouterr().out
