"""Thresholds for a wished precision or false accept rate."""

import json

import numpy as np
import pytest
import torch

from nearfar.evaluation import Threshold, calibrate


def some_pairs(seed: int, steps: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    same = rng.random(120) < 0.3
    return np.round(rng.normal(same * 2.0, 1.0) * steps) / steps, same


@pytest.mark.parametrize("steps", [3, 1000])
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("wish", [{"far": 0.02}, {"far": 0.2}, {"precision": 0.8}, {"precision": 0.6, "prior": 0.05}])
def test_largest_tar_that_keeps_the_promise(wish: dict, seed: int, steps: int) -> None:
    scores, same = some_pairs(seed, steps)
    best = -1.0
    prior = wish.get("prior", same.mean())
    for t in np.unique(scores):
        tar, far = np.mean(scores[same] >= t), np.mean(scores[~same] >= t)
        precision = prior * tar / (prior * tar + (1 - prior) * far)
        if far <= wish.get("far", 1) and precision >= wish.get("precision", 0) - 1e-12:
            best = max(best, tar)
    if best <= 0:
        with pytest.raises(ValueError, match="no threshold"):
            calibrate(scores, same, **wish)
        return
    found = calibrate(scores, same, **wish)
    accepted = found.accepts(scores)
    assert found.tar == best == np.mean(accepted[same])
    assert found.far == np.mean(accepted[~same]) <= wish.get("far", 1)
    assert (found.true_accepts, found.false_accepts) == (accepted[same].sum(), accepted[~same].sum())
    assert (found.same_pairs, found.different_pairs) == (same.sum(), (~same).sum())
    assert found.prior == pytest.approx(prior) and found.precision >= wish.get("precision", 0)
    if "prior" not in wish:
        assert found.precision == np.mean(same[accepted])


def test_by_hand() -> None:
    found = calibrate([0.9, 0.7, 0.7, 0.3, 0.1], [1, 1, 0, 1, 0], precision=0.7)
    # 0.9: 1/1; 0.7 accepts two more: 2/3; 0.3: 3/4, with the largest TAR; then 3/5.
    assert found.threshold == pytest.approx(0.2) and found.precision == 0.75 and found.tar == 1.0
    assert found.target == "precision" and found.wished == 0.7
    assert calibrate([0.9, 0.7, 0.7, 0.3, 0.1], [1, 1, 0, 1, 0], precision=0.8).threshold == pytest.approx(0.8)


def test_accepts_scores_of_any_kind() -> None:
    found = calibrate([0.9, 0.5, 0.1], [True, True, False], far=1.0)
    for scores in ([0.25, 0.05], np.array([0.25, 0.05]), torch.tensor([0.25, 0.05]).bfloat16().requires_grad_()):
        assert found.accepts(scores).tolist() == [True, False]


def test_is_stored_and_read_again() -> None:
    found = calibrate([0.9, 0.5, 0.1], [True, True, False], far=1.0)
    assert Threshold(**json.loads(json.dumps(found.to_dict()))) == found


@pytest.mark.parametrize(
    ("wish", "message"),
    [
        ({}, "give either precision= or far="),
        ({"far": 0.1, "precision": 0.9}, "give either precision= or far="),
        ({"far": 0.0}, "far must be above 0"),
        ({"far": 1.01}, "far must be above 0 and at most 1"),
        ({"far": 0.01}, r"cannot be measured with 3 different pairs: give at least 100, or a FAR of at least 0\.333"),
        ({"far": 0.4}, r"no threshold with a FAR of at most 0\.4 accepts a same pair: .* a FAR of at least 0\.667"),
        ({"precision": 0.9}, r"no threshold has a precision of 0\.9 on these pairs: the highest is 0\.5"),
        ({"precision": 0.0}, "precision must be above 0"),
        ({"precision": 1.01}, "precision must be above 0 and at most 1"),
        ({"precision": 0.5, "prior": 1.0}, "prior must be the share of same pairs"),
    ],
)
def test_what_cannot_be_promised(wish: dict, message: str) -> None:
    scores, same = [0.9, 0.8, 0.5, 0.4, 0.3], [False, False, True, True, False]
    with pytest.raises(ValueError, match=message):
        calibrate(scores, same, **wish)
