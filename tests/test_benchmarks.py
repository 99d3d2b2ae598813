"""The benchmark measures what it says: the same mathematics in every implementation, time, memory, and failures."""

import dataclasses
import json
import math
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from benchmarks import beside, cases, peers, regression, results
from benchmarks.__main__ import main
from benchmarks.cases import Case, problem
from benchmarks.implementations import IMPLEMENTATIONS, LIMIT, build, exists, limit
from benchmarks.measure import Candidate, Effort, Times, in_turn, peak_extra_bytes
from benchmarks.run import jobs, run
from benchmarks.settings import VARIANTS, settings
from benchmarks.worker import Request

from nearfar.losses import list_losses

CLASS, PAIR = Case.parse("class-24x40x16"), Case.parse("pair-24x16")
ONCE = Effort(1, 1, 0.0)
PATIENCE = 900  # seconds, for machines that are busy
NO_TIME = 0.0  # seconds, in which no process can start
ROOT = Path(__file__).parents[1]


def gradients(candidate: Candidate) -> list[torch.Tensor]:
    candidate.step()
    found = [p.grad for p in candidate.parameters if p.grad is not None]
    assert len(found) == len(candidate.parameters)
    return found


def alike() -> list[tuple[str, str, Case]]:
    """Every loss of another library that has no "differs" in its note."""
    return [
        (implementation, label, case)
        for implementation in ("pml", "fused-ce")
        for label, setting in settings().items()
        for case in (CLASS, PAIR)
        if setting.fits(case) and exists(implementation, setting, case)
        if implementation != "pml" or not peers.PML[label][1].startswith("differs")
    ]


@pytest.mark.filterwarnings("ignore:Using a non-tuple sequence")  # theirs, of HistogramLoss
@pytest.mark.filterwarnings("ignore:Values of Tp or Tn")  # theirs, of RankedListLoss
@pytest.mark.filterwarnings("ignore:__array_wrap__:DeprecationWarning")  # theirs, of their binomials
@pytest.mark.parametrize(("implementation", "label", "case"), alike(), ids=lambda x: getattr(x, "name", x))
def test_peers_compute_the_same(implementation: str, label: str, case: Case) -> None:
    if implementation == "pml":
        pytest.importorskip("pytorch_metric_learning")
    elif not hasattr(torch.nn.functional, "linear_cross_entropy"):
        pytest.skip("this torch has no linear_cross_entropy")
    ours, theirs = (gradients(build(name, settings()[label], problem(case))) for name in ("nearfar", implementation))
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        b = b if a.shape == b.shape else b.t()
        assert a.abs().max() > 0
        torch.testing.assert_close(b, a, rtol=2e-3, atol=2e-5 * a.abs().max().item())


def test_every_registered_loss_is_measured() -> None:
    measured = {loss for _, loss, implementation in jobs([(CLASS, None), (PAIR, None)], ["nearfar"])}
    assert measured == {info.name for info in list_losses()} | set(VARIANTS)
    assert set(peers.PML) | set(peers.FUSED) <= measured


def test_case_names_are_read_back() -> None:
    everything = [*cases.STANDARD, *cases.QUICK, *cases.CHECK, *(case for case, _ in cases.SCALE)]
    assert [Case.parse(case.name) for case in everything] == everything
    with pytest.raises(ValueError, match="no case"):
        Case.parse("pair-3x4x5")


def test_the_data_are_as_said() -> None:
    data = problem(Case.parse("class-64x100x256"))
    assert data.weight is not None
    own = torch.cosine_similarity(data.embeddings, data.weight[data.labels])
    assert 0.6 < own.mean() < 0.8
    x = torch.nn.functional.normalize(problem(Case.parse("pair-64x256")).embeddings)
    assert 0.4 < (x[::4] * x[1::4]).sum(1).mean() < 0.6
    assert torch.bincount(problem(PAIR).labels).tolist() == [4] * 6


def test_limit_is_the_three_products() -> None:
    data = problem(CLASS)
    products = limit(data)
    dx, dw = products.run()
    s = data.embeddings.detach() @ data.weight.T
    torch.testing.assert_close(dx, s @ data.weight)
    torch.testing.assert_close(dw, s.T @ data.embeddings.detach())
    assert products.gradient_bytes == dx.nbytes + dw.nbytes


def test_memory_is_what_the_step_holds_beyond_its_gradients() -> None:
    size = 8 * 2**20  # floats: 32 MiB
    x = torch.zeros(size, requires_grad=True)

    def holds_two() -> None:
        held = torch.ones(size), torch.ones(size)
        x.grad = held[0] + 1

    peak = peak_extra_bytes(Candidate(holds_two, [x]))
    if peak is None:
        pytest.skip("no /proc/self/clear_refs")
    assert abs(peak - 2 * x.nbytes) < 0.1 * x.nbytes


MEMORY = """
import itertools
import torch
from benchmarks.cases import Case, problem
from benchmarks.implementations import build
from benchmarks.measure import peak_extra_bytes
from benchmarks.settings import settings

step = build("dense", settings()["CircleLoss"], problem(Case.parse("pair-1500x16")))
step.step()
step.step()  # now the allocator keeps blocks of this size, as it does after the timed steps
peak = peak_extra_bytes(step)
step.clear()
with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
    step.step()
events = profile.profiler.kineto_results.events()
held = list(itertools.accumulate(event.nbytes() for event in events if event.name() == "[memory]"))
print(peak, max(held) - step.gradient_bytes)
"""


def test_memory_is_what_the_profiler_counts() -> None:
    """In a process of its own, as every measurement is: other tests leave holes in the heap."""
    result = subprocess.run([sys.executable, "-c", MEMORY], capture_output=True, text=True, check=True, cwd=ROOT)
    peak, counted = result.stdout.split()
    if peak == "None":
        pytest.skip("no /proc/self/clear_refs")
    # Resident memory never shows less than what is held; holes in the heap can make it show more.
    assert 0.97 * int(counted) < int(peak) < 3 * int(counted)


def test_times_are_taken_in_turn() -> None:
    order = []
    step, lim = in_turn(lambda: order.append("step"), lambda: order.append("limit"), Effort(2, 2, 0.0))
    assert len(step.seconds) == len(lim.seconds) == 2
    turns = re.sub(r"(.)\1+", r"\1", "".join(name[0] for name in order))  # repeats within a turn count once
    assert turns == "lslsls"
    assert Times([1.0, 2.0, 4.0]).quantile(0.5) == 2.0
    assert Times([1.0, 2.0, 4.0]).quantile(0.75) == 3.0


def test_a_process_measures_one_implementation() -> None:
    row = run(Request(CLASS.name, "CosFaceLoss", "nearfar", effort=ONCE, threads=1), PATIENCE)
    assert row.status == "ok"
    assert row.p50_ms > 0 and row.limit_ms > 0
    rounded = 0.0005  # each of the three, at most
    assert abs(row.ratio * row.limit_ms - row.p50_ms) <= rounded * (1.01 + row.ratio + row.limit_ms)
    assert row.cores == 1


def test_running_out_of_memory_is_a_row() -> None:
    row = run(Request("pair-65536x8", "CircleLoss", "dense", memory_gib=4, effort=ONCE, threads=1), PATIENCE)
    assert (row.status, row.ratio) == ("out of memory", None)


def test_running_out_of_time_is_a_row() -> None:
    assert run(Request(CLASS.name, LIMIT, "limit", effort=ONCE), NO_TIME).status == "timeout"


def test_an_error_is_a_row() -> None:
    row = run(Request(PAIR.name, "CosFaceLoss", "nearfar", effort=ONCE), PATIENCE)
    assert row.status.startswith("error: InputTypeError")


def test_two_libraries_take_turns(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(beside, "SECONDS", 0.0)
    row = beside.compare(CLASS, "CosFaceLoss", PATIENCE, threads=1)
    assert (row.status, row.turns) == ("ok", beside.FEWEST)
    assert row.nearfar_ms > 0 and row.pml_ms > 0
    assert 0 < row.p20 <= row.p50 <= row.p80
    path = tmp_path / "beside.csv"
    results.append(row, path)
    assert beside.cell(beside.read(path)[CLASS.name, "CosFaceLoss"]).startswith(f"{row.p50:.2f} (")


def test_ratios_are_of_turn_after_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """By hand: the quotients 0.5, 0.25 and 2, of which the quotient of the medians, 3 / 4, is none."""
    turns = [(0.002, 0.004), (0.003, 0.012), (0.006, 0.003)]
    monkeypatch.setattr(beside, "_turns", lambda *_: ("ok", turns))
    row = beside.compare(CLASS, "CosFaceLoss", PATIENCE, threads=1)
    assert (row.nearfar_ms, row.pml_ms, row.turns) == (3.0, 4.0, 3)
    assert (row.p20, row.p50, row.p80) == (0.35, 0.5, 1.4)


def test_a_library_that_cannot_take_its_turn() -> None:
    row = beside.compare(PAIR, "DynamicSoftMarginLoss", PATIENCE, threads=1)
    assert row.status.startswith("pml: error: RuntimeError") and row.p50 is None
    assert beside.cell({"status": row.status}) == "error"
    assert beside.compare(CLASS, "CosFaceLoss", NO_TIME, threads=1).status == "nearfar: timeout"


def test_a_library_whose_process_ends() -> None:
    player = beside.Player(Request(CLASS.name, "CosFaceLoss", "nearfar", threads=1))
    player._process.kill()  # as the kernel does where there is no memory left
    player._process.wait()
    with pytest.raises(beside.TurnError, match="nearfar: out of memory"):
        player.turn(PATIENCE)
    player.end()


def test_the_table_of_turns() -> None:
    pytest.importorskip("matplotlib")
    from benchmarks import tables

    some = {"date": "2000-01-01T00:00:00Z", "commit": "c", "status": "ok", "p20": "0.51", "p50": "0.6", "p80": "0.7"}
    rows = {("pair-8x8", "CircleLoss"): some, ("pair-16x8", "NCALoss"): some | {"status": "pml: out of memory"}}
    table = tables.in_turn(rows)
    assert "| `CircleLoss` | 0.60 (0.51 to 0.70) |  |" in table
    assert "| `NCALoss` |  | out of memory |" in table
    assert tables.in_turn({}) == ""


def test_messages_lose_their_paths() -> None:
    assert results.without_paths("in /home/me/x.py: 3 / 4 of a/b") == "in …: 3 / 4 of a/b"


def row(case: str, loss: str, implementation: str, **columns: object) -> results.Row:
    plain = {"date": "2000-01-01T00:00:00Z", "commit": "c", "cpu": "p", "cores": 2, "torch": "t", "status": "ok"}
    return results.Row(**plain | {"case": case, "loss": loss, "implementation": implementation} | columns)


def test_rows_are_appended_and_the_newest_counts(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    written = [
        row("pair-8x8", "CircleLoss", "nearfar", ratio=2.0, note='a, "b"'),
        row("pair-8x8", "CircleLoss", "pml", status="out of memory"),
        row("pair-8x8", "CircleLoss", "nearfar", ratio=1.0),
    ]
    for one in written:
        results.append(one, path)
    assert results.read(path) == written
    assert results.newest(written)["pair-8x8", "CircleLoss", "nearfar"].ratio == 1.0
    assert path.read_text().splitlines()[0] == (
        "date,commit,cpu,cores,torch,case,loss,implementation,status,p20_ms,p50_ms,p80_ms,limit_ms,ratio,peak_mb,note"
    )


def test_tables_and_charts_come_from_the_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")

    csv = tmp_path / "rows.csv"
    some = {"p50_ms": 10.0, "limit_ms": 8.0, "ratio": 1.25, "peak_mb": 31.4}
    for case in ("pair-4096x512", "pair-1024x512", "pair-256x128", "pair-512x128"):
        results.append(row(case, LIMIT, "limit", **some), csv)
        results.append(row(case, "CircleLoss", "nearfar", **some), csv)
        results.append(row(case, "CircleLoss", "pml", **some | {"ratio": 12.3, "peak_mb": 1234.0}), csv)
        results.append(row(case, "CircleLoss", "dense", status="out of memory"), csv)
    readme, docs = tmp_path / "README.md", tmp_path / "docs" / "benchmarks.md"
    docs.parent.mkdir()
    docs.write_text(f"before\n{'<!-- benchmark:begin -->'}\nold\n{'<!-- benchmark:end -->'}\nafter\n")
    readme.write_text("no place")
    assert main(["tables", "--csv", str(csv), "--root", str(tmp_path)]) == 1
    assert "README.md has no" in capsys.readouterr().err
    readme.write_text(f"before\n{'<!-- benchmark:begin -->'}{'<!-- benchmark:end -->'}\nafter\n")
    assert main(["tables", "--csv", str(csv), "--root", str(tmp_path)]) == 0
    text = readme.read_text()
    assert text.startswith("before\n") and text.endswith("after\n")
    assert "| `CircleLoss` | 4,096 × 4,096 × 512 | **1.25 ×, 31 MB** | 12 ×, 1.2 GB |  | out of memory |" in text
    assert "old" not in docs.read_text()
    for page in (readme, docs):
        pictures = re.findall(r"\]\((.+?)\)", page.read_text())
        assert pictures and all((page.parent / picture).stat().st_size > 1000 for picture in pictures)
    again = docs.read_text()
    assert main(["tables", "--csv", str(csv), "--root", str(tmp_path)]) == 0
    assert docs.read_text() == again


@pytest.mark.parametrize(
    ("ratio", "worse"), [(1.0, False), (1.24, False), (1.26, True), (0.9, False), (math.inf, True)]
)
def test_worse_is_more_than_a_quarter(ratio: float, worse: bool) -> None:
    assert regression.is_worse(ratio, 1.0) == worse


def test_small_ratios_have_some_slack() -> None:
    assert not regression.is_worse(0.14, 0.1)
    assert regression.is_worse(0.16, 0.1)


def test_the_check_fails_on_what_got_worse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ratios = {"CircleLoss": 1.0}
    tries = []

    def fake(request: Request, seconds: float) -> results.Row:
        tries.append(request.loss)
        ratio = ratios.get(request.loss, 1.0)
        return row(request.case, request.loss, request.implementation, ratio=ratio)

    monkeypatch.setattr(regression, "run", fake)
    path = tmp_path / "expected.json"
    assert regression.check(path=path) == 1  # nothing to compare with
    assert regression.check(update=True, path=path) == 0
    assert "pair-1024x512,CircleLoss" in json.loads(path.read_text())["ratios"]
    assert regression.check(path=path) == 0
    ratios["CircleLoss"] = 1.5
    tries.clear()
    assert regression.check(path=path) == 1
    assert "WORSE by 50%" in capsys.readouterr().out
    assert tries.count("CircleLoss") == 2 * regression.TRIES  # at both levels, each tried again
    assert tries.count("CosFaceLoss") == 1


def test_a_limit_row_for_every_case() -> None:
    found = jobs([(CLASS, ["CosFaceLoss"]), (PAIR, ["CosFaceLoss"])], IMPLEMENTATIONS)
    assert found == [
        (CLASS.name, LIMIT, "limit"),
        *((CLASS.name, "CosFaceLoss", name) for name in ("nearfar", "dense", "compiled", "pml")),
        (PAIR.name, LIMIT, "limit"),
    ]


def test_rows_say_what_differs() -> None:
    assert row("pair-8x8", "MarginLoss", "pml", note=peers.PML["MarginLoss"][1]).differs
    assert not dataclasses.replace(row("pair-8x8", "x", "pml"), note="mean over all rows").differs
