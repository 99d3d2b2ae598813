"""The benchmark of several processes: what it asks for, keeps and shows. That it runs is seen by running it."""

from dataclasses import replace
from pathlib import Path

from benchmarks import distributed, results

ROW = distributed.Row(
    **results.stamp(), loss="ArcFaceLoss", mode="sharded", classes=1_000_000, dimension=64, batch=64, world=2,
    kept_mb=512.0, planned_kept_mb=512.0, peak_mb=800.0, planned_peak_mb=768.0, sent_mb=0.25, planned_sent_mb=0.2501,
    step_ms=1234.5,
)  # fmt: skip


def test_rows_are_kept_and_the_newest_are_read(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    for row in (ROW, replace(ROW, world=4), replace(ROW, kept_mb=500.0)):
        results.append(row, path)
    assert distributed.read(path) == [replace(ROW, kept_mb=500.0), replace(ROW, world=4)]


def test_the_table_is_put_between_its_marks(tmp_path: Path) -> None:
    path, document = tmp_path / "rows.csv", tmp_path / "scale.md"
    for row in (ROW, replace(ROW, classes=10)):  # the other is not of the standard size
        results.append(row, path)
    document.write_text("before\n<!-- distributed:begin -->\nold\n<!-- distributed:end -->\nafter\n")
    for _ in range(2):
        distributed.write_table(path, document)
        text = document.read_text()
        assert text.startswith("before\n<!-- distributed:begin -->\n| loss |") and text.endswith("-->\nafter\n")
        assert "old" not in text
    row = "| `ArcFaceLoss` | sharded | 2 | 512 (512) | 800 (768) | 0.250 (0.250) | 1,234 |"
    assert row in text and text.count("| `") == 1


def test_what_is_planned_is_what_is_measured() -> None:
    job = distributed.job("ProxyAnchorLoss", "sampled", 1000, 64, 512, 2)
    assert (job.kind, job.sharded, job.sample_rate, job.parameters, job.activations) == ("proxy", True, 0.1, 0, 0)
    assert not distributed.job("ArcFaceLoss", "replicated", 1000, 64, 512, 2).sharded
