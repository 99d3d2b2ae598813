"""Identifies the images of files and folders, and scores the results."""

import contextlib
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nearfar.errors import MissingFileError
from nearfar.foundation.files import write_rows
from nearfar.imaging import BrokenImageError, TooManyBrokenImagesError, images_below, load_image
from nearfar.retrieval.encoder import Encoder
from nearfar.retrieval.identify import Answer, Identifier
from nearfar.retrieval.index import Floats, RetrievalError

COLUMNS = (
    "picture", "verdict", "who", "probability", "nearest", "similarity", "runner_up", "runner_up_similarity", "folder",
    "problem",
)  # fmt: skip


@dataclass(frozen=True)
class Asked:
    """An image to identify: its path, the name to show, and its folder relative to the folder of the request."""

    path: str
    shown: str
    folder: str = ""


@dataclass(frozen=True)
class Identified:
    """The result for an image. `problem` is why it could not be read; `enrolled` is whether it is in the index."""

    asked: Asked
    answer: Answer | None
    problem: str = ""
    enrolled: bool = False

    def to_dict(self) -> dict[str, Any]:
        """The result as values for JSON and CSV."""
        answer = self.answer.to_dict() if self.answer else {"verdict": "unreadable"}
        return {"picture": self.asked.path, **answer, "folder": self.asked.folder, "problem": self.problem}


def asked_for(names: Sequence[str | os.PathLike[str]]) -> list[Asked]:
    """The images of files and folders."""
    images = []
    for name in names:
        path = Path(name)
        if not path.is_dir():
            if not path.exists():
                raise MissingFileError(f"there is no {path}: give images, or folders of images")
            images.append(Asked(str(path.absolute()), os.fspath(name)))
            continue
        below = images_below(path)
        if not below:
            raise RetrievalError(f"{path} contains no images (files such as .jpg, .png, .webp)")
        shown = below if len(names) == 1 else [os.path.join(name, file) for file in below]
        images += [
            Asked(str(path.absolute() / file), label, file.rpartition("/")[0])
            for file, label in zip(below, shown, strict=True)
        ]
    return images


def identify(
    identifier: Identifier,
    encoder: Encoder,
    pictures: Sequence[Asked],
    *,
    advance: Callable[[int], None] | None = None,
) -> list[Identified]:
    """Identify images. Broken images have a result with the reason.

    Args:
        identifier: the enrolled classes.
        encoder: the model of the index.
        pictures: the result of `asked_for`.
        advance: called with the number of images of each batch.
    """
    identifier.index.check(encoder.fingerprint)
    result: list[Identified] = []
    for vectors in _embedded(encoder, pictures, advance):
        batch = pictures[len(result) : len(result) + len(vectors)]
        good = np.flatnonzero(~np.isnan(vectors).any(1)).tolist()
        answers = identifier.answers(vectors[good], [batch[row].path for row in good]) if good else []
        answer_of = dict(zip(good, answers, strict=True))
        result += [
            Identified(picture, answer_of[row], enrolled=picture.path in identifier.enrolled.place)
            if row in answer_of
            else Identified(picture, None, _reason(picture.path))
            for row, picture in enumerate(batch)
        ]
    return result


def _embedded(encoder: Encoder, pictures: Sequence[Asked], advance: Callable[[int], None] | None) -> Iterator[Floats]:
    """Yield embeddings in batches, with NaN for broken images, even if all are broken."""
    done = 0
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r".* images are broken")  # each one is reported in its result
        with contextlib.suppress(TooManyBrokenImagesError):
            for vectors in encoder.stream([picture.path for picture in pictures], max_broken=1.0, advance=advance):
                done += len(vectors)
                yield vectors
    if done < len(pictures):
        yield np.full((len(pictures) - done, encoder.dimension), np.nan, np.float32)


def _reason(path: str) -> str:
    try:
        load_image(path)
    except BrokenImageError as error:
        return error.reason
    return "the embedding is not finite"


@dataclass(frozen=True)
class Score:
    """Numbers of images by result, if their folders are named like classes.

    Attributes:
        right, wrong, missed: images in folders of enrolled classes that were identified correctly, incorrectly, or not.
        strangers: images in other folders.
        taken: strangers that were identified as an enrolled class.
        themselves: images that are enrolled, which were compared with the other images of their class.
    """

    right: int
    wrong: int
    missed: int
    strangers: int
    taken: int
    themselves: int

    @property
    def known(self) -> int:
        """The number of images in folders of enrolled classes."""
        return self.right + self.wrong + self.missed


def scored(results: Sequence[Identified], names: Sequence[str]) -> Score | None:
    """The score of images in folders; None if no folder is named like an enrolled class.

    Without calibration, the nearest class counts as the result, and no image is missed.
    """
    known = set(names)
    right = wrong = missed = strangers = taken = themselves = 0
    for result in results:
        if not result.asked.folder or result.answer is None:
            continue
        parts = result.asked.folder.split("/")
        truth = next((name for name in (result.asked.folder, parts[-1], parts[0]) if name in known), None)
        uncalibrated = result.answer.verdict == "uncalibrated"
        named = result.answer.nearest if uncalibrated else result.answer.who
        themselves += result.enrolled
        if truth is None:
            strangers += 1
            taken += named is not None
        elif named is None:
            missed += 1
        else:
            right, wrong = right + (named == truth), wrong + (named != truth)
    score = Score(right, wrong, missed, strangers, taken, themselves)
    return score if score.known else None


def write_csv(results: Sequence[Identified], path: str | os.PathLike[str]) -> None:
    """Write a CSV file with a row for each image."""
    rows = [result.to_dict() for result in results]
    write_rows(Path(path), COLUMNS, ([_plain(row.get(name)) for name in COLUMNS] for row in rows))


def _plain(value: Any) -> Any:
    return f"{value:.4f}" if isinstance(value, float) else value
