"""Binary codes: the same metrics of Hamming distances, where ties are everywhere."""

import numpy as np
import pytest
import torch

from nearfar.evaluation import pack_bits, retrieval_metrics
from tests.evaluation import reference

G = np.random.default_rng(0)
BITS = G.integers(2, size=(90, 16)).astype(np.uint8)
CODES = np.packbits(BITS, axis=1)
LABELS = G.integers(15, size=90)


def distances(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    return np.array([[sum(int(a) != int(b) for a, b in zip(x, y, strict=True)) for y in right] for x in left])


@pytest.mark.parametrize("ties", ["pessimistic", "optimistic"])
def test_leave_one_out(ties: str) -> None:
    labels = LABELS.tolist()
    expected = reference.retrieval(
        -distances(BITS, BITS), labels, labels, (1, 4), ignored=lambda q, o: q == o, ties=ties
    )
    for options in ({}, {"tile": 17}, {"tile": 40, "memory_budget": 0}):
        assert retrieval_metrics(CODES, LABELS, (1, 4), similarity="hamming", ties=ties, **options) == pytest.approx(
            expected
        )
    tensor = torch.from_numpy(CODES)
    assert retrieval_metrics(tensor, LABELS, (1, 4), similarity="hamming", ties=ties) == pytest.approx(expected)


def test_query_against_gallery_with_cameras() -> None:
    cameras = G.integers(2, size=90)
    q, g = slice(0, 30), slice(30, 90)
    expected = reference.retrieval(
        -distances(BITS[q], BITS[g]),
        LABELS[q].tolist(),
        LABELS[g].tolist(),
        (1, 4),
        ignored=lambda i, j: LABELS[q][i] == LABELS[g][j] and cameras[q][i] == cameras[g][j],
    )
    found = retrieval_metrics(
        CODES[q],
        LABELS[q],
        (1, 4),
        gallery=CODES[g],
        gallery_labels=LABELS[g],
        cameras=cameras[q],
        gallery_cameras=cameras[g],
        similarity="hamming",
    )
    assert found == pytest.approx(expected)


def test_packing() -> None:
    x = np.random.default_rng(1).normal(size=(20, 13))
    x[0, 0] = 0
    codes = pack_bits(x)
    assert codes.shape == (20, 2) and codes.dtype == np.uint8
    np.testing.assert_array_equal(np.unpackbits(codes, axis=1)[:, :13], x > 0)
    np.testing.assert_array_equal(np.unpackbits(codes, axis=1)[:, 13:], 0)
    np.testing.assert_array_equal(pack_bits(torch.from_numpy(x).bfloat16()), codes)
    np.testing.assert_array_equal(pack_bits(np.tile(x, (1000, 1))), np.tile(codes, (1000, 1)))


def test_one_code_for_all_scores_what_it_deserves() -> None:
    same = np.zeros((40, 4), np.uint8)
    assert retrieval_metrics(same, np.arange(40) // 4, [1], similarity="hamming")["recall@1"] == 0


def test_faiss_binary_index() -> None:
    exact = retrieval_metrics(CODES, LABELS, (1, 4), similarity="hamming")
    assert retrieval_metrics(CODES, LABELS, (1, 90), similarity="hamming", index="BFlat")["map"] == pytest.approx(
        exact["map"]
    )
    rough = retrieval_metrics(CODES, LABELS, (1, 4), similarity="hamming", index="BHNSW8")
    assert 0 <= rough["map"] <= exact["map"] + 1e-12


def test_bad_codes() -> None:
    with pytest.raises(TypeError, match=r'similarity="hamming" takes packed codes, uint8: pack_bits\(embeddings\)'):
        retrieval_metrics(BITS.astype(np.float32), LABELS, similarity="hamming")
    with pytest.raises(TypeError, match="not list"):
        retrieval_metrics(CODES.tolist(), LABELS, similarity="hamming")
    with pytest.raises(ValueError, match=r"\(N, bytes\)"):
        retrieval_metrics(CODES[:, 0], LABELS, similarity="hamming")
    with pytest.raises(ValueError, match="not binary codes"):
        retrieval_metrics(CODES, LABELS, similarity="hamming", metrics="nmi")
    with pytest.raises(TypeError, match="floating point, not uint8"):
        retrieval_metrics(CODES, LABELS)
