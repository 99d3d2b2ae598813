"""Near-identical images of a data set: found before any training, they are leaks between its splits, labels that
contradict each other, and weight that some pictures have twice.

Images are compared by the features of a trunk as it came, or by a run's model. Two are near-identical from a threshold
of their cosine on; a group is what hangs together by such pairs.
"""

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nearfar.data import SPLITS
from nearfar.foundation.files import write_rows
from nearfar.imaging import Span
from nearfar.imaging.sources import content
from nearfar.retrieval.encoder import Encoder
from nearfar.retrieval.gallery import Gallery
from nearfar.retrieval.index import Floats, RetrievalError
from nearfar.retrieval.vectors import unit

THRESHOLD = 0.9  # of trunk features; docs/search.md says what it finds and what it misses
TRAINED_ON = frozenset({"train", "val"})
TILE = 2048  # images compared with as many others at a time
MOST_PAIRS = 5_000_000
COLUMNS = ("group", "image", "label", "split", "similarity", "nearest", "identical", "leak")


@dataclass(frozen=True)
class Member:
    """An image of a group: its nearest one in it, how similar that is, and whether the files are byte for byte equal to
    another's of the group.
    """

    image: str
    label: str
    split: str
    similarity: float
    nearest: str
    identical: bool


@dataclass(frozen=True)
class Group:
    """Images that show the same."""

    members: tuple[Member, ...]

    @property
    def leak(self) -> bool:
        """Whether some are trained on and others tested."""
        trained = {member.split in TRAINED_ON for member in self.members}
        return len(trained) == 2

    @property
    def contradictory(self) -> bool:
        """Whether they have different labels."""
        return len({member.label for member in self.members if member.label}) > 1

    @property
    def similarity(self) -> float:
        """Of the nearest two."""
        return max(member.similarity for member in self.members)


@dataclass(frozen=True)
class Duplicates:
    """What was found: leaks first, then by falling similarity."""

    images: int
    broken: int
    threshold: float
    groups: tuple[Group, ...]

    @property
    def leaks(self) -> list[Group]:
        """Groups with images that are trained on and images that are tested."""
        return [group for group in self.groups if group.leak]

    @property
    def contradictions(self) -> list[Group]:
        """Groups of different labels."""
        return [group for group in self.groups if group.contradictory]

    def summary(self) -> str:
        """A few lines."""
        count = sum(len(group.members) for group in self.groups)
        lines = [
            f"{self.images:,} images, {count:,} of them near-identical to another (similarity from {self.threshold:g} "
            f"on): {_groups_in_words(self.groups)}",
            f"leaks, some of whose images are trained on and others tested: {_groups_in_words(self.leaks)}",
            f"images of different labels: {_groups_in_words(self.contradictions)}",
        ]
        return "\n".join(lines + ([f"images that cannot be read: {self.broken:,}"] if self.broken else []))

    def rows(self) -> Iterator[dict[str, Any]]:
        """A row for each image that is in a group."""
        for number, group in enumerate(self.groups, 1):
            for member in group.members:
                yield {"group": number, "leak": group.leak, **asdict(member)}

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "images": self.images,
            "broken": self.broken,
            "threshold": self.threshold,
            "leaks": len(self.leaks),
            "contradictions": len(self.contradictions),
            "groups": [{"leak": group.leak, "images": [asdict(m) for m in group.members]} for group in self.groups],
        }

    def write_csv(self, path: str | os.PathLike[str]) -> None:
        """A table of the images that are in groups."""
        write_rows(Path(path), COLUMNS, ([row[name] for name in COLUMNS] for row in self.rows()))


def _groups_in_words(groups: Sequence[Group]) -> str:
    return f"{len(groups):,} group{'' if len(groups) == 1 else 's'}"


def find_duplicates(
    encoder: Encoder,
    gallery: Gallery,
    threshold: float = THRESHOLD,
    *,
    advance: Callable[[int], None] | None = None,
) -> Duplicates:
    """Groups of near-identical images.

    Args:
        encoder: of a trunk as it came (`Embedder(head=None)`), or of a run.
        threshold: the cosine from which on two images are near-identical.
        advance: called with the number of images that have been embedded.
    """
    if not 0 < threshold <= 1:
        raise RetrievalError(f"the threshold is a cosine above 0 and at most 1, not {threshold}")
    with tempfile.TemporaryFile() as file:  # of 100,000 images, half a gigabyte
        rows, start = list[int](), 0
        for batch in encoder.gallery(gallery.images, advance=advance):
            good = ~np.isnan(batch).any(1)
            file.write(unit(batch[good]).tobytes())
            rows += (np.flatnonzero(good) + start).tolist()
            start += len(batch)
        file.flush()
        shape = (len(rows), encoder.dimension)
        vectors: Floats = np.memmap(file, np.float32, "r", shape=shape) if rows else np.empty(shape, np.float32)
        left, right, similarity = near_pairs(vectors, threshold)
    groups = _groups(len(rows), left, right)
    best = np.full(len(rows), -np.inf, np.float32)
    nearest = np.zeros(len(rows), np.int64)
    for one, other in ((left, right), (right, left)):
        order = np.argsort(similarity, kind="stable")  # the last one written is the most similar
        better = order[similarity[order] > best[one[order]]]
        nearest[one[better]], best[one[better]] = other[better], similarity[better]
    found = [_group(gallery, [(rows[m], rows[int(nearest[m])], float(best[m])) for m in group]) for group in groups]
    found.sort(key=lambda group: (not group.leak, -group.similarity, group.members[0].image))
    images = len(gallery) + len(gallery.left_out)
    return Duplicates(images, images - len(rows), threshold, tuple(found))


def near_pairs(vectors: Floats, threshold: float) -> tuple[NDArray[np.int64], NDArray[np.int64], Floats]:
    """All pairs (a, b), a < b, of rows of length 1 whose product is at least the threshold, tile by tile."""
    lefts, rights, values = [np.empty(0, np.int64)], [np.empty(0, np.int64)], [np.empty(0, np.float32)]
    total, least = 0, np.float32(threshold) - np.float32(1e-6)  # equal vectors may come out as 0.9999999
    for start in range(0, len(vectors), TILE):
        own = np.ascontiguousarray(vectors[start : start + TILE])
        for across in range(start, len(vectors), TILE):
            products = own @ vectors[across : across + TILE].T
            if across == start:
                products[np.tril_indices(len(own))] = -1
            a, b = np.nonzero(products >= least)
            total += len(a)
            if total > MOST_PAIRS:
                raise RetrievalError(
                    f"at a threshold of {threshold:g}, more than {MOST_PAIRS:,} pairs are near-identical: raise it"
                )
            lefts.append(a + start)
            rights.append(b + across)
            values.append(products[a, b])
    return np.concatenate(lefts), np.concatenate(rights), np.concatenate(values)


def _groups(count: int, left: NDArray[np.int64], right: NDArray[np.int64]) -> list[list[int]]:
    """What hangs together by pairs: union and find."""
    parent = list(range(count))

    def root(row: int) -> int:
        while parent[row] != row:
            parent[row] = parent[parent[row]]
            row = parent[row]
        return row

    for a, b in zip(left.tolist(), right.tolist(), strict=True):
        first, second = sorted((root(a), root(b)))
        parent[second] = first
    groups: dict[int, list[int]] = {}
    for row in np.union1d(left, right).tolist():
        groups.setdefault(root(row), []).append(row)
    return list(groups.values())


def _group(gallery: Gallery, members: Sequence[tuple[int, int, float]]) -> Group:
    digests = [_digest(gallery, row) for row, _, _ in members]
    found = []
    for (row, nearest, similarity), digest in zip(members, digests, strict=True):
        split = SPLITS[int(gallery.table.split_ids[row])]
        equal = bool(digest) and digests.count(digest) > 1
        name, other = gallery.ids.take([row, nearest])
        found.append(Member(name, gallery.label(row), split, min(similarity, 1.0), other, equal))
    return Group(tuple(found))


def _digest(gallery: Gallery, row: int) -> str:
    source = gallery.images[row]
    try:
        return content(source.read() if isinstance(source, Span) else source)
    except OSError:
        return ""
