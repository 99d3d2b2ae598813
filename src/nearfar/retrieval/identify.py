"""`Identifier`: which enrolled class a picture is of, or none of them. Classes are enrolled by indexing their images.

index = open_index("runs/dogs/index")
identifier = Identifier.of(index, Run("runs/dogs"))
identifier.answers(encoder.embed(["dog.jpg"]))[0].who            # "Rex", or None for none of them
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nearfar.evaluation import NotCalibratedError, OpenSet, calibrate_open_set
from nearfar.evaluation.class_intervals import in_percent, range_in_percent
from nearfar.evaluation.enrolment import Best, best
from nearfar.foundation.run_folder import RunError
from nearfar.retrieval.index import About, Floats, Index, RetrievalError
from nearfar.retrieval.vectors import packed, unit, unpacked
from nearfar.training.held_out import held_out_of
from nearfar.training.runs import Run

FAR, PRIOR = 0.01, 0.5
HITS = 32  # that are looked at first, to find images of two classes


@dataclass(frozen=True)
class Answer:
    """Who it is.

    Attributes:
        who: the class, where there is evidence enough to name it at the wished false accept rate; else None.
        verdict: "enrolled"; "unsure", where `nearest` is more probable than not, but cannot be named at that rate;
            "none" of them; or "uncalibrated", where similarities are all there is.
        probability: that `nearest` is right; None where it is not calibrated.
        nearest, similarity: the best class, and how similar the picture is to its template, or its nearest image.
        runner_up, runner_up_similarity: the same of the second; None where one class alone is enrolled.
    """

    who: str | None
    verdict: str
    probability: float | None
    nearest: str
    similarity: float
    runner_up: str | None
    runner_up_similarity: float | None

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


@dataclass(frozen=True, eq=False)
class Enrolled:
    """The classes of an index.

    Attributes:
        names: of the G classes, in order.
        counts: (G,) how many images each has.
        sums: (G, D) of their unit vectors.
        place: of every image that has a label, by its id.
    """

    names: tuple[str, ...]
    counts: NDArray[np.int64]
    sums: NDArray[np.float64]
    place: dict[str, int]

    @classmethod
    def of(cls, index: Index) -> "Enrolled":
        """What an index holds now; images without a label are passed over."""
        label = {item.id: item.label for item in index.listed() if item.label}
        names = tuple(sorted(set(label.values())))
        if not names:
            raise RetrievalError(
                f"{index.where} has no classes to tell apart: enrol some, a folder of images for each: "
                "nearfar index RUN FOLDER"
            )
        number = {name: place for place, name in enumerate(names)}
        place = {image: number[name] for image, name in label.items()}
        sums = np.zeros((len(names), index.about.dimension))
        for ids, vectors in index.pieces():
            rows = [row for row, image in enumerate(ids) if image in place]
            np.add.at(sums, [place[ids[row]] for row in rows], vectors[rows])
        counts = np.bincount(list(place.values()), minlength=len(names))
        return cls(names, counts, sums, place)

    @cached_property
    def templates(self) -> Floats:
        """(G, D): the sums, of unit length."""
        return _unit(self.sums)

    @property
    def state(self) -> tuple[Any, ...]:
        """What calibration depends on."""
        return self.names, *self.counts.tolist()


def calibration_of(run: Run, about: About, counts: NDArray[np.int64], far: float, prior: float) -> OpenSet:
    """How to tell who it is among classes of so many images, from what a run held out.

    Raises `NotCalibratedError`, which says why, and nothing of where things are, where a run has nothing to go by.
    """
    try:
        held = held_out_of(run)
    except RunError as error:
        raise NotCalibratedError("the run's held_out.npz is damaged: train it again") from error
    if held is None:
        raise NotCalibratedError(
            "the run has kept no embeddings of held-out classes, as runs do now: train it again "
            "(nearfar train --config RUN/config.yaml)"
        )
    if not held.open_set:
        raise NotCalibratedError(
            "the run held out images of classes that it was trained on, and these tell nothing of new classes: "
            "train again with classes held out (--validation 0.2)"
        )
    if held.embeddings.shape[1] != about.dimension:
        raise NotCalibratedError("the embeddings that the run held out are of another model: train it again")
    good = np.isfinite(held.embeddings).all(1)
    vectors = _as_indexed(held.embeddings[good], about)
    return calibrate_open_set(vectors, held.labels[good], counts, fold=held.fold[good], far=far, prior=prior)


class Identifier:
    """An index whose classes are told apart.

    Args:
        index: of the run's model.
        enrolled: its classes.
        calibration: None where there is none; `why_not` then says why.
    """

    def __init__(self, index: Index, enrolled: Enrolled, calibration: OpenSet | None, why_not: str = ""):
        self.index, self.enrolled, self.calibration, self.why_not = index, enrolled, calibration, why_not

    @classmethod
    def of(cls, index: Index, run: Run, *, far: float = FAR, prior: float = PRIOR) -> "Identifier":
        """For what an index holds now.

        Args:
            far: the share of pictures of unknown things that may be taken for an enrolled one.
            prior: how likely a picture is of an enrolled class, for the probability.
        """
        enrolled = Enrolled.of(index)
        try:
            return cls(index, enrolled, calibration_of(run, index.about, enrolled.counts, far, prior))
        except NotCalibratedError as error:
            return cls(index, enrolled, None, str(error))

    def answers(self, vectors: Floats, ids: Sequence[str] | None = None) -> list[Answer]:
        """Who each is.

        Args:
            vectors: (Q, D) embeddings, as the model gives them.
            ids: of the pictures. One that is enrolled itself is judged by the others of its class.
        """
        x = _as_indexed(vectors, self.index.about)
        found = self.calibration
        own = [None] * len(x) if ids is None else [image if image in self.enrolled.place else None for image in ids]
        told = self._by_nearest(x, own) if found and found.rule == "nearest" else self._by_template(x, own)
        probability = found.probability(told.evidence) if found else np.full(len(x), np.nan)
        accepted = found.accepts(told.evidence) if found else np.zeros(len(x), np.bool_)
        names = self.enrolled.names
        return [
            Answer(
                who=names[place] if accepted[row] else None,
                verdict=_verdict(bool(accepted[row]), float(probability[row])) if found else "uncalibrated",
                probability=None if found is None else float(probability[row]),
                nearest=names[place],
                similarity=float(told.score[row]),
                runner_up=names[second] if (second := int(told.runner_up[row])) >= 0 else None,
                runner_up_similarity=float(told.runner_up_score[row]) if second >= 0 else None,
            )
            for row, place in enumerate(told.place.tolist())
        ]

    def _by_template(self, x: Floats, own: Sequence[str | None]) -> Best:
        scores = x @ self.enrolled.templates.T
        for row, image in enumerate(own):
            if image is not None:
                place = self.enrolled.place[image]
                rest = _unit(self.enrolled.sums[place] - self.index.vectors([image]))
                alone = self.enrolled.counts[place] == 1
                scores[row, place] = -1 if alone else float(rest[0] @ x[row])
        return best(scores)

    def _by_nearest(self, x: Floats, own: Sequence[str | None]) -> Best:
        """By searches that grow until they have met two classes."""
        found: list[list[tuple[int, float]]] = [[] for _ in x]
        waiting, k = list(range(len(x))), HITS
        wanted = min(2, len(self.enrolled.names))
        while waiting:
            for row, hits in zip(waiting, self.index.search(x[waiting], k), strict=True):
                first: dict[int, float] = {}
                for hit in hits:
                    if hit.id in self.enrolled.place and hit.id != own[row]:
                        first.setdefault(self.enrolled.place[hit.id], hit.similarity)
                found[row] = list(first.items())[:2]
            waiting = [row for row in waiting if len(found[row]) < wanted and k < len(self.index)]
            k = min(8 * k, len(self.index))
        # Who is the only image of the only class is like nothing else.
        pairs = [[*(one or [(0, -1.0)]), (-1, 0.0)][:2] for one in found]
        places = np.array([[place for place, _ in pair] for pair in pairs], np.int64).reshape(-1, 2)
        scores = np.array([[score for _, score in pair] for pair in pairs], np.float32).reshape(-1, 2)
        return Best(places[:, 0], scores[:, 0], places[:, 1], scores[:, 1])


def _verdict(accepted: bool, probability: float) -> str:
    return "enrolled" if accepted else "unsure" if probability >= 0.5 else "none"


def in_words(found: OpenSet) -> str:
    """What a calibration promises."""
    how = "by its template, the mean of its images" if found.rule == "template" else "by its nearest image"
    lines = [
        f"A class is judged {how}.",
        f"Of pictures of things that are not enrolled, {in_percent(found.far)} are taken for one "
        f"({range_in_percent(found.far_interval)});",
        f"of those of enrolled classes, {in_percent(found.dir)} are named, and rightly "
        f"({range_in_percent(found.dir_interval)}).",
        f"In brackets: 90 % of indexes like this one, of new classes; from {found.classes} held-out classes.",
    ]
    if found.enrolled > found.rehearsed:
        lines.append(f"Carried on from {found.rehearsed} enrolled classes, the most that these allow.")
    return "\n".join(lines)


def _as_indexed(vectors: Floats, about: About) -> Floats:
    """Unit vectors, or the signs of codes, as the index has them."""
    return unpacked(packed(vectors), about.dimension) if about.similarity == "hamming" else unit(vectors)


def _unit(x: NDArray[np.float64]) -> Floats:
    lengths = np.linalg.norm(x, axis=1, keepdims=True)
    return np.asarray(x / np.where(lengths > 0, lengths, 1), np.float32)
