"""Codes against floating-point numbers: metrics by plain loops, and what belongs to what."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nearfar.data import Table
from nearfar.models.hashing import HashingPenalty
from nearfar.studies import hashing
from nearfar.studies.hashing import FLOATS, HASH, PENALISED, SIGNS, Options, of_codes, of_floats
from nearfar.studies.heads import Heads
from nearfar.training.config import TrainConfig
from nearfar.training.options import ConfigError
from tests.studies.naive import cosines, map_at_r, recall_at_1
from tests.training.making import patterns


@pytest.mark.parametrize("bits", [3, 8, 21])
def test_metrics_are_those_of_plain_loops(bits: int) -> None:
    """Codes of 3 bits are mostly ties, which count against the model."""
    table = patterns(classes=12, each=5).split("test")
    rng = np.random.default_rng(bits)
    x = (rng.normal(size=(6, bits)).repeat(5, 0) + rng.normal(size=(30, bits))).astype(np.float32)
    signs = np.where(x > 0, 1, -1)
    agree = [[int((signs[i] == signs[j]).sum()) for j in range(30)] for i in range(30)]
    found = of_codes(x, table)
    assert found["recall@1"] == pytest.approx(recall_at_1(agree, table.labels))
    assert found["map@r"] == pytest.approx(map_at_r(agree, table.labels))
    whole = of_floats(x, table)
    assert whole["map@r"] == pytest.approx(map_at_r(cosines(x), table.labels))
    assert found != whole


def test_run(config: TrainConfig, table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained: list[tuple[int, str, Any]] = []
    train = Heads.train

    def watch(heads: Heads, loss: Any, seed: int, **options: Any) -> Any:
        embedder = options["workbench"].embedder
        trained.append((embedder.dimension, embedder.settings.head, options["extra"]))
        return train(heads, loss, seed, **options)

    monkeypatch.setattr(Heads, "train", watch)
    looked: list[np.ndarray] = []
    monkeypatch.setattr(hashing, "of_codes", lambda x, rows: looked.append(x) or of_codes(x, rows))
    options = Options(bits=(4, 8), seeds=2, quantisation=0.3, balance=0.2, config=config)
    found = hashing.run(options, tmp_path, print)
    expected = [(bits, head) for bits in (4, 8) for head in ("linear", "linear", "hash", "hash", "hash", "hash")]
    assert [each[:2] for each in trained] == expected
    for place, (*_, extra) in enumerate(trained):
        if place % 6 < 4:
            assert extra is None
        else:
            assert isinstance(extra, HashingPenalty) and (extra.quantisation, extra.balance) == (0.3, 0.2)
    assert all(x.shape == (96, bits) for x, (bits, _) in zip(looked, expected, strict=True))
    rows = found.tables["hashing"]
    assert [(row["bits"], row["embedding"], row["bytes"]) for row in rows] == [
        (4, FLOATS, 16), (4, SIGNS, 0.5), (4, HASH, 0.5), (4, PENALISED, 0.5),
        (8, FLOATS, 32), (8, SIGNS, 1), (8, HASH, 1), (8, PENALISED, 1),
    ]  # fmt: skip
    # The signs are of the very embedding whose cosines were measured: the first seeds of 8 numbers.
    labels = table.split("test").labels
    floats, signs = (
        next(r for r in found.tables["trainings"] if (r["bits"], r["embedding"], r["seed"]) == (8, kind, 0))
        for kind in (FLOATS, SIGNS)
    )
    assert floats["map@r"] == pytest.approx(map_at_r(cosines(looked[6]), labels))
    assert signs["map@r"] == pytest.approx(map_at_r(np.sign(looked[6]) @ np.sign(looked[6]).T, labels))
    assert found.sentences[1].startswith("8 dimensions: MAP@R ") and "in 1/32 of the memory." in found.sentences[1]


def test_mistakes() -> None:
    with pytest.raises(ConfigError, match="at least 2 bits"):
        Options(bits=(1,))
    with pytest.raises(ConfigError, match="CircleLoss"):
        Options(trained_with="CircelLoss")
