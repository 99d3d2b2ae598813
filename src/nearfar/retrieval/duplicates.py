"""Finds near-identical images of a data set: leaks between its splits, contradictory labels, and repeated images.

Images are compared by the features of a pretrained trunk, or by the model of a run. Two images are near-identical if
their cosine reaches a threshold. Groups are the connected components of such pairs.
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

THRESHOLD = 0.9  # for features of a trunk; docs/search.md has its accuracy
TRAINED_ON = frozenset({"train", "val"})
TILE = 2048  # images compared with the same number of others at a time
MOST_PAIRS = 5_000_000
COLUMNS = ("group", "image", "label", "split", "similarity", "nearest", "identical", "leak")


@dataclass(frozen=True)
class Member:
    """An image of a group, with the nearest other image and its similarity. `identical` tells whether its file equals
    that of another member.
    """

    image: str
    label: str
    split: str
    similarity: float
    nearest: str
    identical: bool


@dataclass(frozen=True)
class Group:
    """A group of near-identical images."""

    members: tuple[Member, ...]

    @property
    def leak(self) -> bool:
        """Whether the group has both training and test images."""
        trained = {member.split in TRAINED_ON for member in self.members}
        return len(trained) == 2

    @property
    def contradictory(self) -> bool:
        """Whether the images have different labels."""
        return len({member.label for member in self.members if member.label}) > 1

    @property
    def similarity(self) -> float:
        """The highest similarity of two members."""
        return max(member.similarity for member in self.members)


@dataclass(frozen=True)
class Duplicates:
    """The groups of near-identical images: leaks first, then by descending similarity."""

    images: int
    broken: int
    threshold: float
    groups: tuple[Group, ...]

    @property
    def leaks(self) -> list[Group]:
        """Groups with both training and test images."""
        return [group for group in self.groups if group.leak]

    @property
    def contradictions(self) -> list[Group]:
        """Groups with different labels."""
        return [group for group in self.groups if group.contradictory]

    def summary(self) -> str:
        """A summary of a few lines."""
        count = sum(len(group.members) for group in self.groups)
        lines = [
            f"{self.images:,} images, {count:,} of them near-identical to another (similarity of at least "
            f"{self.threshold:g}): {_group_count(self.groups)}",
            f"leaks, groups with both training and test images: {_group_count(self.leaks)}",
            f"contradictions, groups with different labels: {_group_count(self.contradictions)}",
        ]
        return "\n".join(lines + ([f"images that cannot be read: {self.broken:,}"] if self.broken else []))

    def rows(self) -> Iterator[dict[str, Any]]:
        """A row for each image in a group."""
        for number, group in enumerate(self.groups, 1):
            for member in group.members:
                yield {"group": number, "leak": group.leak, **asdict(member)}

    def to_dict(self) -> dict[str, Any]:
        """The result as JSON values."""
        return {
            "images": self.images,
            "broken": self.broken,
            "threshold": self.threshold,
            "leaks": len(self.leaks),
            "contradictions": len(self.contradictions),
            "groups": [{"leak": group.leak, "images": [asdict(m) for m in group.members]} for group in self.groups],
        }

    def write_csv(self, path: str | os.PathLike[str]) -> None:
        """Write a CSV file of the images in groups."""
        write_rows(Path(path), COLUMNS, ([row[name] for name in COLUMNS] for row in self.rows()))


def _group_count(groups: Sequence[Group]) -> str:
    return f"{len(groups):,} group{'' if len(groups) == 1 else 's'}"


def find_duplicates(
    encoder: Encoder,
    gallery: Gallery,
    threshold: float = THRESHOLD,
    *,
    advance: Callable[[int], None] | None = None,
) -> Duplicates:
    """Find groups of near-identical images.

    Args:
        encoder: the encoder of a pretrained trunk (`Embedder(head=None)`) or of a run.
        gallery: the images.
        threshold: the cosine from which two images are near-identical.
        advance: called with the number of images of each batch.
    """
    if not 0 < threshold <= 1:
        raise RetrievalError(f"the threshold must be a cosine above 0 and at most 1, not {threshold}")
    with tempfile.TemporaryFile() as file:  # half a gigabyte for 100,000 images
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
    for image, other in ((left, right), (right, left)):
        order = np.argsort(similarity, kind="stable")  # the most similar one is written last
        better = order[similarity[order] > best[image[order]]]
        nearest[image[better]], best[image[better]] = other[better], similarity[better]
    result = [_group(gallery, [(rows[m], rows[int(nearest[m])], float(best[m])) for m in group]) for group in groups]
    result.sort(key=lambda group: (not group.leak, -group.similarity, group.members[0].image))
    images = len(gallery) + len(gallery.left_out)
    return Duplicates(images, images - len(rows), threshold, tuple(result))


def near_pairs(vectors: Floats, threshold: float) -> tuple[NDArray[np.int64], NDArray[np.int64], Floats]:
    """All pairs (a, b), a < b, of unit vectors with a product of at least the threshold, and their products."""
    lefts, rights, values = [np.empty(0, np.int64)], [np.empty(0, np.int64)], [np.empty(0, np.float32)]
    total, least = 0, np.float32(threshold) - np.float32(1e-6)  # the product of equal vectors may be 0.9999999
    for start in range(0, len(vectors), TILE):
        block = np.ascontiguousarray(vectors[start : start + TILE])
        for across in range(start, len(vectors), TILE):
            products = block @ vectors[across : across + TILE].T
            if across == start:
                products[np.tril_indices(len(block))] = -1
            a, b = np.nonzero(products >= least)
            total += len(a)
            if total > MOST_PAIRS:
                raise RetrievalError(
                    f"more than {MOST_PAIRS:,} pairs are near-identical at a threshold of {threshold:g}: raise it"
                )
            lefts.append(a + start)
            rights.append(b + across)
            values.append(products[a, b])
    return np.concatenate(lefts), np.concatenate(rights), np.concatenate(values)


def _groups(count: int, left: NDArray[np.int64], right: NDArray[np.int64]) -> list[list[int]]:
    """The connected components of the pairs, by union-find."""
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
    group = []
    for (row, nearest, similarity), digest in zip(members, digests, strict=True):
        split = SPLITS[int(gallery.table.split_ids[row])]
        equal = bool(digest) and digests.count(digest) > 1
        name, other = gallery.ids.take([row, nearest])
        group.append(Member(name, gallery.label(row), split, min(similarity, 1.0), other, equal))
    return Group(tuple(group))


def _digest(gallery: Gallery, row: int) -> str:
    source = gallery.images[row]
    try:
        return content(source.read() if isinstance(source, Span) else source)
    except OSError:
        return ""
