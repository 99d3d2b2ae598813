"""Verification metrics against scikit-learn, loops over every threshold, and cases worked by hand."""

import itertools

import numpy as np
import pytest
import torch
from sklearn import metrics as sklearn_metrics

from nearfar.evaluation import fold_accuracies, pair_scores, roc_curve, verification_metrics


def some_pairs(seed: int, n: int = 400, steps: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Scores that overlap; with `steps`, rounded so that many tie."""
    rng = np.random.default_rng(seed)
    same = rng.random(n) < 0.4
    scores = rng.normal(same * 1.5, 1.0)
    if steps:
        scores = np.round(scores * steps) / steps
        assert len(np.unique(scores)) < n / 4  # else nothing ties
    return scores, same


def naive_rates(scores: np.ndarray, same: np.ndarray, threshold: float) -> tuple[float, float]:
    tar = sum(1 for s, k in zip(scores, same, strict=True) if k and s >= threshold) / int(same.sum())
    far = sum(1 for s, k in zip(scores, same, strict=True) if not k and s >= threshold) / int((~same).sum())
    return far, tar


@pytest.mark.parametrize("steps", [0, 2])
@pytest.mark.parametrize("seed", range(3))
def test_against_scikit_learn(seed: int, steps: int) -> None:
    scores, same = some_pairs(seed, steps=steps)
    roc = roc_curve(scores, same)
    far, tar, thresholds = sklearn_metrics.roc_curve(same, scores, drop_intermediate=False)
    np.testing.assert_array_equal(roc.thresholds, thresholds)
    np.testing.assert_allclose(roc.far, far, rtol=1e-15)
    np.testing.assert_allclose(roc.tar, tar, rtol=1e-15)
    found = verification_metrics(scores, same, fars=())
    assert found["auc"] == pytest.approx(sklearn_metrics.roc_auc_score(same, scores), abs=1e-12)
    assert found["pairs"] == len(scores) and found["same_pairs"] == same.sum()


@pytest.mark.parametrize("steps", [0, 2])
@pytest.mark.parametrize("seed", range(3))
def test_against_loops_over_every_threshold(seed: int, steps: int) -> None:
    scores, same = some_pairs(seed, 150, steps)
    points = [(t, *naive_rates(scores, same, t)) for t in [np.inf, *np.unique(scores)]]
    fars = (0.0, 0.01, 0.05, 0.3, 1.0)
    with pytest.warns(UserWarning, match=r"FAR 0\.01 cannot be measured"):
        found = verification_metrics(scores, same, fars=fars)
    for far in fars:
        assert found[f"tar@far={far:g}"] == max(tar for _, f, tar in points if f <= far)
        at = naive_rates(scores, same, found[f"threshold@far={far:g}"])
        assert at[0] <= far and at[1] == found[f"tar@far={far:g}"]
    accuracies = [np.mean((scores >= t) == same) for t, _, _ in points]
    assert found["accuracy"] == pytest.approx(max(accuracies), abs=1e-15)
    assert np.mean((scores >= found["threshold"]) == same) == found["accuracy"]
    # The equal error rate, by bisection on the polygon through the points.
    curve = sorted((f, t) for _, f, t in points)
    fs, ts = np.array([f for f, _ in curve]), np.array([t for _, t in curve])
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        top = ts[fs <= middle].max()
        before = max(i for i in range(len(fs)) if fs[i] <= middle and ts[i] == top)
        after = min(before + 1, len(fs) - 1)
        width = fs[after] - fs[before]
        height = ts[before] + ((middle - fs[before]) / width if width else 0) * (ts[after] - ts[before])
        low, high = (middle, high) if middle < 1 - height else (low, middle)
    assert found["eer"] == pytest.approx(low, abs=1e-9)


def test_by_hand_with_ties() -> None:
    #         same  same  both------  diff  diff
    scores = [0.9, 0.8, 0.5, 0.5, 0.5, 0.2, 0.1]
    same = [1, 1, 1, 1, 0, 0, 0]
    with pytest.warns(UserWarning, match=r"FAR 0\.3 cannot be measured with 3 different pairs"):
        found = verification_metrics(scores, same, fars=(0.3, 0.34))
    # 0.5 accepts all three of its pairs or none: FAR 1/3 > 0.3 leaves two same pairs out of four.
    assert found["tar@far=0.3"] == 0.5
    assert found["threshold@far=0.3"] == pytest.approx(0.65)  # half-way between 0.8 and 0.5
    assert found["tar@far=0.34"] == 1.0
    assert found["auc"] == pytest.approx((3 + 3 + 2.5 + 2.5) / 12)
    assert found["accuracy"] == pytest.approx(6 / 7) and found["threshold"] == pytest.approx(0.35)
    # From (0, 1/2) to (1/3, 1) the curve is 1/2 + 3/2 f, which meets 1 - f at f = 1/5.
    assert found["eer"] == pytest.approx(0.2)


def test_a_rate_that_is_met_exactly_counts() -> None:
    scores = np.arange(100) / 100
    same = np.zeros(101, bool)
    same[-1] = True
    found = verification_metrics(np.append(scores, 0.705), same, fars=(0.29, 0.28))
    assert found["tar@far=0.29"] == 1.0 and found["tar@far=0.28"] == 0.0  # 29 scores are above; 0.29 * 100 < 29


def test_a_collapsed_model_is_no_better_than_chance() -> None:
    with pytest.warns(UserWarning, match="cannot be measured"):
        found = verification_metrics(np.ones(100), np.arange(100) < 50, fars=(1e-3, 0.5))
    assert (found["auc"], found["eer"], found["tar@far=0.001"], found["tar@far=0.5"]) == (0.5, 0.5, 0.0, 0.0)
    assert found["threshold@far=0.5"] == np.inf and found["accuracy"] == 0.5


def test_perfect_scores() -> None:
    found = verification_metrics([3.0, 2.0, 1.0, 0.0], [True, True, False, False], fars=(0.5,), folds=[0, 1, 0, 1])
    assert (found["auc"], found["eer"], found["accuracy"], found["tar@far=0.5"]) == (1.0, 0.0, 1.0, 1.0)
    assert found["eer_threshold"] == found["threshold"] == 1.5


def test_neighbouring_floats_have_a_threshold_between_them() -> None:
    low = 1.0
    high = float(np.nextafter(low, 2.0))
    found = verification_metrics([high, low], [True, False], fars=(0.0,))
    assert found["accuracy"] == 1.0 and low < found["threshold"] <= high


def naive_fold_accuracies(scores: np.ndarray, same: np.ndarray, folds: int) -> list[float]:
    """The threshold half-way below the lowest accepted score, on the other folds; the highest of several."""
    size = len(scores) // folds
    accuracies = []
    for number in range(folds):
        test = [i for i in range(len(scores)) if i // size == number]
        train = [i for i in range(len(scores)) if i // size != number]
        values = sorted({float(scores[i]) for i in train}, reverse=True)
        candidates = [(a + b) / 2 for a, b in itertools.pairwise(values)] + [values[-1]]
        best, chosen = sum(not same[i] for i in train), np.inf
        for t in candidates:
            right = sum((scores[i] >= t) == same[i] for i in train)
            if right > best:
                best, chosen = right, t
        accuracies.append(sum((scores[i] >= chosen) == same[i] for i in test) / len(test))
    return accuracies


def test_lfw_protocol() -> None:
    rng = np.random.default_rng(3)
    same = np.tile(np.repeat([True, False], 6), 10)
    scores = np.round(rng.normal(same * 1.0, 1.0), 1)
    wished = naive_fold_accuracies(scores, same, 10)
    assert len(set(wished)) > 3
    np.testing.assert_allclose(fold_accuracies(scores, same), wished, rtol=1e-15)
    found = verification_metrics(scores, same, folds=10, fars=())
    assert found["accuracy_mean"] == pytest.approx(np.mean(wished)) and found["accuracy_mean"] <= found["accuracy"]
    assert found["accuracy_std"] == pytest.approx(np.sqrt(np.mean((np.array(wished) - np.mean(wished)) ** 2)))
    assert found["accuracy_fold_10"] == wished[-1]
    # Every pair's fold by name, and the pairs in any order.
    mixed = rng.permutation(120)
    names = np.array([f"fold {i // 12}" for i in range(120)])
    by_name = fold_accuracies(scores[mixed], same[mixed], folds=names[mixed])
    np.testing.assert_allclose(by_name, wished, rtol=1e-15)


def test_lfw_protocol_with_a_grid_of_thresholds() -> None:
    rng = np.random.default_rng(4)
    same = np.tile(np.repeat([True, False], 5), 4)
    distances = rng.uniform(0, 4, 40) - same
    grid = np.arange(0, 4, 0.01)
    wished = []
    for fold in range(4):
        test = np.arange(40) // 10 == fold
        right = [np.sum((distances[~test] < t) == same[~test]) for t in grid]
        first_best = grid[right.index(max(right))]
        wished.append(np.mean((distances[test] < first_best) == same[test]))
    np.testing.assert_allclose(fold_accuracies(-distances, same, folds=4, thresholds=-grid), wished)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"folds": 1}, "at least two"),
        ({"folds": 4}, r"fold 1 has 2 same and 0 different pairs.*pairs\.txt"),
        ({"folds": [0, 0, 0]}, r"folds \(3,\) must be a number of folds, or the fold of each of the 8 pairs"),
        ({"folds": [0] * 8}, "all pairs are in one fold"),
        ({"folds": [0, 1] * 4, "thresholds": []}, "thresholds must be a list of numbers"),
        ({"thresholds": [0.5]}, "thresholds= needs folds="),
        ({"fars": (2,)}, "a FAR must be between 0 and 1, not 2"),
        ({"same": [True] * 8}, "8 same and 0 different pairs: both kinds are needed"),
        ({"same": [True] * 7}, r"scores \(8,\) and same \(7,\) must both be \(n,\)"),
        ({"same": [0, 1, 2, 3, 4, 5, 6, 7]}, "same must be booleans, or 0 and 1"),
        ({"scores": [0, 1, np.nan, 3, np.inf, 5, 6, 7]}, r"2 of 8 scores are NaN or infinite \(first: 2\)"),
        ({"scores": [], "same": []}, "0 same and 0 different pairs"),
    ],
)
def test_bad_input(change: dict, message: str) -> None:
    good = {"scores": np.arange(8.0), "same": np.arange(8) < 4, "fars": ()}
    with pytest.raises(ValueError, match=message):
        verification_metrics(**good | change)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_scores_may_be_tensors(dtype: torch.dtype) -> None:
    scores, same = torch.tensor([0.75, 0.5, 0.25], dtype=dtype), torch.tensor([1, 1, 0])
    assert verification_metrics(scores, same, fars=())["threshold"] == 0.375


def test_whole_numbers_are_not_rounded() -> None:
    scores, same = np.array([2**53, 2**53 + 1]), [False, True]
    with pytest.raises(ValueError, match=r"int64 beyond 2\^53"):
        verification_metrics(scores, same, fars=())
    assert verification_metrics(scores - 2**53, same, fars=())["auc"] == 1
    with pytest.raises(TypeError, match="scores must be numbers, not <U1"):
        verification_metrics(["a", "b"], same)


def test_the_number_of_folds_may_be_any_integer() -> None:
    scores, same = np.arange(8.0) % 3, np.arange(8) % 2 == 0
    expected = verification_metrics(scores, same, folds=2, fars=())
    assert verification_metrics(scores, same, folds=np.int32(2), fars=()) == expected


def test_pair_scores_are_cosines(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((20, 7)), rng.standard_normal((9, 7))
    x[3] = 0
    pairs = np.stack([rng.integers(0, 20, 50), rng.integers(0, 9, 50)], 1)
    pairs[0, 0] = 3
    monkeypatch.setattr("nearfar.evaluation.verification.PAIRS_AT_A_TIME", 70)
    wished = []
    for i, j in pairs:
        length = np.linalg.norm(x[i]) * np.linalg.norm(y[j])
        wished.append(x[i] @ y[j] / length if length else 0.0)
    np.testing.assert_allclose(pair_scores(x, pairs, y), wished, atol=1e-6)
    own = pair_scores(torch.from_numpy(x).half(), torch.tensor([[1, 1], [1, 2]]))
    assert own[0] == pytest.approx(1, abs=1e-6) and own[1] < 1


def test_pair_scores_of_bad_input() -> None:
    x = np.ones((4, 3), np.float32)
    with pytest.raises(ValueError, match="run from 4 to 4, but there are 4 rows"):
        pair_scores(x, [[0, 4]])
    with pytest.raises(ValueError, match="embeddings have 3 dimensions, but other has 2"):
        pair_scores(x, [[0, 1]], x[:, :2])
    x[2] = np.nan
    with pytest.raises(ValueError, match="1 of 4 embeddings hold NaN"):
        pair_scores(x, [[0, 2]])
