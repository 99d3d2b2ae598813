"""The benchmark of thresholds for classes never seen: what it draws, what it stores, what it writes."""

from pathlib import Path

import numpy as np
import pytest
from benchmarks import calibration
from benchmarks.__main__ import main


@pytest.fixture
def source() -> calibration.Source:
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(48), 9)
    return calibration.Source("made", rng.normal(size=(48, 8))[labels] + 0.5 * rng.normal(size=(432, 8)), labels)


def test_a_folder_is_drawn(source: calibration.Source) -> None:
    rows, number = source.folder(np.random.default_rng(1), 6, (3, 5))
    assert len(set(rows.tolist())) == len(rows) and len(np.unique(source.labels[rows])) == 6
    assert all(3 <= count <= 5 for count in np.bincount(number))
    assert all(len(set(source.labels[rows[number == k]].tolist())) == 1 for k in range(6))
    assert (50, (12, 12), 1) not in source.cells() and (24, (9, 9), 3) in source.cells()


def test_rows_are_kept_and_tables_written(
    source: calibration.Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "docs").mkdir()
    page = tmp_path / "docs" / "evaluation.md"
    page.write_text("before\n<!-- benchmark:begin -->\nstale\n<!-- benchmark:end -->\nafter\n")
    features = tmp_path / "made.npz"
    np.savez(features, e=source.features, y=source.labels)
    csv = tmp_path / "rows.csv"
    monkeypatch.setattr(calibration, "CSV", csv)
    monkeypatch.setattr(calibration, "CELLS", [(8, (5, 5), 1), (12, (4, 9), 1), (24, (9, 9), 3)])
    assert calibration.measure([str(tmp_path / "absent")], [features], 3, csv, tmp_path) == 0
    assert "absent is not there: left out" in capsys.readouterr().err
    rows = calibration.read(csv)
    assert len(rows) == 9 and all(row.draws == 3 for row in rows)
    assert [row.calibrated for row in rows[:3]] == [0, 0, 0] and rows[8].calibrated == 3
    assert rows[8].far_low < rows[8].far_high and rows[8].target == "precision" and rows[8].share == 0.05
    written = page.read_text()
    assert written.startswith("before") and written.endswith("after\n") and "stale" not in written
    assert "| 8 | 5 | cannot be calibrated |" in written and "| 24 in 3 folds | 9 |" in written and "4 to 9" in written
    assert "**made.** Within the 90 % interval, over all 6 cells" in written


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["calibration", str(tmp_path / "absent"), "--draws", "1"]) == 0
    assert "absent is not there" in capsys.readouterr().err
