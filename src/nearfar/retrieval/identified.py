"""Pictures of files and folders, identified: what is told of each, and of all together."""

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
    """A picture to identify: its path; how it is shown; and the folder it is in, below the one that was given."""

    path: str
    shown: str
    folder: str = ""


@dataclass(frozen=True)
class Identified:
    """What became of a picture; `problem` says why it could not be read, and `enrolled` whether it is in the index."""

    asked: Asked
    answer: Answer | None
    problem: str = ""
    enrolled: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON and CSV."""
        told = self.answer.to_dict() if self.answer else {"verdict": "unreadable"}
        return {"picture": self.asked.path, **told, "folder": self.asked.folder, "problem": self.problem}


def asked_for(names: Sequence[str | os.PathLike[str]]) -> list[Asked]:
    """The pictures that are meant: files, and everything below folders."""
    found = []
    for name in names:
        path = Path(name)
        if not path.is_dir():
            if not path.exists():
                raise MissingFileError(f"there is no {path}: give pictures, or folders of them")
            found.append(Asked(str(path.absolute()), os.fspath(name)))
            continue
        below = images_below(path)
        if not below:
            raise RetrievalError(f"{path} holds no image (endings such as .jpg, .png, .webp)")
        shown = below if len(names) == 1 else [os.path.join(name, one) for one in below]
        found += [
            Asked(str(path.absolute() / one), words, one.rpartition("/")[0])
            for one, words in zip(below, shown, strict=True)
        ]
    return found


def identify(
    identifier: Identifier,
    encoder: Encoder,
    pictures: Sequence[Asked],
    *,
    advance: Callable[[int], None] | None = None,
) -> list[Identified]:
    """Every picture; those that cannot be read are told with the reason.

    Args:
        advance: called with the number of pictures done.
    """
    identifier.index.check(encoder.fingerprint)
    result: list[Identified] = []
    for vectors in _embedded(encoder, pictures, advance):
        here = pictures[len(result) : len(result) + len(vectors)]
        good = np.flatnonzero(~np.isnan(vectors).any(1)).tolist()
        answers = identifier.answers(vectors[good], [here[row].path for row in good]) if good else []
        told = dict(zip(good, answers, strict=True))
        result += [
            Identified(one, told[row], enrolled=one.path in identifier.enrolled.place)
            if row in told
            else Identified(one, None, _reason(one.path))
            for row, one in enumerate(here)
        ]
    return result


def _embedded(encoder: Encoder, pictures: Sequence[Asked], advance: Callable[[int], None] | None) -> Iterator[Floats]:
    """Embeddings, batch by batch, with NaN for what cannot be read, be that all of it."""
    done = 0
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r".* images are broken")  # each will be told by its name
        with contextlib.suppress(TooManyBrokenImagesError):
            for vectors in encoder.stream([one.path for one in pictures], max_broken=1.0, advance=advance):
                done += len(vectors)
                yield vectors
    if done < len(pictures):
        yield np.full((len(pictures) - done, encoder.dimension), np.nan, np.float32)


def _reason(path: str) -> str:
    try:
        load_image(path)
    except BrokenImageError as error:
        return error.reason
    return "the network makes no numbers of it"


@dataclass(frozen=True)
class Score:
    """How pictures in folders that are named like classes fared: counts.

    Attributes:
        right, wrong, missed: of those in folders of enrolled classes: named rightly, wrongly, or not at all.
        strangers: in other folders; `taken`: those of them that were taken for an enrolled class.
        themselves: of all these, the ones that are enrolled, and were judged without themselves.
    """

    right: int
    wrong: int
    missed: int
    strangers: int
    taken: int
    themselves: int

    @property
    def known(self) -> int:
        """Pictures in folders of enrolled classes."""
        return self.right + self.wrong + self.missed


def scored(found: Sequence[Identified], names: Sequence[str]) -> Score | None:
    """The score of pictures in folders; None where no folder is named like an enrolled class.

    Without calibration, the nearest class counts, and no picture is missed.
    """
    known = set(names)
    right = wrong = missed = strangers = taken = themselves = 0
    for one in found:
        if not one.asked.folder or one.answer is None:
            continue
        parts = one.asked.folder.split("/")
        truth = next((name for name in (one.asked.folder, parts[-1], parts[0]) if name in known), None)
        uncalibrated = one.answer.verdict == "uncalibrated"
        named = one.answer.nearest if uncalibrated else one.answer.who
        themselves += one.enrolled
        if truth is None:
            strangers += 1
            taken += named is not None
        elif named is None:
            missed += 1
        else:
            right, wrong = right + (named == truth), wrong + (named != truth)
    score = Score(right, wrong, missed, strangers, taken, themselves)
    return score if score.known else None


def write_csv(found: Sequence[Identified], path: str | os.PathLike[str]) -> None:
    """A row for each picture."""
    rows = [one.to_dict() for one in found]
    write_rows(Path(path), COLUMNS, ([_plain(row.get(name)) for name in COLUMNS] for row in rows))


def _plain(value: Any) -> Any:
    return f"{value:.4f}" if isinstance(value, float) else value
