"""Identification trials on classes that the model was not trained on.

In every round, each class enrols some of its images, with numbers drawn from those of the index, and others are probes.
Each probe is tried twice against random classes of its fold:

    known:      its class and G − 1 others are enrolled.     Is its class named, and with what evidence?
    stranger:   G others are enrolled, but not its class.    With what evidence is a class named?
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from nearfar.evaluation.enrolment import Floats, Integers, Rule, best, class_scores, evidence
from nearfar.evaluation.ties import TIED

MOST_CLASSES = 256  # of a fold; more would be slower and hardly more accurate
MOST_ENROLLED = 30  # images of a class
PROBES = 3_000  # in a round, over all classes
MOST_OF_A_CLASS = 20  # probes
ROWS = 20_000  # target number of trials, reached by more rounds if there are few images
MOST_ROUNDS, LEAST_ROUNDS = 40, 4


@dataclass(frozen=True)
class Held:
    """The images of a fold: unit vectors (N, D) and class indices (N,) from 0 to C − 1, sorted.

    Every class has at least two images, so that one can be enrolled and another can be a probe.
    """

    vectors: Floats
    places: Integers

    @property
    def classes(self) -> int:
        """The number of classes."""
        return int(self.places[-1]) + 1


@dataclass(frozen=True)
class Trials:
    """The results of T probes, each as known probe and as stranger.

    Attributes:
        label: (T,) class of the probe, numbered over all folds.
        round: (T,) round of the probe; probes of a round met the same images of the same classes.
        known: (T,) evidence for the best class if the probe's class is enrolled.
        right: (T,) whether the best class is the probe's class.
        stranger: (T,) evidence for the best class if the probe's class is not enrolled.
        named: (T,) this best class.
        classes: C, over all folds.
        enrolled: G, the number of enrolled classes.
        images: the mean number of images that a class enrolled.
    """

    label: Integers
    round: Integers
    known: Floats
    right: npt.NDArray[np.bool_]
    stranger: Floats
    named: Integers
    classes: int
    enrolled: int
    images: float

    @cached_property
    def weight(self) -> npt.NDArray[np.float64]:
        """(T,) weights with a sum of 1, in which every class counts equally."""
        size = np.bincount(self.label, minlength=self.classes)
        return np.asarray(1 / (size[self.label] * self.classes))


def folds_of(vectors: Floats, labels: Integers, fold: Integers, seed: int = 0) -> list[Held]:
    """Prepare the folds for trials, without classes of one image and without folds of far fewer classes than others.

    Args:
        vectors: (N, D), of unit length; labels, fold: (N,).
    """
    rng = np.random.default_rng(seed)
    folds = []
    for number in np.unique(fold):
        rows = np.flatnonzero(fold == number)
        names, size = np.unique(labels[rows], return_counts=True)
        names = names[size > 1]
        if len(names) > MOST_CLASSES:
            names = np.sort(rng.choice(names, MOST_CLASSES, replace=False))
        rows = rows[np.isin(labels[rows], names)]
        rows = rows[np.argsort(labels[rows], kind="stable")]
        if len(names) > 1:
            folds.append(Held(vectors[rows], np.searchsorted(names, labels[rows])))
    most = max((held.classes for held in folds), default=0)
    return [held for held in folds if 2 * held.classes >= most]


def rehearse(folds: list[Held], counts: Integers, enrolled: int, rule: Rule, seed: int = 0) -> Trials:
    """Run rounds of trials in every fold.

    Args:
        folds: the result of `folds_of`; each must have more than `enrolled` classes.
        counts: numbers of images of enrolled classes, from which each class draws one. A class with too few images
            enrols all but one of them.
        enrolled: G, the number of enrolled classes.
        rule: how a class is scored.
        seed: the seed of the trials.
    """
    rng = np.random.default_rng(seed)
    total = sum(held.classes for held in folds)
    probes = min(MOST_OF_A_CLASS, max(2, PROBES // total))
    rounds = min(MOST_ROUNDS, max(LEAST_ROUNDS, ROWS // (probes * total)))
    parts: list[list[npt.NDArray[Any]]] = []
    images, first = [], 0
    for held in folds:
        for _ in range(rounds):
            gallery_rows, probe_rows = _draw(held, counts, probes, rng)
            labels, gallery = held.places[probe_rows], held.vectors[gallery_rows]
            scores = class_scores(held.vectors[probe_rows], gallery, held.places[gallery_rows], held.classes, rule)
            order = rng.permutation(held.classes)
            for start in range(0, min(held.classes, 10 * enrolled), enrolled):
                known, right, stranger, named = _try(scores, labels, np.roll(order, -start), enrolled)
                number = np.full(len(labels), len(parts))
                parts.append([labels + first, number, known, right, stranger, named + first])
            images.append(len(gallery_rows) / held.classes)
        first += held.classes
    label, number, known, right, stranger, named = (np.concatenate(column) for column in zip(*parts, strict=True))
    return Trials(label, number, known, right, stranger, named, total, enrolled, float(np.mean(images)))


def _try(
    scores: Floats, labels: Integers, order: Integers, enrolled: int
) -> tuple[Floats, npt.NDArray[np.bool_], Floats, Integers]:
    """Try every probe as known probe and as stranger. Returns `known`, `right`, `stranger` and `named` of `Trials`.

    The first G classes of the order are enrolled. For a stranger of one of them, the next class takes its place.
    """
    rows = np.arange(len(labels))
    true_score = scores[rows, labels]
    position = np.argsort(order)[labels]
    columns = np.arange(enrolled)
    others = order[columns + (columns >= position[:, None])]
    other_scores = np.take_along_axis(scores, others, axis=1)
    strangers = best(other_scores)
    named = others[rows, strangers.place]
    if enrolled == 1:
        right = np.ones(len(labels), np.bool_)
        return evidence(true_score, np.zeros_like(true_score)), right, strangers.evidence, named
    rivals = best(other_scores[:, :-1])  # the probe's class takes the place of the last one
    right = true_score > rivals.score + TIED
    second_rival = rivals.runner_up_score if enrolled > 2 else true_score
    second = np.where(right, rivals.score, np.maximum(true_score, second_rival))
    return evidence(np.where(right, true_score, rivals.score), second), right, strangers.evidence, named


def _draw(held: Held, counts: Integers, probes: int, rng: np.random.Generator) -> tuple[Integers, Integers]:
    """Draw the rows to enrol and the rows of the probes."""
    size = np.bincount(held.places)
    starts = np.cumsum(size) - size
    shuffled = np.lexsort((rng.random(len(held.places)), held.places))
    rank = np.arange(len(shuffled)) - starts[held.places[shuffled]]
    wanted = np.minimum(rng.choice(counts, held.classes), MOST_ENROLLED)
    taken = np.minimum(wanted, size - 1)[held.places[shuffled]]
    return shuffled[rank < taken], shuffled[(rank >= taken) & (rank < taken + probes)]
