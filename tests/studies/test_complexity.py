"""Fitted powers, the measurement, and the study of complexity."""

import csv
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from nearfar.studies import complexity
from nearfar.studies.complexity import CASES, Options, exponents, power, seconds
from nearfar.studies.study import run_study
from nearfar.training.config import LossConfig
from nearfar.training.options import ConfigError


def test_power_looks_at_the_largest_sizes() -> None:
    sizes = [1000, 500, 250, 125, 60]
    assert power(sizes, [3e-9 * size**2.5 for size in sizes]) == pytest.approx(2.5)
    assert power(sizes, [1e-6 * size if size > 200 else 1.0 for size in sizes]) == pytest.approx(1.0)


def test_exponents_are_of_the_right_rows() -> None:
    options = Options(batches=(16, 32, 64), classes=(8, 16, 32), batch=16, class_count=8)
    sizes = [(16, 8), (32, 8), (64, 8), (16, 16), (16, 32)]
    rows = [{"loss": case.name, "batch": b, "classes": c, "seconds": b**2 * c} for case in CASES for b, c in sizes]
    for row in exponents(rows, options):
        assert (row["batch"], row["classes"]) == (2.0, 1.0)
    claims = {row["loss"]: (row["batch claimed"], row["classes claimed"]) for row in exponents(rows, options)}
    assert claims["Proxy-Anchor"] == (1, 1) and claims["Contrastive"] == (2, 0) and claims["N-pair"] == (3, 0)
    words = " ".join(complexity._sentences(exponents(rows, options)))
    assert "As claimed, to within 0.3: Contrastive (B^2.0)." in words
    assert "Slower growth than claimed: Triplet, all (B^2.0, claimed B^3)" in words
    assert "Faster growth than claimed: Proxy-NCA (B^2.0, claimed B^1)" in words
    assert "Contrastive (C^1.0, claimed C^0)" in words


def test_what_is_measured_is_the_work_of_a_step() -> None:
    """By a clock that counts the operations of matrix products: of similarities, and of their gradient."""
    options = Options(repeats=1, dimension=64)
    with FlopCounterMode(display=False) as counter:
        little, much = (
            seconds(LossConfig("ContrastiveLoss"), batch, 64, options, clock=counter.get_total_flops)
            for batch in (64, 1024)
        )
    assert little >= 2 * 64**3  # a product at least
    assert 0.5 < much / little / (1024 // 64) ** 2 < 1.5


def test_short_steps_are_repeated_and_the_median_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that is read before and after: one step, one step of 6 ms, then four steps, three times."""
    read = iter([0.0, 0.004, 1.0, 1.006, 2.0, 2.04, 3.0, 3.02, 4.0, 4.032])
    steps = []

    class Counted(torch.nn.Module):
        def forward(self, embeddings: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            steps.append(len(labels))
            return embeddings.sum()

    monkeypatch.setattr(complexity, "build_loss", lambda *_: Counted())
    options = Options(repeats=3, dimension=4)
    assert seconds(LossConfig("made"), 8, 2, options, clock=lambda: next(read)) == pytest.approx(0.032 / 4)
    assert steps == [8] * (1 + 1 + 3 * 4) and next(read, None) is None


def test_the_study(tmp_path: Path) -> None:
    found = run_study("complexity", Options().small(), out=tmp_path, progress=print)
    assert len(found.tables["cost"]) == len(CASES) * 3  # two batches and two numbers of classes, one pair in common
    assert all(row["seconds"] > 0 for row in found.tables["cost"])
    with (tmp_path / "exponents.csv").open() as file:
        assert [row["loss"] for row in csv.DictReader(file)] == [case.name for case in CASES]


@pytest.mark.parametrize("wrong", [{"batches": (8,)}, {"classes": (8,)}, {"repeats": 0}, {"batch": 4}])
def test_wrong_options(wrong: dict) -> None:
    with pytest.raises(ConfigError, match="at least"):
        replace(Options(), **wrong)
