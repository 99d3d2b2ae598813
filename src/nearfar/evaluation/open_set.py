"""Open-set identification: threshold, expected rates and probabilities, calibrated by trials on held-out classes.

An image is assigned to the best enrolled class if its evidence v (enrolment.py) reaches a threshold t. The rates are
shares of T trials (trials.py), weighted so that every class counts equally:

    FAR(t) = share of strangers with v ≥ t                        false accept rate
    DIR(t) = share of known probes with v ≥ t and the right class   detection and identification rate

**Threshold.** A threshold chosen for a FAR of F on C classes has a higher FAR on new classes. So each class is left out
in turn, as stranger and as enrolled class, and judged by the threshold of the others. t is the threshold of the largest
nominal rate F' ≤ F at which the mean FAR of the left-out classes is at most F.

**Intervals** are for an index of G new classes that meets as many unknown ones. A rate of class u in round r is
x_ur = m + class_u + round_r + rest_ur, with variances estimated from the trials; FAR also varies with the named class.
Their contributions to the mean of G new classes and to the estimate from C classes add up to the variance of a Beta
distribution, which is widened as Student's t is against the normal, because C classes determine a variance poorly.

**More classes than were held out.** Trials have at most g < C enrolled classes. Rates for G > g are extrapolated from
g/2 and g: −log(1 − FAR) ∝ G^θ with 0 ≤ θ ≤ 1 (θ = 1 if all strangers are alike and classes are independent), and
DIR ∝ G^−η.

**The probability** that the named class is right is σ(a + b v), a logistic regression of the trials at a given prior of
enrolled classes. As in Platt scaling, the targets are (C + 1)/(C + 2) and 1/(C + 2), so that no probability exceeds
what C classes support.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from nearfar.errors import InputError
from nearfar.evaluation import inputs
from nearfar.evaluation.class_calibration import NotCalibratedError
from nearfar.evaluation.enrolment import RULES, Rule
from nearfar.evaluation.trials import Held, Trials, folds_of, rehearse
from nearfar.evaluation.verification import check_rate

Doubles = npt.NDArray[np.float64]
LEAST_CLASSES = 8
"""The least number of held-out classes. With fewer, the DIR measured on birds is outside its interval too often."""
CONFIDENCE = 0.9
LEVELS = np.linspace(1, 0, 21)  # nominal rates to try, as shares of the target
MODERATE = 0.1  # a FAR with enough accepted strangers for comparisons


@dataclass(frozen=True)
class OpenSet:
    """The calibration of an open-set identification.

    Attributes:
        rule: how classes are scored: "template" or "nearest".
        threshold: the least evidence at which the best class is named.
        wished: the target false accept rate.
        far, dir: the expected rates for new classes.
        far_interval, dir_interval: the rates of 90 % of indexes with this number of enrolled and unknown classes.
        prior: the probability that an image is of an enrolled class.
        intercept, slope: coefficients of the probability σ(intercept + slope · evidence).
        enrolled: G, the number of enrolled classes.
        rehearsed: the number of enrolled classes in the trials.
        classes: C, the number of held-out classes.
        images: the mean number of images that a held-out class enrolled.
    """

    rule: Rule
    threshold: float
    wished: float
    far: float
    far_interval: tuple[float, float]
    dir: float
    dir_interval: tuple[float, float]
    prior: float
    intercept: float
    slope: float
    enrolled: int
    rehearsed: int
    classes: int
    images: float

    def accepts(self, evidence: Any) -> npt.NDArray[np.bool_]:
        """Whether the evidence reaches the threshold."""
        return np.asarray(inputs.to_numpy(evidence) >= self.threshold)

    def probability(self, evidence: Any) -> Doubles:
        """The probability that the best class is right."""
        return _sigmoid(self.intercept + self.slope * inputs.to_numpy(evidence).astype(np.float64))

    def to_dict(self) -> dict[str, Any]:
        """The fields as JSON values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "OpenSet":
        """The inverse of `to_dict`, also after a round trip through JSON."""
        low_high = {name: tuple(values[name]) for name in ("far_interval", "dir_interval")}
        return cls(**{**values, **low_high})


def calibrate_open_set(
    embeddings: Any,
    labels: Any,
    counts: Any,
    *,
    fold: Any = None,
    far: float = 0.01,
    prior: float = 0.5,
    seed: int = 0,
) -> OpenSet:
    """Calibrate identification among enrolled classes on held-out classes.

    The rule is the one with the higher DIR, compared at a FAR of at least 10 %, because lower rates leave too few
    strangers for a comparison. Raises `NotCalibratedError` if there are too few classes.

    Args:
        embeddings: (N, D) of classes that the model was not trained on. Rows with NaN are left out.
        labels: (N,) class of each row.
        counts: (G,) number of images of each enrolled class.
        fold: (N,) the model that embedded each row; only rows of the same fold are compared. None if it is the same.
        far: the target share of images of unknown classes that are accepted.
        prior: the probability that an image is of an enrolled class.
        seed: the seed of the trials.
    """
    check_rate(far, "a FAR")
    if not 0 < far < 1:
        raise InputError(f"far must be between 0 and 1, such as 0.01, not {far}")
    if not 0 < prior < 1:
        raise InputError(f"prior must be the share of images of enrolled classes, between 0 and 1, not {prior}")
    sizes = inputs.to_numpy(counts).astype(np.int64)
    if not len(sizes) or sizes.min() < 1:
        raise InputError(
            "counts must be the numbers of images of the enrolled classes, at least one class with one image each"
        )
    folds = _folds(embeddings, labels, fold, seed)
    most = min(held.classes for held in folds) - 1
    rules = RULES if sizes.max() > 1 else RULES[:1]  # with one image per class, both are the same
    rehearsed = {rule: rehearse(folds, sizes, min(len(sizes), most), rule, seed) for rule in rules}
    rule = max(rules, key=lambda name: _detection_rate(rehearsed[name], max(far, MODERATE)))
    trials, growth = rehearsed[rule], (1.0, 1.0)
    if len(sizes) > most > 1:
        growth = _growth(rehearse(folds, sizes, max(1, most // 2), rule, seed + 1), trials, len(sizes), far)
    return _calibrated(trials, growth, len(sizes), far, prior, rule)


def _folds(embeddings: Any, labels: Any, fold: Any, seed: int) -> list[Held]:
    array = inputs.to_numpy(embeddings)
    good = np.isfinite(array).all(1)
    codes = inputs.encode(inputs.labels(labels, len(array), "labels"), None, "labels")[0]
    part = np.zeros(len(array), np.int64) if fold is None else inputs.to_numpy(fold)
    vectors = inputs.unit_vectors(array[good], "embeddings").numpy()
    folds = folds_of(vectors, codes[good], part[good], seed)
    classes = sum(held.classes for held in folds)
    if classes < LEAST_CLASSES:
        raise NotCalibratedError(
            f"only {classes} held-out classes have two or more images, and at least {LEAST_CLASSES} are needed"
        )
    return folds


def _calibrated(
    trials: Trials, growth: tuple[float, float], enrolled: int, far: float, prior: float, rule: Rule
) -> OpenSet:
    """Choose the threshold and estimate its rates.

    Args:
        growth: factors of −log(1 − FAR) and of DIR from the number of classes in the trials to `enrolled`.
    """
    nominal = 1 - (1 - far) ** (1 / growth[0])
    left_out = _left_out(trials, nominal * LEVELS)
    kept = np.flatnonzero(left_out <= nominal)
    if not len(kept):
        least = 1 - (1 - float(left_out[-1])) ** growth[0]
        raise NotCalibratedError(
            f"{trials.classes} held-out classes are too few for a FAR of {100 * far:g} %: ask for at least "
            f"{math.ceil(1000 * least) / 10:g} %, or hold out more classes"
        )
    threshold = _threshold(trials.stranger, trials.weight, nominal * LEVELS[int(kept[0])])
    detected = (trials.known >= threshold) & trials.right
    if detected.any():  # half-way to the next detected probe, which accepts fewer strangers at the same DIR
        threshold = (threshold + float(trials.known[detected].min())) / 2
    detection = float(trials.weight @ detected)
    passed = float(_left_out(trials, np.array([float(trials.weight @ (trials.stranger >= threshold))]))[0])
    expected = 1 - (1 - passed) ** growth[0]
    # The variance of FAR is estimated at a threshold that accepts the expected share of strangers.
    accepted = trials.stranger >= _threshold(trials.stranger, trials.weight, max(passed, nominal / 4))
    far_variance = _variance(accepted, trials, enrolled) + _named_variance(accepted, trials)
    dir_variance = _variance(detected, trials, enrolled) * growth[1] ** 2
    intercept, slope = _logistic(trials, prior)
    return OpenSet(
        rule=rule,
        threshold=threshold,
        wished=far,
        far=expected,
        far_interval=_interval(expected, far_variance, trials.classes),
        dir=detection * growth[1],
        dir_interval=_interval(detection * growth[1], dir_variance, trials.classes),
        prior=prior,
        intercept=intercept + math.log(growth[1] / growth[0]),
        slope=slope,
        enrolled=enrolled,
        rehearsed=trials.enrolled,
        classes=trials.classes,
        images=trials.images,
    )


def _threshold(evidence: npt.NDArray[np.float32], weight: Doubles, rate: float) -> float:
    """The lowest threshold that at most a share `rate` of the weight reaches."""
    order = np.argsort(-evidence, kind="stable")
    allowed = int(np.searchsorted(np.cumsum(weight[order]), rate * (1 + 1e-9), side="right"))
    if allowed == len(order):
        return -math.inf
    return float(np.nextafter(evidence[order[allowed]], np.float32(np.inf)))


def _detection_rate(trials: Trials, rate: float) -> float:
    """DIR at a nominal FAR."""
    threshold = _threshold(trials.stranger, trials.weight, rate)
    return float(trials.weight @ ((trials.known >= threshold) & trials.right))


def _left_out(trials: Trials, rates: Doubles) -> Doubles:
    """(R,): for each nominal rate, the mean FAR of classes at thresholds chosen without them."""
    order = np.argsort(-trials.stranger, kind="stable")
    # Strangers beyond `reach` are below the threshold, whichever class is left out.
    reach = int(np.searchsorted(np.cumsum(trials.weight[order]), 2 * float(rates.max()) + 4 / trials.classes)) + 1
    order = order[:reach]
    evidence = np.append(trials.stranger[order], -np.inf)
    label, named, weight = trials.label[order], trials.named[order], trials.weight[order]
    total = np.zeros(len(rates))
    for left_out in range(trials.classes):
        probes = label == left_out
        others = np.cumsum(weight * ~(probes | (named == left_out))) * trials.classes / (trials.classes - 1)
        first_rejected = np.searchsorted(others, rates * (1 + 1e-9), side="right")
        accepted = np.append(np.cumsum(weight * probes), 0)
        # Strangers are accepted with more evidence than the first of the others that must be rejected.
        above = np.searchsorted(-evidence, -evidence[first_rejected], side="left")
        total += np.where(above > 0, accepted[above - 1], 0)
    return total


def _variance(hit: npt.NDArray[np.bool_], trials: Trials, enrolled: int) -> float:
    """The variance of the mean over new classes in one new round, plus that of its estimate."""
    rounds = int(trials.round.max()) + 1
    cell = trials.label * rounds + trials.round
    shape = trials.classes, rounds
    size = np.bincount(cell, minlength=trials.classes * rounds).reshape(shape)
    rate = np.bincount(cell, weights=hit, minlength=trials.classes * rounds).reshape(shape) / np.maximum(size, 1)
    used = size > 0  # classes take part only in the rounds of their fold
    mean = rate.sum() / used.sum()
    of_class = rate.sum(1) / used.sum(1) - mean
    of_round = rate.sum(0) / used.sum(0) - mean
    rest = np.where(used, rate - mean - of_class[:, None] - of_round, 0)
    freedom = max(1, int(used.sum()) - trials.classes - rounds + 1)
    classes = float(of_class.var(ddof=1)) * (1 / enrolled + 1 / trials.classes)
    return classes + float(of_round.var(ddof=1)) + float((rest**2).sum()) / freedom / enrolled


def _named_variance(accepted: npt.NDArray[np.bool_], trials: Trials) -> float:
    """The variance of FAR due to the choice of enrolled classes, some of which attract more strangers than others.

    Rounds with nearly all classes enrolled hardly show it, so it is added separately. It vanishes with many classes.
    """
    drawn = np.bincount(trials.named, weights=accepted * trials.weight, minlength=trials.classes) * trials.classes
    return float(drawn.var(ddof=1)) * 2 / trials.classes


def _interval(mean: float, variance: float, classes: int) -> tuple[float, float]:
    """The central 90 % of a Beta distribution of this mean and variance, widened for few classes.

    Rates of 0 or 1 on C classes are not certain, so the interval always extends to 1/(4C) or 1 - 1/(4C).
    """
    z = 1.645
    wider = (1 + (z * z + 1) / (4 * (classes - 1))) ** 2  # ratio of Student's t to the normal, to first order
    mean = min(max(mean, 1e-4), 1 - 1e-4)
    variance = min(max(variance * wider, mean * (1 - mean) / (20 * classes)), 0.9 * mean * (1 - mean))
    size = mean * (1 - mean) / variance - 1
    drawn = np.random.default_rng(0).beta(mean * size, (1 - mean) * size, 20_000)
    low, high = np.quantile(drawn, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    edge = 1 / (4 * classes)
    if mean < edge:
        return 0.0, max(float(high), edge)
    if mean > 1 - edge:
        return min(float(low), 1 - edge), 1.0
    return float(low), float(high)


def _growth(half: Trials, whole: Trials, enrolled: int, far: float) -> tuple[float, float]:
    """Factors of −log(1 − FAR) and of DIR from the classes of the trials to `enrolled` classes, by power laws."""
    threshold = _threshold(whole.stranger, whole.weight, max(far, MODERATE))
    more, step = math.log(enrolled / whole.enrolled), math.log(whole.enrolled / half.enrolled)
    passed = [-math.log1p(-min(float(t.weight @ (t.stranger >= threshold)), 0.999)) for t in (half, whole)]
    detected = [float(t.weight @ ((t.known >= threshold) & t.right)) for t in (half, whole)]
    theta = min(max(math.log(passed[1] / passed[0]) / step, 0), 1) if min(passed) > 0 else 1.0
    eta = max(math.log(detected[0] / detected[1]) / step, 0) if min(detected) > 0 else 0.0
    return math.exp(theta * more), math.exp(-eta * more)


def _logistic(trials: Trials, prior: float) -> tuple[float, float]:
    """(a, b) of P(right) = σ(a + b v), by Newton's method."""
    evidence = np.concatenate([trials.known, trials.stranger]).astype(np.float64)
    right = np.concatenate([trials.right, np.zeros(len(trials.stranger), np.bool_)])
    weight = np.concatenate([prior * trials.weight, (1 - prior) * trials.weight])
    target = np.where(right, trials.classes + 1, 1) / (trials.classes + 2)
    centre = float(weight @ evidence)
    scale = math.sqrt(float(weight @ (evidence - centre) ** 2)) or 1.0
    x = np.stack([np.ones_like(evidence), (evidence - centre) / scale], 1)
    beta = np.zeros(2)
    for _ in range(50):
        p = _sigmoid(x @ beta)
        gradient = x.T @ (weight * (target - p)) - 1e-6 * beta
        hessian = (x * (weight * p * (1 - p))[:, None]).T @ x + 1e-6 * np.eye(2)
        step = np.linalg.solve(hessian, gradient)
        beta += np.clip(step, -2, 2)
        if np.abs(step).max() < 1e-10:
            break
    slope = max(float(beta[1]) / scale, 0.0)  # the probability never decreases with the evidence
    return float(beta[0]) - slope * centre if slope else _logit(float(weight @ target)), slope


def _sigmoid(x: Doubles) -> Doubles:
    return np.asarray(0.5 * (1 + np.tanh(0.5 * x)))


def _logit(p: float) -> float:
    return math.log(p / (1 - p))
