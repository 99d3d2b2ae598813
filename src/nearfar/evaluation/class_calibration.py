"""A threshold for classes that were never seen: how similar two images must be to count as the same class.

    FAR(t) = share of different-class pairs that score >= t        TAR(t) = share of same-class pairs that do
    precision(t) = p·TAR / (p·TAR + (1-p)·FAR)                     at a stated share p of same-class pairs

It is chosen on classes that the model was not trained on, and what it promises is for classes that it was not chosen on
either: every figure comes with the interval that the figure measured on so many other classes falls into.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, Self

from nearfar.errors import InputError
from nearfar.evaluation.calibration import calibrate
from nearfar.evaluation.class_intervals import Interval, Rates, in_percent, range_in_percent, rates
from nearfar.evaluation.class_means import check_confidence
from nearfar.evaluation.class_pairs import ClassPairs, class_pairs

# With fewer, most draws of classes lead to an interval that says nothing, and the others are the lucky ones, whose
# intervals are too narrow: docs/LOG.md.
CLASSES = 10
CLASS_PAIRS = 28  # 20 classes in five folds have 30
PRECISION = 0.95


class NotCalibratedError(InputError):
    """No threshold can be promised to hold for other classes; the message says why, and what would help."""


@dataclass(frozen=True)
class Measured:
    """What a threshold does on some classes. Intervals of `measured_at` are for the population of classes that these
    were drawn from: the figure of very many of them. Plain numbers, to be stored as JSON.
    """

    threshold: float
    share: float  # of same-class pairs, that precision is for
    confidence: float  # of the intervals
    far: float
    far_interval: Interval
    tar: float
    tar_interval: Interval
    precision: float | None  # None if nothing is accepted
    precision_interval: Interval
    classes: int
    images: int
    same_pairs: int
    different_pairs: int
    false_accepts: int

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, words and lists, as JSON has them."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Self:
        """What `to_dict` gave."""
        values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in stored.items()}
        return cls(**values)


@dataclass(frozen=True)
class Calibration(Measured):
    """A threshold, and what it did on the classes that it was chosen on. Intervals are for `unseen` other classes of
    the same kind: the figure measured on them lies within with probability `confidence`.
    """

    target: Literal["far", "precision"]
    wished: float
    unseen: int

    def sentence(self) -> str:
        """What is promised, in words."""
        precision, tar, far = map(range_in_percent, (self.precision_interval, self.tar_interval, self.far_interval))
        name = "precision" if self.target == "precision" else "false accept rate"
        return (
            f"Two images whose similarity is at least {self.threshold:.3f} count as the same class: chosen for a "
            f"{name} of {in_percent(self.wished)}, on {self.classes} classes with {self.images} images. "
            f"On {self.unseen} other classes, {precision} of the accepted pairs should be right where "
            f"{in_percent(self.share)} of the compared pairs are of one class, {tar} of the pairs of one class "
            f"accepted, and {far} of the others ({in_percent(self.confidence)} intervals)."
        )


def calibrate_on_classes(
    embeddings: Any,
    labels: Any,
    *,
    fold: Any = None,
    precision: float | None = None,
    far: float | None = None,
    share: float = 0.5,
    unseen: int | None = None,
    confidence: float = 0.9,
    seed: int = 0,
) -> Calibration:
    """The threshold of largest TAR with the wished precision or FAR, and intervals for classes never seen.

    The intervals (class_intervals.py) hold for classes of the same kind as these, with about as many images each. A
    `NotCalibratedError` says why nothing can be promised: there are fewer than 10 classes of two images or more, fewer
    than 28 pairs of classes can be compared (20 classes in five folds have 30), no threshold gives what is wished, or
    precision's interval reaches down to `share`, which accepting every pair gives too.

    Args:
        embeddings: (N, D) of images whose classes the model was not trained on; cosines are compared. Rows with NaN are
            left out. Binary codes, booleans or 0 and 1, are taken as -1 and 1.
        labels: (N,) their classes.
        fold: (N,) where several models embedded them, each those that it was not trained on: which one. Only rows of
            one fold are compared.
        precision: the wished share of same-class pairs among the accepted; 0.95 if neither is given.
        far: the wished share of different-class pairs that are accepted, instead.
        share: how many of the pairs that will be compared are of one class. Precision depends on it: at 0.5 it is
            flattering, among all pairs of a data set it is about 1 / classes.
        unseen: how many classes the intervals are for; without it as many as these.
        confidence: how often a measured figure lies within its interval.
        seed: of the images drawn where there are more than two million pairs.
    """
    if precision is None and far is None:
        precision = PRECISION
    _check(precision, far, share, confidence, unseen)
    pairs = class_pairs(embeddings, labels, fold, seed=seed)
    classes = _enough_classes(pairs)
    try:
        found = calibrate(pairs.scores, pairs.same, precision=precision, far=far, prior=share)
    except ValueError as error:
        raise NotCalibratedError(f"the threshold cannot be calibrated: {error}") from None
    counts = pairs.counts(found.threshold)
    unseen = unseen or classes
    result = rates(*counts, share=share, unseen=unseen, confidence=confidence)
    if result.precision_interval[0] <= share:
        raise NotCalibratedError(_says_nothing(result, share, unseen, confidence, classes))
    return Calibration(
        **_figures(found.threshold, pairs, result, share, confidence),
        target=found.target,
        wished=found.wished,
        unseen=unseen,
    )


def measured_at(
    threshold: float,
    embeddings: Any,
    labels: Any,
    *,
    share: float = 0.5,
    fold: Any = None,
    confidence: float = 0.9,
    seed: int = 0,
) -> Measured:
    """FAR, TAR and precision of a threshold on some classes, such as those of a test.

    The intervals are for the population that these classes were drawn from, not for a further test of as many classes,
    which would differ from this one by its own chance too. With fewer than three classes they are 0 to 1. The arguments
    are those of `calibrate_on_classes`.
    """
    _check(None, None, share, confidence, None)
    if math.isnan(threshold):
        raise InputError("threshold is NaN")
    pairs = class_pairs(embeddings, labels, fold, seed=seed)
    if pairs.same.all() or not pairs.same.any():  # or there are none
        raise InputError(
            f"there are {int(pairs.same.sum())} same-class and {int((~pairs.same).sum())} different-class pairs to "
            "compare: both kinds are needed"
        )
    result = rates(*pairs.counts(threshold), share=share, unseen=math.inf, confidence=confidence)
    return Measured(**_figures(threshold, pairs, result, share, confidence))


def _check(precision: float | None, far: float | None, share: float, confidence: float, unseen: int | None) -> None:
    if precision is not None and far is not None:
        raise InputError("give either precision= or far=")
    for name, value in (("precision", precision), ("far", far), ("share", share)):
        if value is not None and not 0 < value < 1:
            raise InputError(f"{name} must be between 0 and 1, not {value}")
    check_confidence(confidence)
    if unseen is not None and unseen < 2:
        raise InputError(f"unseen is a number of classes that are compared, at least 2, not {unseen}")
    if precision is not None and precision <= share:
        raise InputError(
            f"where {share:g} of the pairs are of one class, a precision of {precision:g} needs no threshold"
        )


def _enough_classes(pairs: ClassPairs) -> int:
    """How many classes have same-class pairs."""
    counts = pairs.counts(-math.inf)[1]
    classes = int((counts.diagonal() > 0).sum())
    compared = (int((counts > 0).sum()) - classes) // 2
    if classes < CLASSES:
        raise NotCalibratedError(
            f"the threshold cannot be calibrated: {classes} class{'es' * (classes != 1)} with two images or more that "
            f"the model was not trained on say{'s' * (classes == 1)} too little about others. At least {CLASSES} are "
            "needed, and 20 or more for an interval that helps: keep more classes from training, or collect more"
        )
    if compared < CLASS_PAIRS:
        raise NotCalibratedError(
            f"the threshold cannot be calibrated: only {compared} pairs of classes can be compared, since only classes "
            f"of one fold can, and at least {CLASS_PAIRS} are needed: make fewer folds, or collect more classes"
        )
    return classes


def _says_nothing(result: Rates, share: float, unseen: int, confidence: float, classes: int) -> str:
    needed = (
        f" With about {math.ceil(max(result.needed, classes + 1)):,} classes it might be told."
        if result.needed < 100 * classes
        else ""
    )
    return (
        f"the threshold cannot be calibrated: on {unseen} other classes its precision may be anything "
        f"({range_in_percent(result.precision_interval)} in {in_percent(confidence)} of cases), and "
        f"{in_percent(share)} would be reached by accepting every pair. A few of the {classes} classes decide it, by "
        f"looking alike. More classes would help, or a model that tells them apart better.{needed}"
    )


def _figures(threshold: float, pairs: ClassPairs, result: Rates, share: float, confidence: float) -> dict[str, Any]:
    same = pairs.same
    return {
        "threshold": float(threshold),
        "share": share,
        "confidence": confidence,
        "far": result.far,
        "far_interval": result.far_interval,
        "tar": result.tar,
        "tar_interval": result.tar_interval,
        "precision": result.precision,
        "precision_interval": result.precision_interval,
        "classes": pairs.classes,
        "images": pairs.images,
        "same_pairs": int(same.sum()),
        "different_pairs": int((~same).sum()),
        "false_accepts": int((pairs.scores[~same] >= threshold).sum()),
    }
