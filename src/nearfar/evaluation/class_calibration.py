"""A similarity threshold for unseen classes: how similar two images must be to count as the same class.

    FAR(t) = share of different-class pairs that score >= t        TAR(t) = share of same-class pairs that do
    precision(t) = p·TAR / (p·TAR + (1-p)·FAR)                     at a stated share p of same-class pairs

The threshold is chosen on classes that the model was not trained on. Each rate has a prediction interval for the rate
measured on other classes, which the threshold was not chosen on.
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

# With fewer classes, most intervals are uninformative, and the remaining ones are too narrow: see docs/LOG.md.
CLASSES = 10
CLASS_PAIRS = 28  # 20 classes in five folds have 30
PRECISION = 0.95


class NotCalibratedError(InputError):
    """No threshold can be expected to hold for other classes. The message says why, and what would help."""


@dataclass(frozen=True)
class Measured:
    """The rates of a threshold on some classes. The intervals of `measured_at` are for the population of classes that
    these were drawn from.
    """

    threshold: float
    share: float  # of same-class pairs, which the precision assumes
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
        """The fields as JSON values."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Self:
        """The inverse of `to_dict`."""
        values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in stored.items()}
        return cls(**values)


@dataclass(frozen=True)
class Calibration(Measured):
    """A threshold, with its rates on the classes that it was chosen on. The rates measured on `unseen` other classes of
    the same kind lie in the intervals with probability `confidence`.
    """

    target: Literal["far", "precision"]
    wished: float
    unseen: int

    def sentence(self) -> str:
        """A description for the user."""
        precision, tar, far = map(range_in_percent, (self.precision_interval, self.tar_interval, self.far_interval))
        name = "precision" if self.target == "precision" else "false accept rate"
        return (
            f"Two images count as the same class if their similarity is at least {self.threshold:.3f}. This "
            f"threshold was chosen for a {name} of {in_percent(self.wished)} on {self.classes} classes with "
            f"{self.images} images. For {self.unseen} other classes, the {in_percent(self.confidence)} intervals are: "
            f"precision {precision}, if {in_percent(self.share)} of the compared pairs are of the same class; true "
            f"accept rate {tar}; false accept rate {far}."
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
    """Choose the threshold of largest TAR with a target precision or FAR, with intervals for unseen classes.

    The intervals (class_intervals.py) hold for classes of the same kind with about as many images each. Raises
    `NotCalibratedError` if there are fewer than 10 classes of two or more images, if fewer than 28 pairs of classes can
    be compared (20 classes in five folds have 30), if no threshold meets the target, or if the interval of the
    precision reaches down to `share`, which is the precision of accepting every pair.

    Args:
        embeddings: (N, D) of images whose classes the model was not trained on. They are compared by cosine. Rows with
            NaN are left out. Binary codes (booleans, or 0 and 1) are taken as -1 and 1.
        labels: (N,) class of each row.
        fold: (N,) the model that embedded each row, if several models embedded the classes that they were not trained
            on. Only rows of the same fold are compared.
        precision: the target share of same-class pairs among the accepted pairs; 0.95 if `far` is not given either.
        far: the target share of accepted pairs among the different-class pairs, instead of `precision`.
        share: the share of same-class pairs among the pairs that will be compared, on which the precision depends. 0.5
            is optimistic: among all pairs of a data set, the share is about 1 / classes.
        unseen: the number of classes that the intervals are for; by default as many as these.
        confidence: the probability that a measured rate lies in its interval.
        seed: the seed of the sample of images if there are more than two million pairs.
    """
    if precision is None and far is None:
        precision = PRECISION
    _check(precision, far, share, confidence, unseen)
    pairs = class_pairs(embeddings, labels, fold, seed=seed)
    classes = _enough_classes(pairs)
    try:
        threshold = calibrate(pairs.scores, pairs.same, precision=precision, far=far, prior=share)
    except ValueError as error:
        raise NotCalibratedError(f"the threshold cannot be calibrated: {error}") from None
    counts = pairs.counts(threshold.threshold)
    unseen = unseen or classes
    result = rates(*counts, share=share, unseen=unseen, confidence=confidence)
    if result.precision_interval[0] <= share:
        raise NotCalibratedError(_uninformative(result, share, unseen, confidence, classes))
    return Calibration(
        **_fields(threshold.threshold, pairs, result, share, confidence),
        target=threshold.target,
        wished=threshold.wished,
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
    """Measure FAR, TAR and precision of a threshold on some classes, such as test classes.

    The intervals are for the population that these classes were drawn from. Another test of the same size varies more.
    With fewer than three classes the intervals are 0 to 1. The arguments are those of `calibrate_on_classes`.
    """
    _check(None, None, share, confidence, None)
    if math.isnan(threshold):
        raise InputError("threshold is NaN")
    pairs = class_pairs(embeddings, labels, fold, seed=seed)
    if pairs.same.all() or not pairs.same.any():  # includes the case of no pairs
        raise InputError(
            f"there are {int(pairs.same.sum())} same-class and {int((~pairs.same).sum())} different-class pairs to "
            "compare: both kinds are needed"
        )
    result = rates(*pairs.counts(threshold), share=share, unseen=math.inf, confidence=confidence)
    return Measured(**_fields(threshold, pairs, result, share, confidence))


def _check(precision: float | None, far: float | None, share: float, confidence: float, unseen: int | None) -> None:
    if precision is not None and far is not None:
        raise InputError("give either precision= or far=")
    for name, value in (("precision", precision), ("far", far), ("share", share)):
        if value is not None and not 0 < value < 1:
            raise InputError(f"{name} must be between 0 and 1, not {value}")
    check_confidence(confidence)
    if unseen is not None and unseen < 2:
        raise InputError(f"unseen must be a number of classes, at least 2, not {unseen}")
    if precision is not None and precision <= share:
        raise InputError(
            f"a share of {share:g} of same-class pairs has a precision of {precision:g} without any threshold: "
            "ask for a higher precision, or give a lower share"
        )


def _enough_classes(pairs: ClassPairs) -> int:
    """The number of classes with same-class pairs. Raises `NotCalibratedError` if there are too few."""
    counts = pairs.counts(-math.inf)[1]
    classes = int((counts.diagonal() > 0).sum())
    compared = (int((counts > 0).sum()) - classes) // 2
    if classes < CLASSES:
        raise NotCalibratedError(
            f"the threshold cannot be calibrated: only {classes} class{'es' * (classes != 1)} with two or more images "
            f"{'was' if classes == 1 else 'were'} not used in training. At least {CLASSES} are needed, and 20 or more "
            "for a narrow interval: hold out more classes from training, or collect more"
        )
    if compared < CLASS_PAIRS:
        raise NotCalibratedError(
            f"the threshold cannot be calibrated: only {compared} pairs of classes are in the same fold, and at least "
            f"{CLASS_PAIRS} are needed: make fewer folds, or collect more classes"
        )
    return classes


def _uninformative(result: Rates, share: float, unseen: int, confidence: float, classes: int) -> str:
    needed = (
        f" About {math.ceil(max(result.needed, classes + 1)):,} classes might be enough."
        if result.needed < 100 * classes
        else ""
    )
    return (
        f"the threshold cannot be calibrated: on {unseen} other classes its precision is too uncertain "
        f"({range_in_percent(result.precision_interval)} in {in_percent(confidence)} of cases), and accepting every "
        f"pair would already give {in_percent(share)}. A few similar classes among the {classes} determine it. More "
        f"classes would help, or a model that separates them better.{needed}"
    )


def _fields(threshold: float, pairs: ClassPairs, result: Rates, share: float, confidence: float) -> dict[str, Any]:
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
