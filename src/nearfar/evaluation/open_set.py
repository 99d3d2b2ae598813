"""Who is it, or nobody? From rehearsals on held-out classes to a threshold, rates that can be promised, a probability.

A picture is given to the best enrolled class if its evidence v (enrolment.py) reaches a threshold t. Of T trials
(trials.py), in which every class counts alike,

    FAR(t) = share of strangers with v ≥ t              an unknown thing is taken for an enrolled one
    DIR(t) = share of known with v ≥ t, and named right   detection and identification rate

**The threshold** keeps FAR for classes that were not there when it was chosen. Chosen on C classes to let F through, it
lets more through of new ones. So each class is left out in turn, as stranger and as enrolled, and is judged by the
threshold of the others; t is that of the largest nominal rate F' ≤ F at which the classes left out keep to F on
average.

**Intervals** are for an index of G new classes that meets as many unknown ones. A rate of class u in round r is
x_ur = m + class_u + round_r + rest_ur, with variances from the trials, and for FAR the part of the named class besides.
The sum of what each adds to the mean of G new classes, and to that of the C it was estimated on, is the variance of a
Beta distribution; widened, as Student's t is to the normal, since C classes tell little of a variance.

**More classes than were held out.** Trials have at most g < C classes enrolled. What G > g of them do is carried on
from g/2 and g: −log(1 − FAR) ∝ G^θ with 0 ≤ θ ≤ 1 (it would be 1 if strangers were all of one kind, and what they are
like in one class said nothing of the next), and DIR ∝ G^−η.

**The probability** that the named class is right is σ(a + b v), a logistic regression of the trials at the stated prior
that a thing is enrolled at all. As Platt has it, the targets are (C + 1)/(C + 2) and 1/(C + 2): nobody is surer than C
classes allow.
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
"""With fewer held-out classes nothing is promised: on birds, the measured DIR then leaves its interval too often."""
CONFIDENCE = 0.9
LEVELS = np.linspace(1, 0, 21)  # nominal rates that are tried, as shares of the wished one
MODERATE = 0.1  # a FAR at which enough strangers are accepted to compare by it


@dataclass(frozen=True)
class OpenSet:
    """How to tell who it is, or that it is nobody enrolled, and what that promises.

    Attributes:
        rule: how classes are scored: "template" or "nearest".
        threshold: the least evidence at which the best class is named.
        wished: the false accept rate that was asked for.
        far, dir: what is expected of new classes; `far_interval`, `dir_interval`: where 90 % of indexes of so many
            classes lie, as many unknown classes being shown to them.
        prior: how likely a picture is of an enrolled class, for the probability.
        intercept, slope: of the probability σ(intercept + slope · evidence).
        enrolled: G, the number of enrolled classes that it is for; `rehearsed`: how many the trials had.
        classes: C, the held-out classes that it rests on; `images`: that they enrolled each, on average.
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
        """Whether the best class is named."""
        return np.asarray(inputs.to_numpy(evidence) >= self.threshold)

    def probability(self, evidence: Any) -> Doubles:
        """That the best class is the right one."""
        return _sigmoid(self.intercept + self.slope * inputs.to_numpy(evidence).astype(np.float64))

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and words, for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "OpenSet":
        """From what `to_dict` gave, or JSON made of it."""
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
    """Rule, threshold, rates and probability of identification among enrolled classes, from held-out ones.

    The rule is the one of higher DIR, at a FAR of 10 % where a lower one is wished: there are too few strangers beyond
    low ones to choose by, and luck would choose. Raises `NotCalibratedError` where the classes are too few.

    Args:
        embeddings: (N, D), of classes that the model which made them was not trained on; rows with NaN are left out.
        labels: (N,) their classes.
        counts: (G,) how many pictures each enrolled class has.
        fold: (N,) only rows of one fold are compared with each other; None if all may be.
        far: the share of pictures of unknown things that may be taken for an enrolled one.
        prior: how likely a picture is of an enrolled class.
        seed: the same seed gives the same result.
    """
    check_rate(far, "a FAR")
    if not 0 < far < 1:
        raise InputError(f"far is a share between 0 and 1, such as 0.01, not {far}")
    if not 0 < prior < 1:
        raise InputError(f"prior is the share of pictures of enrolled classes, between 0 and 1, not {prior}")
    sizes = inputs.to_numpy(counts).astype(np.int64)
    if not len(sizes) or sizes.min() < 1:
        raise InputError("counts are the numbers of pictures of the enrolled classes: at least one class, and one each")
    folds = _folds(embeddings, labels, fold, seed)
    most = min(held.classes for held in folds) - 1
    rules = RULES if sizes.max() > 1 else RULES[:1]  # of one picture each, both are the same
    rehearsed = {rule: rehearse(folds, sizes, min(len(sizes), most), rule, seed) for rule in rules}
    rule = max(rules, key=lambda name: _found(rehearsed[name], max(far, MODERATE)))
    now, growth = rehearsed[rule], (1.0, 1.0)
    if len(sizes) > most > 1:
        growth = _growth(rehearse(folds, sizes, max(1, most // 2), rule, seed + 1), now, len(sizes), far)
    return _calibrated(now, growth, len(sizes), far, prior, rule)


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
            f"{classes} held-out classes have two pictures or more, and fewer than {LEAST_CLASSES} tell too little"
        )
    return folds


def _calibrated(now: Trials, growth: tuple[float, float], wanted: int, far: float, prior: float, rule: Rule) -> OpenSet:
    """The threshold, and what can be said of it.

    Args:
        growth: of −log(1 − FAR) and of DIR, from the classes of the trials to those wanted.
    """
    nominal = 1 - (1 - far) ** (1 / growth[0])
    left_out = _left_out(now, nominal * LEVELS)
    kept = np.flatnonzero(left_out <= nominal)
    if not len(kept):
        least = 1 - (1 - float(left_out[-1])) ** growth[0]
        raise NotCalibratedError(
            f"{now.classes} held-out classes are too few for a FAR of {100 * far:g} %: one of "
            f"{math.ceil(1000 * least) / 10:g} % is the lowest that they can tell"
        )
    threshold = _threshold(now.stranger, now.weight, nominal * LEVELS[int(kept[0])])
    detected = (now.known >= threshold) & now.right
    if detected.any():  # half-way to the next that is found: where all are far beyond, fewer strangers pass for nothing
        threshold = (threshold + float(now.known[detected].min())) / 2
    found = float(now.weight @ detected)
    passed = float(_left_out(now, np.array([float(now.weight @ (now.stranger >= threshold))]))[0])
    expected = 1 - (1 - passed) ** growth[0]
    # The variance of FAR is taken where that many strangers are accepted, not the fewer of the chosen threshold.
    accepted = now.stranger >= _threshold(now.stranger, now.weight, max(passed, nominal / 4))
    far_interval = _interval(expected, _variance(accepted, now, wanted) + _named_variance(accepted, now), now.classes)
    dir_interval = _interval(found * growth[1], _variance(detected, now, wanted) * growth[1] ** 2, now.classes)
    intercept, slope = _logistic(now, prior)
    return OpenSet(
        rule=rule,
        threshold=threshold,
        wished=far,
        far=expected,
        far_interval=far_interval,
        dir=found * growth[1],
        dir_interval=dir_interval,
        prior=prior,
        intercept=intercept + math.log(growth[1] / growth[0]),
        slope=slope,
        enrolled=wanted,
        rehearsed=now.enrolled,
        classes=now.classes,
        images=now.images,
    )


def _threshold(evidence: npt.NDArray[np.float32], weight: Doubles, rate: float) -> float:
    """The lowest threshold that at most this share of the weight reaches."""
    falling = np.argsort(-evidence, kind="stable")
    allowed = int(np.searchsorted(np.cumsum(weight[falling]), rate * (1 + 1e-9), side="right"))
    if allowed == len(falling):
        return -math.inf
    return float(np.nextafter(evidence[falling[allowed]], np.float32(np.inf)))


def _found(trials: Trials, rate: float) -> float:
    """DIR at a nominal FAR."""
    threshold = _threshold(trials.stranger, trials.weight, rate)
    return float(trials.weight @ ((trials.known >= threshold) & trials.right))


def _left_out(trials: Trials, rates: Doubles) -> Doubles:
    """(R,): for each nominal rate, the mean FAR of classes at thresholds that were found without them."""
    falling = np.argsort(-trials.stranger, kind="stable")
    # Whoever is below the threshold whichever class is left out need not be looked at.
    reach = int(np.searchsorted(np.cumsum(trials.weight[falling]), 2 * float(rates.max()) + 4 / trials.classes)) + 1
    falling = falling[:reach]
    evidence = np.append(trials.stranger[falling], -np.inf)
    label, named, weight = trials.label[falling], trials.named[falling], trials.weight[falling]
    total = np.zeros(len(rates))
    for one in range(trials.classes):
        own = label == one
        rest = np.cumsum(weight * ~(own | (named == one))) * trials.classes / (trials.classes - 1)
        first_refused = np.searchsorted(rest, rates * (1 + 1e-9), side="right")
        among = np.append(np.cumsum(weight * own), 0)
        # Accepted is what has more evidence than the first of the others that must be refused.
        above = np.searchsorted(-evidence, -evidence[first_refused], side="left")
        total += np.where(above > 0, among[above - 1], 0)
    return total


def _variance(hit: npt.NDArray[np.bool_], trials: Trials, enrolled: int) -> float:
    """Of the mean over new classes in one new round, and of its estimate: classes, rounds, and what is left."""
    rounds = int(trials.round.max()) + 1
    cell = trials.label * rounds + trials.round
    shape = trials.classes, rounds
    size = np.bincount(cell, minlength=trials.classes * rounds).reshape(shape)
    rate = np.bincount(cell, weights=hit, minlength=trials.classes * rounds).reshape(shape) / np.maximum(size, 1)
    there = size > 0  # a fold's rounds are not met by the classes of another
    mean = rate.sum() / there.sum()
    of_class = rate.sum(1) / there.sum(1) - mean
    of_round = rate.sum(0) / there.sum(0) - mean
    rest = np.where(there, rate - mean - of_class[:, None] - of_round, 0)
    freedom = max(1, int(there.sum()) - trials.classes - rounds + 1)
    classes = float(of_class.var(ddof=1)) * (1 / enrolled + 1 / trials.classes)
    return classes + float(of_round.var(ddof=1)) + float((rest**2).sum()) / freedom / enrolled


def _named_variance(accepted: npt.NDArray[np.bool_], trials: Trials) -> float:
    """Of FAR, by which classes are enrolled: some draw more strangers than others.

    In rounds of nearly all classes this varies little, and is to be added; it vanishes where there are many classes.
    """
    drawn = np.bincount(trials.named, weights=accepted * trials.weight, minlength=trials.classes) * trials.classes
    return float(drawn.var(ddof=1)) * 2 / trials.classes


def _interval(mean: float, variance: float, classes: int) -> tuple[float, float]:
    """The middle 90 % of a Beta distribution of this mean and variance, widened for few classes.

    None or all of C classes do not show a rate of 0 or 1: that one is 1/(4C) away is never excluded.
    """
    z = 1.645
    wider = (1 + (z * z + 1) / (4 * (classes - 1))) ** 2  # of Student's t to the normal, to first order
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


def _growth(half: Trials, whole: Trials, wanted: int, far: float) -> tuple[float, float]:
    """From the classes of the trials to more: factors of −log(1 − FAR) and of DIR, by their powers of the number."""
    threshold = _threshold(whole.stranger, whole.weight, max(far, MODERATE))
    more, step = math.log(wanted / whole.enrolled), math.log(whole.enrolled / half.enrolled)
    passed = [-math.log1p(-min(float(t.weight @ (t.stranger >= threshold)), 0.999)) for t in (half, whole)]
    found = [float(t.weight @ ((t.known >= threshold) & t.right)) for t in (half, whole)]
    theta = min(max(math.log(passed[1] / passed[0]) / step, 0), 1) if min(passed) > 0 else 1.0
    eta = max(math.log(found[0] / found[1]) / step, 0) if min(found) > 0 else 0.0
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
    slope = max(float(beta[1]) / scale, 0.0)  # more evidence is never less probable
    return float(beta[0]) - slope * centre if slope else _logit(float(weight @ target)), slope


def _sigmoid(x: Doubles) -> Doubles:
    return np.asarray(0.5 * (1 + np.tanh(0.5 * x)))


def _logit(p: float) -> float:
    return math.log(p / (1 - p))
