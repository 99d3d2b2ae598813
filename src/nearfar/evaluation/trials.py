"""Identification rehearsed on classes that the model was not trained on.

In every round each class enrols some of its pictures, as many as the classes of the index at hand; others are probes. A
probe plays two parts, against classes drawn at random from its fold:

    known:      its own class and G − 1 others are enrolled.     Is its class named, and with how much evidence?
    stranger:   G others are enrolled, and its own is not.       With how much evidence is some class named?

so that every picture tells of both, at exactly the number of classes that is asked for.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from nearfar.evaluation.enrolment import Floats, Integers, Rule, best, class_scores, evidence
from nearfar.evaluation.ties import TIED

MOST_CLASSES = 256  # of a fold: more make the trials slower, and the answer little surer
MOST_ENROLLED = 30  # pictures of a class
PROBES = 3_000  # in a round, of all classes together
MOST_OF_A_CLASS = 20  # probes
ROWS = 20_000  # trials that are wished for, by more rounds where there are few pictures
MOST_ROUNDS, LEAST_ROUNDS = 40, 4


@dataclass(frozen=True)
class Held:
    """Pictures of one fold that can be compared: unit vectors (N, D), and their classes (N,) as places 0 … C − 1.

    Every class has two pictures at least, so that one can be enrolled and another be the probe.
    """

    vectors: Floats
    places: Integers

    @property
    def classes(self) -> int:
        """C."""
        return int(self.places[-1]) + 1


@dataclass(frozen=True)
class Trials:
    """What became of T probes, each in both parts.

    Attributes:
        label: (T,) the class of the probe, over all folds.
        round: (T,) the enrolment that it met; those of one round met the same pictures of the same classes.
        known: (T,) the evidence for the best class where its own is enrolled; `right`: whether that is its own.
        stranger: (T,) the evidence where its own is not enrolled; `named`: (T,) for which class that is.
        classes: C, over all folds.
        enrolled: G, how many classes were enrolled.
        images: the mean number of pictures that a class enrolled.
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
        """(T,) such that every class counts alike, 1 in all."""
        size = np.bincount(self.label, minlength=self.classes)
        return np.asarray(1 / (size[self.label] * self.classes))


def folds_of(vectors: Floats, labels: Integers, fold: Integers, seed: int = 0) -> list[Held]:
    """The folds that trials can be made with; classes of one picture are left out, and folds of much fewer classes.

    Args:
        vectors: (N, D), of unit length; labels, fold: (N,).
    """
    rng = np.random.default_rng(seed)
    found = []
    for number in np.unique(fold):
        rows = np.flatnonzero(fold == number)
        names, size = np.unique(labels[rows], return_counts=True)
        names = names[size > 1]
        if len(names) > MOST_CLASSES:
            names = np.sort(rng.choice(names, MOST_CLASSES, replace=False))
        rows = rows[np.isin(labels[rows], names)]
        rows = rows[np.argsort(labels[rows], kind="stable")]
        if len(names) > 1:
            found.append(Held(vectors[rows], np.searchsorted(names, labels[rows])))
    most = max((held.classes for held in found), default=0)
    return [held for held in found if 2 * held.classes >= most]


def rehearse(folds: list[Held], counts: Integers, enrolled: int, rule: Rule, seed: int = 0) -> Trials:
    """Rounds of trials in every fold.

    Args:
        folds: of `folds_of`; each has more than `enrolled` classes.
        counts: numbers of pictures of enrolled classes, from which each class draws one. A class with too few pictures
            enrols all but one of them.
        enrolled: G.
        rule: how a class is scored.
    """
    rng = np.random.default_rng(seed)
    total = sum(held.classes for held in folds)
    probes = min(MOST_OF_A_CLASS, max(2, PROBES // total))
    rounds = min(MOST_ROUNDS, max(LEAST_ROUNDS, ROWS // (probes * total)))
    parts: list[list[npt.NDArray[Any]]] = []
    images, first = [], 0
    for held in folds:
        for _ in range(rounds):
            chosen, asked = _dealt(held, counts, probes, rng)
            own, among = held.places[asked], held.vectors[chosen]
            scores = class_scores(held.vectors[asked], among, held.places[chosen], held.classes, rule)
            order = rng.permutation(held.classes)
            for start in range(0, min(held.classes, 10 * enrolled), enrolled):
                known, right, stranger, named = _met(scores, own, np.roll(order, -start), enrolled)
                number = np.full(len(own), len(parts))
                parts.append([own + first, number, known, right, stranger, named + first])
            images.append(len(chosen) / held.classes)
        first += held.classes
    label, number, known, right, stranger, named = (np.concatenate(column) for column in zip(*parts, strict=True))
    return Trials(label, number, known, right, stranger, named, total, enrolled, float(np.mean(images)))


def _met(
    scores: Floats, own: Integers, order: Integers, enrolled: int
) -> tuple[Floats, npt.NDArray[np.bool_], Floats, Integers]:
    """Every probe in both parts: `known`, `right`, `stranger` and `named` of `Trials`.

    The first G classes of the order are enrolled; who is of one of these meets the next one in its place as a stranger.
    """
    rows = np.arange(len(own))
    mine = scores[rows, own]
    place = np.argsort(order)[own]
    columns = np.arange(enrolled)
    others = order[columns + (columns >= place[:, None])]
    foreign = np.take_along_axis(scores, others, axis=1)
    met = best(foreign)
    named = others[rows, met.place]
    if enrolled == 1:
        return evidence(mine, np.zeros_like(mine)), np.ones(len(own), np.bool_), met.evidence, named
    rivals = best(foreign[:, :-1])  # the last of them gives way to the own class
    right = mine > rivals.score + TIED
    beaten_by = rivals.runner_up_score if enrolled > 2 else mine
    second = np.where(right, rivals.score, np.maximum(mine, beaten_by))
    return evidence(np.where(right, mine, rivals.score), second), right, met.evidence, named


def _dealt(held: Held, counts: Integers, probes: int, rng: np.random.Generator) -> tuple[Integers, Integers]:
    """Rows that are enrolled and rows that are probes."""
    size = np.bincount(held.places)
    starts = np.cumsum(size) - size
    shuffled = np.lexsort((rng.random(len(held.places)), held.places))
    rank = np.arange(len(shuffled)) - starts[held.places[shuffled]]
    wished = np.minimum(rng.choice(counts, held.classes), MOST_ENROLLED)
    taken = np.minimum(wished, size - 1)[held.places[shuffled]]
    return shuffled[rank < taken], shuffled[(rank >= taken) & (rank < taken + probes)]
