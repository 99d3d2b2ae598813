"""How the ranks are come by: approximate indexes, threads, memory, progress."""

import sys
import tracemalloc
from typing import Any

import numpy as np
import pytest
import torch

from nearfar.evaluation import (
    KReciprocal,
    augment_database,
    diagnose,
    expand_queries,
    identification_metrics,
    pack_bits,
    progress,
    rank_metrics,
    retrieval_metrics,
    search,
)
from nearfar.evaluation.metrics import NOT_FOUND, Ranks, evaluate
from nearfar.evaluation.workers import workers

G = np.random.default_rng(0)
CENTRES = G.normal(size=(40, 16))
LABELS = G.integers(40, size=400)
X = (CENTRES[LABELS] + 1.5 * G.normal(size=(400, 16))).astype(np.float32)
NEVER_LATE = (
    "recall@1",
    "recall@8",
    "precision@8",
    "ndcg@8",
    "map@r",
    "r_precision",
)  # what the first neighbours decide


@pytest.mark.parametrize("similarity", ["cosine", "dot", "l2"])
def test_an_index_that_finds_everything_is_exact(similarity: Any) -> None:
    exact = retrieval_metrics(X, LABELS, similarity=similarity)
    assert 0.2 < exact["recall@1"] < 0.9
    found = retrieval_metrics(X, LABELS, similarity=similarity, index="Flat")
    for name in NEVER_LATE:
        assert found[name] == pytest.approx(exact[name]), name
    assert found["map"] < exact["map"]  # later matches are not looked for
    deep = retrieval_metrics(X, LABELS, ks=(400,), similarity=similarity, index="Flat")
    assert deep["map"] == pytest.approx(exact["map"], rel=1e-4)  # distances of float32 tie a little more often
    half = slice(0, 200), slice(200, 400)
    options = {"gallery": X[half[1]], "gallery_labels": LABELS[half[1]], "similarity": similarity, "ks": (200,)}
    both = (retrieval_metrics(X[half[0]], LABELS[half[0]], index=index, **options) for index in (None, "Flat"))
    assert next(both) == pytest.approx(next(both), rel=1e-4)


@pytest.mark.parametrize("ties", ["pessimistic", "optimistic"])
def test_ties_in_an_index(ties: Any) -> None:
    x, labels = np.tile(X[:1], (40, 1)), np.arange(40) // 4
    exact = retrieval_metrics(x, labels, ks=(1, 40), ties=ties)
    assert retrieval_metrics(x, labels, ks=(1, 40), ties=ties, index="Flat") == pytest.approx(exact)


def test_an_index_of_binary_codes_is_exact_but_for_late_matches() -> None:
    """Nearly everything ties: who ties with the last of a list may have negatives beyond it that stand before."""
    codes = pack_bits(X[:, :8])
    exact = retrieval_metrics(codes, LABELS, similarity="hamming")
    found = retrieval_metrics(codes, LABELS, similarity="hamming", index="BFlat")
    for name in NEVER_LATE:
        assert found[name] == pytest.approx(exact[name]), name
    assert exact["r_precision"] > 0 and found["map"] < exact["map"]


def test_junk_is_not_in_an_index() -> None:
    labels = np.where(LABELS < 20, -1, LABELS)
    options = {"gallery": X, "gallery_labels": labels, "cameras": np.arange(400), "gallery_cameras": np.arange(400)}
    exact, found = (retrieval_metrics(X, LABELS, index=index, **options) for index in (None, "Flat"))
    for name in NEVER_LATE:
        assert found[name] == pytest.approx(exact[name]), name


def test_an_approximate_index_costs_something() -> None:
    exact = retrieval_metrics(X, LABELS)
    one, many = (retrieval_metrics(X, LABELS, index=f"IVF8,Flat;nprobe={n}") for n in (1, 8))
    assert one["recall@8"] < exact["recall@8"]
    assert many["recall@8"] == pytest.approx(exact["recall@8"])


def test_names_that_are_no_index() -> None:
    with pytest.raises(ValueError, match="index='Flatt' is not a FAISS index of 16 dimensions"):
        retrieval_metrics(X, LABELS, index="Flatt")
    with pytest.raises(ValueError, match="index='IVF8,Flat;probes=3' is not a FAISS index"):
        retrieval_metrics(X, LABELS, index="IVF8,Flat;probes=3")


def test_what_is_not_found_adds_nothing() -> None:
    ranks = Ranks.of(np.array([2, NOT_FOUND, NOT_FOUND, NOT_FOUND]), np.array([2, 2]))
    found = evaluate(
        ranks, ["recall@1000", "precision@4", "ndcg@4", "map@r", "r_precision", "map", "map_trapezoid", "mrr", "minp"]
    )
    for name, (first, second) in found.items():
        assert second == 0 and (first > 0) == (name != "minp"), name
    assert found["map"][0] == found["map@r"][0] == 1 / 4
    assert found["map_trapezoid"][0] == (0 + 1 / 2) / 2 / 2


@pytest.mark.parametrize("threads", [1, 3])
def test_threads_are_given_back(threads: int) -> None:
    before = torch.get_num_threads()
    expected = retrieval_metrics(X, LABELS)
    try:
        torch.set_num_threads(threads)
        assert retrieval_metrics(X, LABELS, tile=64) == expected
        assert torch.get_num_threads() == threads
        with pytest.raises(ZeroDivisionError), workers(4, torch.device("cpu")) as team:
            team.run(lambda memory, i=i: memory.fill_(1 / (2 - i)) for i in range(4))
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)


def test_many_pairs_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where classes are so large that the pairs of all queries would not fit in memory."""
    labels = LABELS % 2
    expected = retrieval_metrics(X, labels)
    monkeypatch.setattr(search, "PAIRS_AT_A_TIME", 3000)
    assert retrieval_metrics(X, labels) == expected
    monkeypatch.setattr(search, "PAIRS_AT_A_TIME", 1)
    assert retrieval_metrics(X[:50], labels[:50]) == retrieval_metrics(X[:50], labels[:50], memory_budget=0)


def test_imprecise_products_only_cost_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch can be told to multiply with fewer digits: as if it were, every product is rounded."""
    expected = retrieval_metrics(X, LABELS)
    multiply = torch.mm

    def roughly(left: torch.Tensor, right: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        if left.dtype == torch.float64:
            return multiply(left, right)
        product = multiply(left.bfloat16().float(), right.bfloat16().float())
        return product if out is None else out.copy_(product)

    monkeypatch.setattr(torch, "mm", roughly)
    assert retrieval_metrics(X, LABELS, tile=64) == expected


def test_memory_is_bounded() -> None:
    """No matrix of queries × gallery, no copy of what is beyond the budget, as far as numpy knows."""
    g = np.random.default_rng(1)
    y, labels = g.normal(size=(60_000, 32)).astype(np.float32), g.integers(20_000, size=60_000)
    tracemalloc.start()
    retrieval_metrics(y[:500], labels[:500], gallery=y, gallery_labels=labels, memory_budget=0)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 3e7


def test_progress(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    retrieval_metrics(X, LABELS)
    assert capsys.readouterr().err == ""
    retrieval_metrics(X, LABELS, progress=True)
    assert "retrieval:   0%" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "tqdm", None)
    retrieval_metrics(X, LABELS)
    with pytest.raises(ImportError, match=r"pip install 'nearfar\[evaluation\]'"):
        progress.Progress(1, "x", True)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"tile": 64},
        {"tile": 64, "memory_budget": 0},
        {"gallery": X, "gallery_labels": LABELS},
        {"index": "Flat"},
    ],
)
@pytest.mark.filterwarnings("ignore:the gallery is the same as the queries")
def test_progress_adds_up(options: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[int] = []
    totals: list[int] = []
    start = progress.Progress.__init__
    monkeypatch.setattr(
        progress.Progress, "__init__", lambda self, total, *rest: (totals.append(total), start(self, total, *rest))[1]
    )
    monkeypatch.setattr(progress.Progress, "__call__", lambda self, amount: told.append(amount))
    labels = LABELS.copy()
    labels[:3] = [1001, 1002, 1003]  # who have no match are done at once
    retrieval_metrics(X, labels, **options)
    assert sum(told) == sum(totals) == 400 * 400


@pytest.mark.parametrize(
    ("work", "pairs"),
    [
        (lambda: identification_metrics(X, LABELS, distractors=X[:70], progress=True), 400 * 470),
        (lambda: diagnose(X, LABELS, anchors=150, progress=True), 150 * 400),
        (lambda: KReciprocal(X[:90], X, progress=True), 490 * 490),
        (lambda: expand_queries(X[:90], X, progress=True), 90 * 400),
        (lambda: augment_database(X, progress=True), 400 * 400),
        (lambda: rank_metrics(lambda rows: torch.from_numpy(X[rows] @ X.T), LABELS, block=70, progress=True), 400**2),
    ],
)
def test_progress_of_other_long_work(work: Any, pairs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[int] = []
    totals: list[int] = []
    start = progress.Progress.__init__
    monkeypatch.setattr("nearfar.evaluation.neighbours.SIMILARITIES_AT_A_TIME", 2**14)
    monkeypatch.setattr(
        progress.Progress, "__init__", lambda self, total, *rest: (totals.append(total), start(self, total, *rest))[1]
    )
    monkeypatch.setattr(progress.Progress, "__call__", lambda self, amount: told.append(amount))
    work()
    assert sum(told) == sum(totals) == pairs
