"""Binary codes against floating-point embeddings: the loss of accuracy at 1/32 of the memory.

For every number of bits, four embeddings are compared: a floating-point head of this dimension; the signs of its
outputs, which need no training; a hashing head, whose outputs approach −1 and 1 in training; and the same with
penalties on intermediate outputs and on unbalanced bits. All start from the same principal components. Codes are
compared by Hamming distance; ties, which are frequent with short codes, count as misses.

References: Z. Cao et al., HashNet, ICCV 2017, arXiv:1702.00758; J. Wang et al., A Survey on Learning to Hash, TPAMI
2018, arXiv:1606.00185.
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from matplotlib.figure import Figure

from nearfar.compare.spaces import read_contestant
from nearfar.compare.workbench import Workbench
from nearfar.data import Table
from nearfar.models.hashing import HashingPenalty
from nearfar.report import style
from nearfar.studies.heads import Embeddings, Heads, Measured
from nearfar.studies.study import Drawing, Findings, HeadOptions, Progress, cells
from nearfar.studies.sweep import Row, draw_lines, name_lines, one, over_seeds, per_cent
from nearfar.training.config import option
from nearfar.training.measure import measure as measure_embeddings
from nearfar.training.options import ConfigError

METRICS = ("map@r", "map", "recall@1")
METRIC = "map@r"
FLOATS, SIGNS, HASH, PENALISED = "floating point", "their signs", "hashing head", "hashing head, penalties"
BITS_OF_A_FLOAT = 32
Head = Literal["linear", "hash"]


@dataclass(frozen=True)
class Options(HeadOptions):
    """The options of the study."""

    trained_with: str = option("MultiSimilarityLoss", "the loss")
    bits: tuple[int, ...] = option(
        (16, 32, 64, 128, 256), "bits of a code, and dimensions of a floating-point embedding"
    )
    quantisation: float = option(0.1, "weight of the penalty on outputs between -1 and 1")
    balance: float = option(0.1, "weight of the penalty on unbalanced bits")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.bits or min(self.bits) < 2:
            raise ConfigError(f"codes need at least 2 bits, not {self.bits}")
        read_contestant(self.trained_with)

    def small(self) -> Self:
        config = replace(self.config, max_steps=8)
        return replace(self, bits=(8, 32), seeds=2, classes=20, config=config)


def of_codes(embeddings: Embeddings, table: Table) -> Measured:
    """Compute metrics of the signs of embeddings, by Hamming distance."""
    metrics = measure_embeddings(embeddings, table, (1,), binary=True)
    return {name: float(metrics[name]) for name in METRICS}


def of_floats(embeddings: Embeddings, table: Table) -> Measured:
    """Compute metrics of the embeddings themselves, by cosine."""
    metrics = measure_embeddings(embeddings, table, (1,))
    return {name: float(metrics[name]) for name in METRICS}


def run(options: Options, folder: Path, progress: Progress) -> Findings:
    """Train all kinds of heads for every number of bits."""
    heads = Heads(options.config, options.classes, say=progress)
    loss = read_contestant(options.trained_with)

    @functools.lru_cache(maxsize=1)
    def workbench(bits: int, head: Head) -> Workbench:
        model = replace(heads.config.model, head=head, dimension=bits, hidden=None, head_start="pca-whiten")
        return heads.workbench_for(model)

    def measure(setting: Mapping[str, Any]) -> Measured:
        head: Head = "linear" if setting["head"] == FLOATS else "hash"
        bench = workbench(setting["bits"], head)
        fold = bench.folds[0]
        penalty = HashingPenalty(options.quantisation, options.balance) if setting["head"] == PENALISED else None

        def look() -> Measured:
            x = bench.embeddings(fold)
            codes = of_codes(x, fold.val)
            if head == "hash":
                return codes
            return {**of_floats(x, fold.val), **{f"signs {name}": value for name, value in codes.items()}}

        return heads.train(loss, setting["seed"], workbench=bench, extra=penalty, look=look) or dict.fromkeys(METRICS)

    settings = [
        {"bits": bits, "head": head, "seed": seed}
        for bits in options.bits
        for head in (FLOATS, HASH, PENALISED)
        for seed in options.all_seeds
    ]
    trainings = _with_signs(cells(settings, measure, folder, progress))
    rows = over_seeds(trainings, ["embedding", "bits"], METRICS)
    for row in rows:
        row["bytes"] = row["bits"] * (BITS_OF_A_FLOAT if row["embedding"] == FLOATS else 1) / 8
    return Findings(
        {"hashing": rows, "trainings": trainings},
        {
            "hashing": Drawing(draw(rows), "MAP@R on unseen classes by the dimension of the embedding", wide=True),
        },
        sentences(rows, options),
    )


def _with_signs(trainings: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row for each embedding, with separate rows for the signs of floating-point embeddings."""
    lines = []
    for cell in trainings:
        who = {"bits": cell["bits"], "seed": cell["seed"]}
        lines.append({"embedding": cell["head"], **who, **{name: cell[name] for name in METRICS}})
        if cell["head"] == FLOATS:
            lines.append({"embedding": SIGNS, **who, **{name: cell.get(f"signs {name}") for name in METRICS}})
    return lines


def draw(rows: list[Row]) -> Figure:
    """Draw MAP@R by the dimension of the embedding, and by its bytes."""
    with style.figure(8.0, 3.6) as drawn:
        panels = drawn.subplots(1, 2, sharey=True)
        for axes, x, words in zip(
            panels, ("bits", "bytes"), ("dimensions or bits", "bytes of an embedding"), strict=True
        ):
            draw_lines(axes, rows, x, "embedding", METRIC, spread=np.log2)
            axes.set(xlabel=words)
        panels[1].set(ylabel="")
        name_lines(drawn, panels[0], columns=4)
    return drawn


def sentences(rows: list[Row], options: Options) -> list[str]:
    """Describe the accuracy of codes relative to the floating-point embedding."""
    result = []
    for bits in options.bits:
        whole = one(rows, embedding=FLOATS, bits=bits)
        parts = [
            f"{name} {per_cent(row, METRIC)} % ({row[METRIC] / whole[METRIC]:.0%} of it)"
            for name in (SIGNS, HASH, PENALISED)
            for row in [one(rows, embedding=name, bits=bits)]
            if row[METRIC] is not None and whole[METRIC]
        ]
        result.append(
            f"{bits} dimensions: MAP@R {per_cent(whole, METRIC)} % in floating point; {', '.join(parts)}, in "
            f"1/{BITS_OF_A_FLOAT} of the memory."
        )
    return result
