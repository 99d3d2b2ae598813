"""What may be handed in, and what is answered to what may not."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from nearfar.evaluation import rank_metrics, retrieval_metrics

G = np.random.default_rng(0)
# Numbers that every width holds exactly.
X = G.integers(-8, 9, (60, 4)).astype(np.float32) / 8
LABELS = G.integers(12, size=60)
EXPECTED = retrieval_metrics(X, LABELS)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_tensors(dtype: torch.dtype) -> None:
    x = torch.from_numpy(X).to(dtype).requires_grad_()
    assert retrieval_metrics(x, torch.from_numpy(LABELS)) == EXPECTED


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, ">f4", ">f8"])
def test_arrays(dtype: Any) -> None:
    assert retrieval_metrics(X.astype(dtype), LABELS) == EXPECTED
    assert retrieval_metrics(np.asfortranarray(X.astype(dtype)), LABELS.tolist()) == EXPECTED
    assert retrieval_metrics(np.repeat(X.astype(dtype), 2, 0)[::2], LABELS) == EXPECTED


def test_mixed_kinds() -> None:
    both = retrieval_metrics(X, LABELS, gallery=X.copy(), gallery_labels=LABELS)
    mixed = retrieval_metrics(
        torch.from_numpy(X).half(),
        LABELS.tolist(),
        gallery=X.astype(np.float64),
        gallery_labels=torch.from_numpy(LABELS),
    )
    assert mixed == both


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("memory_budget", [0, 2**28])
def test_memory_maps(tmp_path: Path, dtype: Any, memory_budget: int) -> None:
    np.save(tmp_path / "x.npy", X.astype(dtype))
    x = np.load(tmp_path / "x.npy", mmap_mode="r")
    assert retrieval_metrics(x, LABELS, memory_budget=memory_budget, tile=16) == EXPECTED


def test_a_memory_map_is_never_read_whole() -> None:
    class Watched(np.ndarray):
        def __getitem__(self, part: Any) -> Any:
            found = np.ndarray.__getitem__(self, part)
            most.append(len(found))
            return np.asarray(found)

    g = np.random.default_rng(1)
    x, labels = g.normal(size=(40_000, 256)).astype(np.float32), np.arange(40_000) // 2
    for budget in (0, 2**28):
        most: list[int] = []
        retrieval_metrics(
            X[:10].repeat(64, 1), labels[:10], gallery=x.view(Watched), gallery_labels=labels, memory_budget=budget
        )
        assert most and max(most) <= 2**24 // (256 * 4)


@pytest.mark.parametrize(
    "convert",
    [
        lambda c: c.astype(np.int8),
        lambda c: c.astype(np.uint64) + np.uint64(2**63),
        lambda c: c + 2**53,  # neighbours are one float64
        lambda c: -(2**62) + c,
        lambda c: np.array([f"class {i}" for i in c]),
        lambda c: [f"class {i}" for i in c],
        lambda c: np.array([f"class {i}".encode() for i in c]),
        lambda c: np.array([("tuple", int(i)) for i in c] + [None], dtype=object)[:-1],
        lambda c: torch.from_numpy(c).to(torch.int32),
        lambda c: np.datetime64("2020-01-01") + c,
        lambda c: [2**70 + int(i) for i in c],
        lambda c: [2**63 + int(i) if i % 2 else -int(i) for i in c],  # which numpy would make floats
        lambda c: [int(i // 2) if i % 2 else str(i // 2) for i in c],  # which numpy would make equal
        lambda c: tuple(c.tolist()),
    ],
)
def test_any_label(convert: Any) -> None:
    assert retrieval_metrics(X, convert(LABELS)) == EXPECTED


def test_labels_of_two_widths() -> None:
    both = retrieval_metrics(X, LABELS, gallery=X.copy(), gallery_labels=LABELS)
    big = LABELS + 2**53
    options = {"gallery": X.copy(), "gallery_labels": big.astype(np.uint64)}
    assert retrieval_metrics(X, big.astype(np.int64), **options) == both  # which numpy would compare as float64
    assert (
        retrieval_metrics(X, LABELS.astype(np.int16), gallery=X.copy(), gallery_labels=LABELS.astype(np.uint8)) == both
    )


@pytest.mark.parametrize("missing", [None, float("nan"), np.datetime64("NaT")])
def test_missing_labels(missing: Any) -> None:
    labels = np.array([f"class {i}" for i in LABELS], dtype=object)
    labels[[7, 9]] = missing
    with pytest.raises(ValueError, match=r"2 of 60 labels are missing \(None, NaN or NaT; first: 7\)"):
        retrieval_metrics(X, labels)


@pytest.mark.parametrize("junk", [3, np.int64(3), [3], (3,), {3}, np.array([3]), torch.tensor([3]), torch.tensor(3)])
def test_junk_of_any_kind(junk: Any) -> None:
    kept = LABELS != 3
    expected = retrieval_metrics(X[kept], LABELS[kept])
    found = retrieval_metrics(X, LABELS, junk=junk)
    assert {**found, "queries_without_match": 0} == pytest.approx(expected | {"queries_without_match": 0})
    assert found["queries_without_match"] - expected["queries_without_match"] == (~kept).sum() > 0


def test_ks_may_be_an_array() -> None:
    assert retrieval_metrics(X, LABELS, np.array([1, 2, 4, 8])) == EXPECTED
    assert retrieval_metrics(X, LABELS, [10**12])["ndcg@1000000000000"] < 1


def test_bad_rows_are_counted_and_named() -> None:
    x = X.copy()
    x[3, 1], x[17, 0], x[41, 2] = np.nan, np.inf, -np.inf
    with pytest.raises(ValueError, match=r"3 of 60 embeddings hold NaN or infinity .*: rows 3, 17, 41\."):
        retrieval_metrics(x, LABELS)
    for options in ({}, {"memory_budget": 0, "tile": 16}):
        with pytest.raises(ValueError, match=r"3 of 60 gallery hold NaN or infinity .*: rows 3, 17, 41\."):
            retrieval_metrics(X, LABELS, gallery=x, gallery_labels=LABELS, **options)
    x[:30, 0] = np.nan
    with pytest.raises(ValueError, match=r"31 of 60 .*: rows 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, …"):
        retrieval_metrics(x, LABELS, similarity="l2")
    beyond = X.astype(np.float64)
    beyond[5, 0] = 1e300
    with pytest.raises(ValueError, match=r"1 of 60 .* beyond float32\): row 5\."):
        retrieval_metrics(beyond, LABELS)


def test_large_and_small_numbers() -> None:
    for scale in (1e-30, 1e30):
        assert retrieval_metrics(X * np.float32(scale), LABELS)["map"] == pytest.approx(EXPECTED["map"])
    for similarity in ("dot", "l2"):
        with pytest.raises(ValueError, match="exceeds float32: divide"):
            retrieval_metrics(X * np.float32(1e30), LABELS, similarity=similarity)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((X[:, 0], LABELS), ValueError, r"must be \(N, dimension\)"),
        ((X[:, :0], LABELS), ValueError, "no dimensions"),
        ((X.tolist(), LABELS), TypeError, "torch.Tensor or a numpy array, not list"),
        ((X.astype(int), LABELS), TypeError, "floating point"),
        ((torch.from_numpy(X).to_sparse(), LABELS), TypeError, r"sparse_coo tensor: call to_dense"),
        ((np.ma.masked_array(X, X > 0.5), LABELS), TypeError, "masked array"),
        (
            (X.astype(np.float64) * 1e-60, LABELS),
            ValueError,
            "at least 60 of 60 .* so small that they are zero in float32",
        ),
        ((X, np.array([[1], *range(59)], dtype=object)), TypeError, "unhashable type: 'list'.*: give integers"),
        ((X, LABELS[:59]), ValueError, "59 labels for 60 embeddings"),
        ((X, LABELS.astype(np.float64)), TypeError, "cannot hold every integer"),
        ((X, torch.from_numpy(LABELS).float()), TypeError, "integers or strings"),
        ((X, LABELS[:, None]), ValueError, r"must be \(N,\)"),
        ((X, np.zeros(60, int)), ValueError, "there are no negatives"),
        ((X, np.arange(60)), ValueError, "none of the 60 queries has a match"),
        ((X[:0], LABELS[:0]), ValueError, "no queries"),
        ((X[:1], LABELS[:1]), ValueError, "there are no negatives"),
    ],
)
def test_wrong_arguments(arguments: tuple, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        retrieval_metrics(*arguments)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"gallery": X}, ValueError, "gallery and gallery_labels go together"),
        ({"gallery_labels": LABELS}, ValueError, "go together"),
        ({"gallery": X[:0], "gallery_labels": LABELS[:0]}, ValueError, "gallery is empty"),
        ({"gallery": X[:, :2], "gallery_labels": LABELS}, ValueError, "4 dimensions, but the gallery has 2"),
        ({"gallery": X.copy(), "gallery_labels": LABELS[:9]}, ValueError, "9 gallery_labels for 60 gallery embeddings"),
        ({"gallery": X.copy(), "gallery_labels": LABELS.astype(str)}, TypeError, "never be equal"),
        ({"gallery": X.copy(), "gallery_labels": LABELS, "cameras": LABELS}, ValueError, "need gallery_cameras"),
        ({"gallery_cameras": LABELS}, ValueError, "gallery_cameras need cameras"),
        ({"cameras": LABELS, "gallery_cameras": LABELS}, ValueError, "need a gallery"),
        ({"cameras": LABELS[:4]}, ValueError, "4 cameras for 60"),
        ({"ids": LABELS[:4]}, ValueError, "4 ids for 60"),
        ({"gallery": X.copy(), "gallery_labels": LABELS * 0}, ValueError, "all gallery items have the same label"),
        ({"junk": "3"}, TypeError, "junk='3' can never be equal to labels that are int64"),
        ({"ks": 5}, TypeError, r"ks must be a sequence of whole numbers such as \(5,\)"),
        ({"ks": (0,)}, ValueError, "whole numbers from 1 up, not 0"),
        ({"ks": (1.5,)}, ValueError, "whole numbers from 1 up, not 1.5"),
        ({"ks": (), "metrics": "recall"}, ValueError, "needs ks"),
        ({"metrics": ("recal@1",)}, ValueError, "no metric 'recal@1': did you mean recall@1"),
        ({"metrics": "recall@0"}, ValueError, "no metric 'recall@0'"),
        ({"similarity": "cosinus"}, ValueError, "similarity must be one of"),
        ({"ties": "random"}, ValueError, "ties must be one of"),
        ({"tile": 0}, ValueError, "tile=0 must be at least 1"),
        ({"memory_budget": -1}, ValueError, "not negative"),
        ({"ci": True, "confidence": 95}, ValueError, "confidence must be between 0 and 1"),
    ],
)
def test_wrong_options(options: dict, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        retrieval_metrics(X, LABELS, **options)


def test_wrong_scores() -> None:
    with pytest.raises(ValueError, match=r"rows\(0:60\) returned \(60, 59\) similarities, not \(60, 60\)"):
        rank_metrics(lambda rows: torch.zeros(60, 59), LABELS)
    bad = torch.zeros(60, 60)
    bad[7, 3], bad[30, 1] = torch.nan, torch.inf
    with pytest.raises(ValueError, match=r"similarities of 1 queries \(first: 7\) are not finite"):
        rank_metrics(lambda rows: bad[rows], LABELS, block=20)
    with pytest.raises(ValueError, match="nmi need embeddings"):
        rank_metrics(lambda rows: bad[rows], LABELS, metrics="nmi")
    with pytest.raises(ValueError, match="ties must be"):
        rank_metrics(lambda rows: bad[rows], LABELS, ties="x")
    with pytest.raises(TypeError, match=r"must return a torch\.Tensor, not ndarray"):
        rank_metrics(lambda rows: bad[rows].numpy(), LABELS)
    for options in ({"tolerance": -1}, {"tolerance": float("nan")}, {"block": 0}):
        with pytest.raises(ValueError, match=r"must not be negative, and block=.* must be at least 1"):
            rank_metrics(lambda rows: torch.zeros(60, 60)[rows], LABELS, **options)


def test_duplicates_are_found() -> None:
    """Every picture twice, once under each of two names: a match and a negative are equal."""
    x = np.repeat(X[:20], 2, 0)
    right = retrieval_metrics(x, np.arange(40) // 2, [1])["recall@1"]
    distinct = len(np.unique(X[:20], axis=0)) == 20
    assert distinct and right == 1
    assert retrieval_metrics(np.tile(x, (2, 1)), np.arange(80) // 2, [1])["recall@1"] == 0


def test_a_gallery_of_the_queries_is_warned_of() -> None:
    x = torch.from_numpy(X)
    for queries, gallery in ((X, X), (X, X[:]), (x, x), (x, x.view_as(x))):
        with pytest.warns(UserWarning, match="each finds itself first: leave the gallery out"):
            found = retrieval_metrics(queries, LABELS, gallery=gallery, gallery_labels=LABELS)
        assert found["recall@1"] == 1
    rows = np.arange(len(X))
    alike = retrieval_metrics(X, LABELS, gallery=X, gallery_labels=LABELS, ids=rows, gallery_ids=rows)
    assert alike == EXPECTED  # no warning: ids tell an item from itself
