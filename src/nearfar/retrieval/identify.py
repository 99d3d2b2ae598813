"""`Identifier`: open-set identification of images. Classes are enrolled by indexing their images.

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
HITS = 32  # of the first search for images of two classes


@dataclass(frozen=True)
class Answer:
    """The identification of an image.

    Attributes:
        who: the class, if the evidence suffices at the target false accept rate, else None.
        verdict: "enrolled"; "unsure" if `nearest` is more probable than not, but not accepted at the target rate;
            "none" of the enrolled classes; or "uncalibrated" if there are only similarities.
        probability: the probability that `nearest` is right; None without calibration.
        nearest, similarity: the best class, and the similarity to its template or to its nearest image.
        runner_up, runner_up_similarity: the second class and its similarity; None if only one class is enrolled.
    """

    who: str | None
    verdict: str
    probability: float | None
    nearest: str
    similarity: float
    runner_up: str | None
    runner_up_similarity: float | None

    def to_dict(self) -> dict[str, Any]:
        """The fields as JSON values."""
        return asdict(self)


@dataclass(frozen=True, eq=False)
class Enrolled:
    """The classes of an index.

    Attributes:
        names: the sorted names of the G classes.
        counts: (G,) numbers of their images.
        sums: (G, D) sums of their unit vectors.
        place: class index of every labelled image, by its id.
    """

    names: tuple[str, ...]
    counts: NDArray[np.int64]
    sums: NDArray[np.float64]
    place: dict[str, int]

    @classmethod
    def of(cls, index: Index) -> "Enrolled":
        """Read the present classes of an index. Images without a label are skipped."""
        label = {item.id: item.label for item in index.listed() if item.label}
        names = tuple(sorted(set(label.values())))
        if not names:
            raise RetrievalError(
                f"{index.where} has no classes: enrol some with a folder of images for each: nearfar index RUN FOLDER"
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
        """(G, D): the sums, normalised to unit length."""
        return _unit(self.sums)

    @property
    def state(self) -> tuple[Any, ...]:
        """The values that the calibration depends on."""
        return self.names, *self.counts.tolist()


def calibration_of(run: Run, about: About, counts: NDArray[np.int64], far: float, prior: float) -> OpenSet:
    """Calibrate the identification among classes of `counts` images on the held-out classes of a run.

    Raises `NotCalibratedError` with the reason, without any paths, if the run has no suitable held-out classes.
    """
    try:
        held_out = held_out_of(run)
    except RunError as error:
        raise NotCalibratedError("the run's held_out.npz is damaged: train it again") from error
    if held_out is None:
        raise NotCalibratedError(
            "the run has no embeddings of held-out classes, because an older version made it: train it again "
            "(nearfar train --config RUN/config.yaml)"
        )
    if not held_out.open_set:
        raise NotCalibratedError(
            "the run held out images of its training classes, which cannot represent new classes: "
            "train again with classes held out (--validation 0.2)"
        )
    if held_out.embeddings.shape[1] != about.dimension:
        raise NotCalibratedError("the held-out embeddings of the run belong to another model: train it again")
    good = np.isfinite(held_out.embeddings).all(1)
    vectors = _as_indexed(held_out.embeddings[good], about)
    return calibrate_open_set(vectors, held_out.labels[good], counts, fold=held_out.fold[good], far=far, prior=prior)


class Identifier:
    """Identifies images among the classes of an index.

    Args:
        index: an index of the run's model.
        enrolled: the classes of the index.
        calibration: the calibration, or None.
        why_not: the reason if there is no calibration.
    """

    def __init__(self, index: Index, enrolled: Enrolled, calibration: OpenSet | None, why_not: str = ""):
        self.index, self.enrolled, self.calibration, self.why_not = index, enrolled, calibration, why_not

    @classmethod
    def of(cls, index: Index, run: Run, *, far: float = FAR, prior: float = PRIOR) -> "Identifier":
        """Make an identifier for the present classes of an index, calibrated on a run's held-out classes.

        Args:
            index: an index of the run's model.
            run: the run.
            far: the target share of images of unknown classes that are accepted.
            prior: the probability that an image is of an enrolled class.
        """
        enrolled = Enrolled.of(index)
        try:
            return cls(index, enrolled, calibration_of(run, index.about, enrolled.counts, far, prior))
        except NotCalibratedError as error:
            return cls(index, enrolled, None, str(error))

    def answers(self, vectors: Floats, ids: Sequence[str] | None = None) -> list[Answer]:
        """Identify embeddings.

        Args:
            vectors: (Q, D) embeddings of the model.
            ids: the ids of the images. An enrolled image is compared with the other images of its class.
        """
        x = _as_indexed(vectors, self.index.about)
        calibration = self.calibration
        enrolled = (
            [None] * len(x) if ids is None else [image if image in self.enrolled.place else None for image in ids]
        )
        by_nearest = calibration is not None and calibration.rule == "nearest"
        result = self._by_nearest(x, enrolled) if by_nearest else self._by_template(x, enrolled)
        probability = calibration.probability(result.evidence) if calibration else np.full(len(x), np.nan)
        accepted = calibration.accepts(result.evidence) if calibration else np.zeros(len(x), np.bool_)
        names = self.enrolled.names
        return [
            Answer(
                who=names[place] if accepted[row] else None,
                verdict=_verdict(bool(accepted[row]), float(probability[row])) if calibration else "uncalibrated",
                probability=None if calibration is None else float(probability[row]),
                nearest=names[place],
                similarity=float(result.score[row]),
                runner_up=names[second] if (second := int(result.runner_up[row])) >= 0 else None,
                runner_up_similarity=float(result.runner_up_score[row]) if second >= 0 else None,
            )
            for row, place in enumerate(result.place.tolist())
        ]

    def _by_template(self, x: Floats, enrolled: Sequence[str | None]) -> Best:
        scores = x @ self.enrolled.templates.T
        for row, image in enumerate(enrolled):
            if image is not None:
                place = self.enrolled.place[image]
                rest = _unit(self.enrolled.sums[place] - self.index.vectors([image]))
                only_image = self.enrolled.counts[place] == 1
                scores[row, place] = -1 if only_image else float(rest[0] @ x[row])
        return best(scores)

    def _by_nearest(self, x: Floats, enrolled: Sequence[str | None]) -> Best:
        """Search for more and more images until there are two classes among the hits."""
        nearest: list[list[tuple[int, float]]] = [[] for _ in x]
        waiting, k = list(range(len(x))), HITS
        wanted = min(2, len(self.enrolled.names))
        while waiting:
            for row, hits in zip(waiting, self.index.search(x[waiting], k), strict=True):
                first: dict[int, float] = {}
                for hit in hits:
                    if hit.id in self.enrolled.place and hit.id != enrolled[row]:
                        first.setdefault(self.enrolled.place[hit.id], hit.similarity)
                nearest[row] = list(first.items())[:2]
            waiting = [row for row in waiting if len(nearest[row]) < wanted and k < len(self.index)]
            k = min(8 * k, len(self.index))
        # The only image of the only class has nothing to be compared with.
        pairs = [[*(classes or [(0, -1.0)]), (-1, 0.0)][:2] for classes in nearest]
        places = np.array([[place for place, _ in pair] for pair in pairs], np.int64).reshape(-1, 2)
        scores = np.array([[score for _, score in pair] for pair in pairs], np.float32).reshape(-1, 2)
        return Best(places[:, 0], scores[:, 0], places[:, 1], scores[:, 1])


def _verdict(accepted: bool, probability: float) -> str:
    return "enrolled" if accepted else "unsure" if probability >= 0.5 else "none"


def in_words(calibration: OpenSet) -> str:
    """A description of a calibration for the user."""
    template = calibration.rule == "template"
    lines = [
        f"Classes are compared by their {'templates (mean embeddings)' if template else 'nearest images'}.",
        f"Of images of unknown classes, {in_percent(calibration.far)} are accepted "
        f"({range_in_percent(calibration.far_interval)});",
        f"of images of enrolled classes, {in_percent(calibration.dir)} are identified correctly "
        f"({range_in_percent(calibration.dir_interval)}).",
        f"The ranges hold for 90 % of indexes of new classes, estimated from {calibration.classes} held-out classes.",
    ]
    if calibration.enrolled > calibration.rehearsed:
        lines.append(f"Extrapolated from {calibration.rehearsed} enrolled classes, the most that these allow.")
    return "\n".join(lines)


def _as_indexed(vectors: Floats, about: About) -> Floats:
    """Convert vectors to the index's format: unit vectors, or signs for binary codes."""
    return unpacked(packed(vectors), about.dimension) if about.similarity == "hamming" else unit(vectors)


def _unit(x: NDArray[np.float64]) -> Floats:
    lengths = np.linalg.norm(x, axis=1, keepdims=True)
    return np.asarray(x / np.where(lengths > 0, lengths, 1), np.float32)
