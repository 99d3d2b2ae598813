"""What a run is measured to be is what searching an index of it gives, to the last digit: of numbers and of codes."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nearfar.cli import main
from nearfar.retrieval.encoder import Encoder
from nearfar.retrieval.index import open_index
from nearfar.training.evaluate import evaluate
from nearfar.training.runs import Run
from nearfar.training.train import train
from tests.retrieval.making import photos
from tests.training.making import SMALL

SHOWN = ("recall@1", "recall@4", "map@r")


def searched(where: str, encoder: Encoder, folder: Path) -> dict[str, float]:
    """Recall and MAP@R of every image of a folder against the others in the index, in plain loops: a negative that is as
    similar as a match stands before it.
    """
    paths = sorted(folder.glob("*/*.png"))
    index = open_index(where)
    assert len(index) == len(paths)
    values: dict[str, list[float]] = {name: [] for name in SHOWN}
    for path, hits in zip(paths, index.search(encoder.embed(paths), len(paths)), strict=True):
        others = [(hit.similarity, Path(hit.id).parent.name == path.parent.name) for hit in hits if hit.id != str(path)]
        assert len(others) == len(paths) - 1
        matches = sorted((s for s, same in others if same), reverse=True)
        ranks = [j + sum(s >= m for s, same in others if not same) for j, m in enumerate(matches, 1)]
        for k in (1, 4):
            values[f"recall@{k}"].append(float(ranks[0] <= k))
        total = len(matches)
        values["map@r"].append(sum(j / rank for j, rank in enumerate(ranks, 1) if rank <= total) / total)
    index.close()
    return {name: float(np.mean(found)) for name, found in values.items()}


@pytest.mark.parametrize(("head", "dimension"), [("linear", 8), ("hash", 8), ("hash", 12)])
def test_evaluate_index_and_search_agree(
    head: str, dimension: int, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEARFAR_CACHE", str(tmp_path / "cache"))
    data, others = photos(tmp_path / "photos", classes=8), photos(tmp_path / "others", classes=7, each=6, seed=5)
    options: dict[str, Any] = {**SMALL, "head": head, "dimension": dimension, "max_steps": 4}
    run = train(data, out=str(tmp_path / "run"), test=str(others), validation=0.25, **options)
    shown = capsys.readouterr().out
    assert main(["index", str(run.folder), str(others), "--index", str(tmp_path / "index")]) == 0
    found = searched(str(tmp_path / "index"), Encoder.of_run(run), others)
    assert 0 < found["map@r"] < 1
    measured = evaluate(run)
    hashed = head == "hash"
    tolerance = 1e-12 if hashed else 0.03  # of 42 images one: cosines that are equal but for rounding change places
    for name in SHOWN:
        assert found[name] == pytest.approx(run.metrics["after"][name], abs=tolerance)
        assert found[name] == pytest.approx(measured[name], abs=tolerance)
    assert run.metrics["compared_by"] == measured["compared_by"] == ("hamming" if hashed else "cosine")
    assert ("cosine map@r" in measured) is hashed
    if not hashed:
        return
    # The cosines of the numbers behind the codes stand beside: in the run, the curves, the table, the report, the card.
    assert measured["cosine map@r"] == run.metrics["after"]["cosine map@r"] != measured["map@r"]
    with (run.folder / "curves.csv").open() as file:
        looks = [row for row in csv.DictReader(file) if row["map@r"]]
    assert looks and all(0 <= float(row["cosine map@r"]) <= 1 for row in looks)
    assert "codes by Hamming distance" in shown and "cosine map@r" in shown
    report = (run.folder / "report.html").read_text()
    assert "compared by Hamming distance" in report and "Similarity of the codes" in report
    assert main(["export", str(run.folder), "--format", "safetensors", "--out", str(tmp_path / "export")]) == 0
    text = (tmp_path / "export" / "README.md").read_text()
    assert "by Hamming distance of the codes" in text and f"{measured['map@r']:.2%}" in text
    capsys.readouterr()
    assert main(["evaluate", str(run.folder)]) == 0
    assert "codes by Hamming distance" in capsys.readouterr().out


def test_the_report_of_a_run_from_before(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its figures are cosines, which the report then says."""
    run = train(photos(tmp_path / "photos", 8), out=str(tmp_path / "run"), **{**SMALL, "head": "hash", "max_steps": 1})
    metrics = json.loads((run.folder / "metrics.json").read_text())
    assert metrics.pop("compared_by") == "hamming"
    (run.folder / "metrics.json").write_text(json.dumps(metrics))
    assert main(["report", str(run.folder)]) == 0
    assert "older than metrics of codes" in (run.folder / "report.html").read_text()
    assert Run(run.folder).finished
