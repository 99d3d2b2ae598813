"""The benchmark of identification: what it keeps and shows, and that a small case runs."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from benchmarks import identify, results

ROW = identify.Row(
    **results.stamp(), data="cub", case="few classes", held=10, enrolled=6, images=3, wished=0.01, draws=100,
    calibrated=97, template=0.98, far_stated=0.0093, far_low=0.0, far_high=0.048, far_measured=0.0097, far_inside=0.95,
    dir_stated=0.154, dir_low=0.035, dir_high=0.341, dir_measured=0.151, dir_inside=0.91, sure_stated=0.88,
    sure_right=0.92,
)  # fmt: skip


def test_rows_are_kept_and_put_between_the_marks(tmp_path: Path) -> None:
    path, document = tmp_path / "rows.csv", tmp_path / "identify.md"
    for row in (replace(ROW, far_measured=0.5), replace(ROW, images=10), ROW):
        results.append(row, path)
    assert identify.read(path) == [ROW, replace(ROW, images=10)]
    document.write_text("before\n<!-- identify:begin -->\nold\n<!-- identify:end -->\nafter\n")
    for _ in range(2):
        identify.write_table(path, document)
    text = document.read_text()
    assert text.startswith("before\n<!-- identify:begin -->\n| data |") and text.endswith("end -->\nafter\n")
    row = "| cub, few classes | 10 / 6 | 3 | 1 % | 0.9 % (0.0 to 4.8 %) | 1.0 % | 95 % | 15.4 % (3.5 to 34.1 %) | 15.1 % | 91 % |"
    assert row in text and "old" not in text


def test_a_small_case(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Clear classes: all are found, and next to no stranger is taken for one. Features that are absent are told."""
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(40), 6)
    x = (rng.normal(size=(40, 1, 64)).repeat(6, 1).reshape(240, 64) + 0.1 * rng.normal(size=(240, 64))).astype("f4")
    np.savez(tmp_path / "x.npz", embeddings=x, labels=labels)
    case = (identify.Case("at random", 20, 20, False, 2, (2,)),)
    monkeypatch.setattr(identify, "CUB", case)
    monkeypatch.setattr(identify, "GLYPHS", case)
    monkeypatch.setattr(identify, "_glyphs", lambda: (x, labels))
    identify.measure(tmp_path / "x.npz", tmp_path / "rows.csv")
    rows = identify.read(tmp_path / "rows.csv")
    assert [(row.data, row.wished) for row in rows] == [(d, r) for d in ("cub", "glyphs") for r in (0.01, 0.1)]
    assert all(row.dir_measured > 0.95 and row.far_measured <= row.far_high and row.dir_inside == 1 for row in rows)
    identify.measure(tmp_path / "none.npz", None)
    assert "cub: skipped, since there is no " in capsys.readouterr().err
