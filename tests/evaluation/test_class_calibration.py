"""Thresholds for classes never seen: the figures, against loops over pairs; what is refused; how often a promise holds."""

import json
import math
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch

from nearfar.evaluation import Calibration, Measured, NotCalibratedError, calibrate_on_classes, measured_at
from nearfar.evaluation import class_pairs as pairs_module
from nearfar.evaluation.class_intervals import components, rates, unseen_over_known
from nearfar.evaluation.class_pairs import class_pairs
from nearfar.evaluation.student import quantile


def made(
    seed: int, classes: int = 12, images: int = 6, *, spread: float = 0.8, dimension: int = 8
) -> tuple[np.ndarray, np.ndarray]:
    """Images around the centres of their classes, as far apart as the class says; some classes lean towards a common
    direction, so that they look like one another.
    """
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(classes, dimension))
    centres[:, 0] += 3 * rng.random(classes) ** 2
    width = spread * rng.lognormal(sigma=0.3, size=(classes, 1, 1))
    x = centres[:, None] + width * rng.normal(size=(classes, images, dimension))
    return x.reshape(-1, dimension), np.repeat(np.arange(classes), images)


def by_loops(
    x: np.ndarray, labels: np.ndarray, threshold: float, share: float, fold: np.ndarray | None = None
) -> tuple[float, float, float, list[int]]:
    """FAR, TAR, precision, and how many pairs: same, different, accepted different ones."""
    count = {(kind, accepted): 0 for kind in (True, False) for accepted in (True, False)}
    for i in range(len(x)):
        for j in range(i):
            if fold is None or fold[i] == fold[j]:
                cosine = float(x[i] @ x[j] / math.sqrt((x[i] @ x[i]) * (x[j] @ x[j])))
                count[bool(labels[i] == labels[j]), cosine >= threshold] += 1
    same, different = (count[kind, True] + count[kind, False] for kind in (True, False))
    far, tar = count[False, True] / different, count[True, True] / same
    precision = share * tar / (share * tar + (1 - share) * far) if far + tar else math.nan
    return far, tar, precision, [same, different, count[False, True]]


@pytest.mark.parametrize("share", [0.5, 0.1])
@pytest.mark.parametrize("folds", [1, 2])
@pytest.mark.parametrize("wish", [{"far": 0.02}, {"precision": 0.8}, {}])
def test_figures(wish: dict[str, float], folds: int, share: float) -> None:
    x, labels = made(0, 20)
    fold = labels % folds
    found = calibrate_on_classes(x, labels, fold=fold, share=share, **wish)
    far, tar, precision, counts = by_loops(x, labels, found.threshold, share, fold)
    assert (found.far, found.tar, found.precision) == pytest.approx((far, tar, precision), abs=1e-12)
    assert [found.same_pairs, found.different_pairs, found.false_accepts] == counts
    assert (found.classes, found.images, found.unseen) == (20, 120, 20)
    assert found.target == ("far" if "far" in wish else "precision")
    assert found.wished == wish.get("far", wish.get("precision", 0.95))
    assert far <= found.wished if "far" in wish else precision >= found.wished
    assert found.far_interval[0] <= far <= found.far_interval[1]
    assert found.tar_interval[0] <= tar <= found.tar_interval[1]
    assert found.precision_interval[0] <= precision <= found.precision_interval[1]
    measured = measured_at(found.threshold, x, labels, fold=fold, share=share)
    assert (measured.far, measured.tar, measured.precision) == (found.far, found.tar, found.precision)
    # The population's figure is known better than that of so many other classes.
    assert measured.far_interval[0] >= found.far_interval[0] and measured.far_interval[1] <= found.far_interval[1]


def naive_jackknife(x: np.ndarray, labels: np.ndarray, threshold: float) -> tuple[float, float]:
    """The variance of log FAR and of TAR's log-odds, from figures computed anew without each class, half pairs added."""
    estimates = []
    for name in set(labels.tolist()):
        rest = labels != name
        far, tar, _, (same, different, _) = by_loops(x[rest], labels[rest], threshold, 0.5)
        f, s = (far * different + 0.5) / (different + 1), (tar * same + 0.5) / (same + 1)
        estimates.append((math.log(f), math.log(s / (1 - s))))
    values = np.array(estimates)
    return tuple((len(values) - 1) * values.var(axis=0))


def test_interval_of_the_population_is_a_jackknife_with_students_t() -> None:
    x, labels = made(3, 9, 7)
    found = measured_at(0.6, x, labels, confidence=0.8)
    f, s = (
        (a + 0.5) / (n + 1)
        for a, n in ((found.false_accepts, found.different_pairs), (found.tar * found.same_pairs, found.same_pairs))
    )
    variance_far, variance_tar = naive_jackknife(x, labels, 0.6)
    t = scipy.stats.t.ppf(0.9, 8)
    expected = np.exp(np.log(f) + t * math.sqrt(variance_far) * np.array([-1, 1]))
    assert found.far_interval == pytest.approx(expected, rel=1e-9)
    odds = np.log(s / (1 - s)) + t * math.sqrt(variance_tar) * np.array([-1, 1])
    assert found.tar_interval == pytest.approx(1 / (1 + np.exp(-odds)), rel=1e-9)


def test_unseen_classes_add_their_own_chance() -> None:
    x, labels = made(1, 16)
    few, same, many = (calibrate_on_classes(x, labels, far=0.05, unseen=m) for m in (8, 16, 1000))
    assert few.threshold == same.threshold == many.threshold and same == calibrate_on_classes(x, labels, far=0.05)
    population = measured_at(same.threshold, x, labels)
    for name in ("far_interval", "tar_interval", "precision_interval"):
        widths = [np.diff(getattr(found, name))[0] for found in (few, same, many, population)]
        assert widths == sorted(widths, reverse=True), name
    assert many.far_interval == pytest.approx(population.far_interval, rel=0.05)


@pytest.mark.parametrize("degrees", [1, 2, 3, 4, 9, 10, 199])
def test_students_t(degrees: int) -> None:
    for probability in (0.05, 0.5, 0.75, 0.95, 0.995):
        expected = scipy.stats.t.ppf(probability, degrees)
        assert quantile(probability, degrees) == pytest.approx(expected, rel=1e-9, abs=1e-9)


def test_order_scale_names_and_kinds_do_not_matter() -> None:
    x, labels = made(2, 20)
    fold = labels % 2
    expected = calibrate_on_classes(x, labels, fold=fold, far=0.03)
    rng = np.random.default_rng(5)
    order = rng.permutation(len(x))
    length = rng.uniform(0.1, 10, (len(x), 1))
    variants: list[tuple[Any, Any, Any]] = [
        (x[order], labels[order], fold[order]),
        (x * length, labels, fold),
        (x, [f"class {label}" for label in labels], np.where(fold, "a", "b")),
        (torch.tensor(x), torch.tensor(labels), torch.tensor(1 - fold)),
        (np.r_[x, np.full((3, 8), np.nan)], np.r_[labels, 0, 1, 99], np.r_[fold, 0, 1, 0]),
    ]
    for variant in variants:
        found = calibrate_on_classes(*variant[:2], fold=variant[2], far=0.03)
        for name, value in expected.to_dict().items():
            assert getattr(found, name) == (pytest.approx(value, rel=1e-5) if name != "target" else value), name


def test_binary_codes() -> None:
    x, labels = made(4, 12, 8, dimension=64)
    signs = np.where(x > 0, 1.0, -1.0)
    expected = calibrate_on_classes(signs, labels, far=0.02)
    for codes in (x > 0, (x > 0).astype(np.uint8), torch.tensor(x > 0), np.where(x > 0, 1, -1)):
        assert calibrate_on_classes(codes, labels, far=0.02) == expected


def test_is_stored_and_read_again() -> None:
    x, labels = made(1)
    found = calibrate_on_classes(x, labels, far=0.05)
    assert Calibration.from_dict(json.loads(json.dumps(found.to_dict(), allow_nan=False))) == found
    measured = measured_at(2.0, x, labels)
    assert Measured.from_dict(json.loads(json.dumps(measured.to_dict(), allow_nan=False))) == measured


def test_sentence() -> None:
    intervals = {"far_interval": (0.0, 0.0123), "tar_interval": (0.25, 0.5), "precision_interval": (0.834, 0.9962)}
    counts = {"classes": 12, "images": 240, "same_pairs": 9, "different_pairs": 9, "false_accepts": 1}
    figures = {"far": 0.01, "tar": 0.4, "precision": 0.95, "share": 0.5, "confidence": 0.9, "threshold": 0.71234}
    found = Calibration(**figures, **intervals, **counts, target="precision", wished=0.95, unseen=20)  # type: ignore[arg-type]
    assert found.sentence() == (
        "Two images count as the same class if their similarity is at least 0.712. This threshold was chosen for a "
        "precision of 95 % on 12 classes with 240 images. For 20 other classes, the 90 % intervals are: precision 83 to "
        "99.62 %, if 50 % of the compared pairs are of the same class; true accept rate 25 to 50 %; false accept rate 0 to "
        "1.2 %."
    )


@pytest.mark.parametrize(
    ("data", "options", "message"),
    [
        (made(0, 1), {}, "1 class with two or more images was not used in training. At least 10 are needed"),
        (made(0, 9), {}, "9 classes with two or more images were not used"),
        (made(0, 30, 1), {}, "0 classes with two or more images"),
        (made(0, 12), {"fold": np.arange(72) // 6 % 4}, "only 12 pairs of classes are in the same fold.* at least 28"),
        (made(0, 12, spread=9.0), {"precision": 0.999}, "no threshold has a precision of 0.999"),
        (made(0, 12), {"far": 1e-6}, "a FAR of 1e-06 cannot be measured with 2376 different pairs"),
        ((np.ones((40, 4)), np.arange(40) // 4), {}, "no threshold has a precision of 0.95"),
        ((np.ones((40, 4)), np.arange(40) // 4), {"far": 0.1}, "no threshold with a FAR of at most 0.1"),
        ((np.full((40, 4), np.nan), np.arange(40) // 4), {}, "0 classes"),
        ((np.zeros((0, 4)), np.zeros(0, int)), {}, "0 classes"),
    ],
)
def test_what_cannot_be_calibrated(data: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(NotCalibratedError, match=f"^the threshold cannot be calibrated: .*{message}"):
        calibrate_on_classes(*data, **options)


def test_an_interval_that_says_nothing() -> None:
    """Twins among ten classes, which all false accepts are of: how many twins others have is anybody's guess."""
    x, labels = made(0, 10, 10, spread=0.1)
    x[labels == 1] = x[labels == 0]
    message = r"10 other classes its precision is too uncertain \(.* in 90 % of cases\), and .* give 50 %"
    with pytest.raises(NotCalibratedError, match=message):
        calibrate_on_classes(x, labels, far=0.02)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"far": 0.1, "precision": 0.9}, "give either precision= or far="),
        ({"far": 0.0}, "far must be between 0 and 1, not 0"),
        ({"precision": 1.0}, "precision must be between 0 and 1, not 1"),
        ({"share": 1.0}, "share must be between 0 and 1, not 1"),
        ({"precision": 0.5}, "a share of 0.5 of same-class pairs has a precision of 0.5 without any threshold"),
        ({"confidence": 90}, "confidence must be between 0 and 1"),
        ({"unseen": 1}, "unseen must be a number of classes, at least 2, not 1"),
        ({"fold": [0, 1]}, "2 fold for 72 embeddings"),
    ],
)
def test_wrong_arguments(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as raised:
        calibrate_on_classes(*made(0), **options)
    assert not isinstance(raised.value, NotCalibratedError)


def test_measuring_edges() -> None:
    x, labels = made(6, 12)
    nothing = measured_at(2.0, x, labels)
    assert (nothing.far, nothing.tar, nothing.precision, nothing.false_accepts) == (0.0, 0.0, None, 0)
    assert nothing.far_interval[0] == 0 < nothing.far_interval[1] < 0.05
    everything = measured_at(-2.0, x, labels, share=0.3)
    assert (everything.far, everything.tar) == (1.0, 1.0) and everything.precision == pytest.approx(0.3)
    # All 180 same pairs are accepted: no class differs from another, and so the pairs count as independent.
    odds = math.log(180.5 / 0.5) - scipy.stats.t.ppf(0.95, 11) * math.sqrt(1 / 180.5 + 1 / 0.5)
    assert everything.tar_interval == pytest.approx((1 / (1 + math.exp(-odds)), 1.0))
    two = measured_at(0.5, x[:12], labels[:12])
    assert two.far_interval == two.tar_interval == two.precision_interval == (0.0, 1.0)
    with pytest.raises(ValueError, match="15 same-class and 0 different-class pairs"):
        measured_at(0.5, x[:6], labels[:6])
    with pytest.raises(ValueError, match="0 same-class and 66 different-class pairs"):
        measured_at(0.5, x[::6], labels[::6])
    with pytest.raises(ValueError, match="threshold is NaN"):
        measured_at(math.nan, x, labels)
    # Classes of one image are compared with others, and tell nothing about same pairs.
    single = np.r_[np.arange(24), 30, 36]
    far, tar, precision, _ = by_loops(x[single], labels[single], 0.5, 0.5)
    found = measured_at(0.5, x[single], labels[single])
    assert (found.far, found.tar, found.precision, found.classes) == pytest.approx((far, tar, precision, 6))


def test_many_pairs_are_drawn_class_by_class(monkeypatch: pytest.MonkeyPatch) -> None:
    x, labels = made(7, 30, 20)
    everything = class_pairs(x, labels)
    assert everything.images == 600 and len(everything.scores) == 600 * 599 // 2
    monkeypatch.setattr(pairs_module, "PAIRS", 30_000)
    drawn = class_pairs(x, labels, seed=1)
    assert drawn.classes == 30 and drawn.images == 30 * 8  # 240 images make 28,680 pairs, 270 more than 30,000
    assert np.array_equal(drawn.scores, class_pairs(x, labels, seed=1).scores)
    assert not np.array_equal(drawn.scores, class_pairs(x, labels, seed=2).scores)
    monkeypatch.setattr(pairs_module, "PAIRS", 800)
    fewer = class_pairs(x, labels)
    assert 15 <= fewer.classes < 30 and fewer.images == 2 * fewer.classes and len(fewer.scores) <= 800
    assert class_pairs(x[:5], labels[:5]).images == 5


@pytest.mark.parametrize("sizes", [(12,), (6, 6), (3, 4, 5)])
def test_what_classes_do_and_what_two_do_together(sizes: tuple[int, ...]) -> None:
    """Both variances are found without bias, where they can be: 0.3 of a class, 0.5 of two."""
    fold = np.repeat(np.arange(len(sizes)), sizes)
    compared = (fold[:, None] == fold) & ~np.eye(len(fold), dtype=bool)
    rng, found = np.random.default_rng(0), []
    for _ in range(4000):
        u, w = rng.normal(scale=0.3**0.5, size=len(fold)), np.triu(rng.normal(scale=0.5**0.5, size=compared.shape), 1)
        excess = np.where(compared, u[:, None] + u + w + w.T, 0.0)
        found.append(
            components(np.where(compared, excess - excess[compared].mean(), 0.0), compared.sum(1).astype(float))
        )
    # None is below 0, which adds a little where they are hard to tell apart.
    assert np.mean(found, axis=0) == pytest.approx([0.3, 0.5], rel=0.03 if len(sizes) == 1 else 0.2)


@pytest.mark.parametrize(("unseen", "expected"), [(9, 0.5), (18, 18 / 153), (3, (2 - 3 / 9) * 18 / 3), (math.inf, 0)])
def test_false_accepts_of_pairs_alone(unseen: float, expected: float) -> None:
    """Nine classes in a ring: each has false accepts with its two neighbours alone, as many as any other class. Then all
    variance is that of pairs, and what m classes add goes with the number of their pairs, half of what the jackknife says,
    and more for fewer classes than there are.
    """
    ring = np.roll(np.eye(9), 1, axis=1)
    pairs = 10 * (1 - np.eye(9))
    assert unseen_over_known(ring + ring.T, pairs, unseen) == pytest.approx(expected)


@pytest.mark.parametrize("folds", [1, 3])
def test_promises_hold_for_classes_never_seen(folds: int) -> None:
    """Of 200 draws of classes to calibrate on and others to test: 90 % within the interval, ± three standard errors."""
    within, draws = np.zeros(3), 0
    for seed in range(200):
        x, labels = made(1000 * folds + seed, 36, 5, spread=0.6)
        known, new = labels < 18, labels >= 18
        try:
            found = calibrate_on_classes(x[known], labels[known], fold=labels[known] % folds, precision=0.9)
        except NotCalibratedError:
            continue
        measured = measured_at(found.threshold, x[new], labels[new])
        for number, name in enumerate(("far", "tar", "precision")):
            low, high = getattr(found, f"{name}_interval")
            within[number] += low <= getattr(measured, name) <= high
        draws += 1
    assert draws >= 190
    assert (np.abs(within / draws - 0.9) < 3 * math.sqrt(0.09 / draws)).all(), within / draws


def test_intervals_for_the_population_hold() -> None:
    """The share of what 400 classes show is within the interval that 12 of them give, in about 90 % of draws."""
    x, labels = made(11, 400, 5, spread=0.6)
    truth = measured_at(0.75, x, labels)
    rng, within = np.random.default_rng(0), np.zeros(2)
    for _ in range(200):
        rows = np.isin(labels, rng.permutation(400)[:12])
        found = measured_at(0.75, x[rows], labels[rows])
        within += [
            low <= share <= high
            for share, (low, high) in ((truth.far, found.far_interval), (truth.tar, found.tar_interval))
        ]
    assert (np.abs(within / 200 - 0.9) < 3 * math.sqrt(0.09 / 200)).all(), within / 200


def test_rates_of_classes_that_share_no_pairs() -> None:
    """Two folds of one class each and no third: nothing can be left out."""
    counts = np.array([[3.0, 2.0, 0.0], [2.0, 3.0, 0.0], [0.0, 0.0, 3.0]])
    found = rates(counts / 2, counts, share=0.5, unseen=3, confidence=0.9)
    assert (found.far, found.tar, found.far_interval) == (0.5, 0.5, (0.0, 1.0))
