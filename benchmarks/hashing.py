"""Codes of 16 to 128 bits on the glyphs: the figures of a run beside what searching an index of it finds.

An index of the test images is made as `nearfar index RUN --split test` makes it, and every image is searched in it.
Recall@1 and MAP@R are counted from these hits, and have to be the run's own to the last digit.
"""

import tempfile
from pathlib import Path

import numpy as np

import nearfar
from benchmarks.results import ROOT
from nearfar.cli import main
from nearfar.retrieval.index import open_index
from nearfar.training.runs import Run

PAGE = ROOT / "docs" / "guides" / "hashing.md"
BEGIN, END = "<!-- measured:begin -->", "<!-- measured:end -->"
BITS = (16, 32, 64, 128)
METRICS = ("recall@1", "map@r")
NEAREST = 64  # hits of a query: four times its matches, so that a match beyond them counts for nothing
AT_A_TIME = 500  # queries


def searched(where: Path) -> dict[str, float]:
    """Recall@1 and MAP@R of every image in an index against all others. What is as similar as a match, and none, stands
    before it.
    """
    index = open_index(str(where))
    items = list(index.listed())
    labels = {item.id: item.label for item in items}
    counts = dict(zip(*np.unique(list(labels.values()), return_counts=True), strict=True))
    values: dict[str, list[float]] = {name: [] for name in METRICS}
    for start in range(0, len(items), AT_A_TIME):
        some = [item.id for item in items[start : start + AT_A_TIME]]
        for asked, hits in zip(some, index.search(index.vectors(some), NEAREST), strict=True):
            others = [(hit.similarity, labels[hit.id] == labels[asked]) for hit in hits if hit.id != asked]
            least, found = others[-1][0], sorted((s for s, same in others if same), reverse=True)
            ranks = [j + sum(s >= match for s, same in others if not same) for j, match in enumerate(found, 1)]
            total = int(counts[labels[asked]]) - 1
            assert all(rank > total for rank, match in zip(ranks, found, strict=True) if match == least)
            values["recall@1"].append(float(bool(ranks) and ranks[0] == 1))
            values["map@r"].append(sum(j / rank for j, rank in enumerate(ranks, 1) if rank <= total) / total)
    index.close()
    return {name: float(np.mean(found)) for name, found in values.items()}


def measured(bits: int, folder: Path, steps: int) -> dict[str, dict[str, float]]:
    """A run with codes of so many bits: its figures, those of its cosines, and what searching an index of it finds."""
    run: Run = nearfar.train(head="hash", dimension=bits, max_steps=steps, out=str(folder), quiet=True)
    main(["index", str(run.folder), "--split", "test", "--index", str(folder / "index")])
    after = run.metrics["after"]
    return {
        "measured": {name: after[name] for name in METRICS},
        "searched": searched(folder / "index"),
        "cosine": {name: after[f"cosine {name}"] for name in METRICS},
    }


def write(steps: int) -> int:
    """Measure all, and put the table into the documentation."""
    lines = ["| bits | | Recall@1 | MAP@R |", "|---|---|---|---|"]
    agree = True
    with tempfile.TemporaryDirectory() as folder:
        for bits in BITS:
            found = measured(bits, Path(folder) / str(bits), steps)
            agree &= all(abs(found["measured"][name] - found["searched"][name]) < 1e-12 for name in METRICS)
            for name, values in found.items():
                lines.append(f"| {bits} | {name} | {values['recall@1']:.8f} | {values['map@r']:.8f} |")
                print(lines[-1], flush=True)
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n" + "\n".join(lines) + f"\n{END}{after}", encoding="utf-8")
    return 0 if agree else 1
