"""The tables of README.md and docs/benchmarks.md, written between their markers from the newest rows."""

import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks import beside, charts, peers
from benchmarks.cases import STANDARD, Case
from benchmarks.implementations import LIMIT
from benchmarks.results import Key, Row, newest, read

NAMES = {
    "nearfar": "nearfar",
    "pml": "pytorch-metric-learning",
    "compiled": "torch.compile",
    "dense": "plain autograd",
    "fused-ce": "torch's fused cross-entropy",
    "limit": "limit",
}
HEADLINE = [
    ("class-256x100000x512", "ProxyAnchorLoss"),
    ("class-256x100000x512", "ArcFaceLoss"),
    ("class-256x100000x512", "CosFaceLoss"),
    ("pair-4096x512", "CircleLoss"),
    ("pair-4096x512", "MultiSimilarityLoss"),
    ("pair-4096x512", "TripletMarginLoss"),
    ("class-256x1000000x128", "ProxyAnchorLoss"),
    ("pair-32768x128", "CircleLoss"),
]
SHORT = ["nearfar", "pml", "compiled", "dense"]

Rows = dict[Key, Row]


def size(case: Case) -> str:
    """256 × 100,000 × 512."""
    return f"{case.rows:,} × {case.columns:,} × {case.dimension}"


def megabytes(mb: float) -> str:
    """To two digits or so: 3.1 MB, 31 MB, 1.2 GB."""
    if mb >= 999.5:
        return f"{mb / 1000:.1f} GB"
    return f"{mb:.0f} MB" if mb >= 9.95 else f"{mb:.1f} MB"


def cell(row: Row | None) -> str:
    """A measurement in a table: its ratio and its memory, or what became of it."""
    if row is None:
        return ""
    if row.status != "ok" or row.ratio is None:
        return row.status.partition(":")[0]
    ratio = f"{row.ratio:.2f}" if row.ratio < 9.995 else f"{row.ratio:.0f}"
    mark = " †" if row.differs else ""
    return f"{ratio} ×{mark}" + ("" if row.peak_mb is None else f", {megabytes(row.peak_mb)}")


def markdown(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A table."""
    return "\n".join("| " + " | ".join(line) + " |" for line in (head, ["---"] * len(head), *lines))


def origin(rows: Rows) -> str:
    """On what and when the rows were measured; every machine, if there are several."""
    machines = sorted({f"{row.cpu}, {row.cores} cores, torch {row.torch}" for row in rows.values()})
    dates = sorted(row.date[:10] for row in rows.values())
    when = dates[0] if dates[0] == dates[-1] else f"{dates[0]} to {dates[-1]}"
    commits = ", ".join(sorted({row.commit for row in rows.values() if row.commit}))
    return f"Measured on {'; '.join(machines)}; {when}" + (f", commit {commits}." if commits else ".")


def comparison(rows: Rows, wanted: Sequence[tuple[str, str]], columns: Sequence[str]) -> str:
    """A table of (case, loss) pairs of several cases; those that were not measured are left out."""
    lines = []
    for name, loss in wanted:
        found = [rows.get((name, loss, implementation)) for implementation in columns]
        if found[0] is not None:
            first, *others = map(cell, found)
            lines.append([f"`{loss}`", size(Case.parse(name)), f"**{first}**", *others])
    return markdown(["loss", "rows × columns × D", *(NAMES[name] for name in columns)], lines)


def full(rows: Rows, case: Case) -> str:
    """The table of a case: every loss, every implementation, and the limit in milliseconds."""
    own = {key: row for key, row in rows.items() if key[0] == case.name}
    columns = [name for name in NAMES if name != "limit" and any(key[2] == name for key in own)]
    losses = sorted({key[1] for key in own} - {LIMIT})
    lines = [[f"`{loss}`", *(cell(own.get((case.name, loss, name))) for name in columns)] for loss in losses]
    limits = sorted(row.limit_ms for row in own.values() if row.limit_ms is not None)
    below = [f"The limit took {limits[len(limits) // 2]:,.1f} ms."] if limits else []
    below += [f"† `{row.loss}` {row.note}." for row in own.values() if row.differs]
    level = "Samples × classes" if case.level == "class" else "Samples × samples"
    table = markdown(["loss", *(NAMES[name] for name in columns)], lines)
    return "\n\n".join([f"### {level}, {size(case)}", table, "\n".join(below)]).strip()


def in_turn(rows: dict[tuple[str, str], dict[str, str]]) -> str:
    """The tables of what was measured in turn with pytorch-metric-learning."""
    if not rows:
        return ""
    dates, commits = (sorted({row[name] for row in rows.values()}) for name in ("date", "commit"))
    return "\n\n".join(
        [
            "### nearfar's time / pytorch-metric-learning's",
            "`python -m benchmarks beside`: both in turn, and the median of the quotients of neighbouring "
            "turns, with their 20th and 80th percentiles; or what became of pytorch-metric-learning's. "
            "† Its form differs, as said above.",
            *(_of_level(rows, level) for level in ("class", "pair")),
            f"Measured {dates[0][:10]} to {dates[-1][:10]}, commit {', '.join(commits)}.",
        ]
    )


def _of_level(rows: dict[tuple[str, str], dict[str, str]], level: str) -> str:
    """A line for each loss, a column for each case."""
    all_cases = {Case.parse(name) for name, _ in rows}
    cases = sorted((case for case in all_cases if case.level == level), key=lambda case: (case.columns, case.rows))
    names = {case.name for case in cases}
    lines = []
    for loss in sorted({loss for name, loss in rows if name in names}):
        found = [rows.get((case.name, loss)) for case in cases]
        mark = " †" if peers.PML[loss][1].startswith("differs") else ""
        lines.append([f"`{loss}`{mark}", *("" if row is None else beside.cell(row) for row in found)])
    return markdown(["loss", *(size(case) for case in cases)], lines)


def sweeps(rows: Rows) -> str:
    """The table of all other cases, by loss and size."""
    standard = {case.name for case in STANDARD}
    wanted = {(name, loss) for name, loss, _ in rows if name not in standard and loss != LIMIT}
    in_order = sorted(wanted, key=lambda key: (key[1], (case := Case.parse(key[0])).level, case.columns, case.rows))
    return f"### Larger and larger\n\n{comparison(rows, in_order, SHORT)}" if in_order else ""


def pictures(root: Path, page: Path, drawn: Sequence[tuple[Path, str]]) -> str:
    """References to the charts, as seen from the page."""
    return "\n\n".join(
        f"![{alt}]({path.relative_to(root).relative_to(page.parent.relative_to(root)).as_posix()})"
        for path, alt in drawn
    )


def replace(page: Path, content: str, name: str = "benchmark") -> bool:
    """Put the content between the page's markers of that name; False if it has none."""
    text = page.read_text(encoding="utf-8") if page.exists() else ""
    first, last = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    before, begin, rest = text.partition(first)
    _, end, after = rest.partition(last)
    if not begin or not end:
        print(f"{page.name} has no {first} and {last} to write between", file=sys.stderr)
        return False
    page.write_text(f"{before}{begin}\n{content.strip()}\n{end}{after}", encoding="utf-8")
    return True


def write(csv: Path, root: Path) -> int:
    """Draw the charts and write both pages; 1 if one has no place for it."""
    rows = newest(read(csv))
    drawn = charts.draw(rows, root / "docs" / "figures")
    where = origin(rows)
    measured = {name for name, _, _ in rows}
    everything = [full(rows, case) for case in STANDARD if case.name in measured] + [sweeps(rows)]
    everything.append(in_turn(beside.read(csv.with_name(beside.CSV.name))))
    readme, docs = root / "README.md", root / "docs" / "benchmarks.md"
    written = [
        replace(readme, "\n\n".join([comparison(rows, HEADLINE, SHORT), where, pictures(root, readme, drawn[:1])])),
        replace(docs, "\n\n".join([where, pictures(root, docs, drawn), *everything])),
    ]
    return int(not all(written))
