"""Who queries whom: which gallery items match a query, and which are ignored for it.

For a query,

    a match     has its label and is not ignored
    ignored     is the query itself (leave-one-out), by index and never by rank
                has its id, where `ids` are given (other crops of the same photograph, the same file in both sets)
                has its label and its camera, where `cameras` are given (person re-identification)
                has the junk label, where there is one (re-identification: −1)
    a negative  is everything else; so re-identification's distractors, label 0, which no query has, are negatives
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from nearfar.errors import InputError, InputTypeError
from nearfar.evaluation.inputs import Ints, encode
from nearfar.evaluation.inputs import labels as checked

Bools = NDArray[np.bool_]
JUNK = -1


@dataclass(frozen=True)
class Pairs:
    """The (query, gallery item) pairs that are matches or ignored; all others are negatives.

    Sorted by query: `row` (P,) counts from the first of the queries asked about, `column` (P,) is the gallery index.
    """

    row: Ints
    column: Ints
    match: Bools

    def matches(self, rows: int) -> Ints:
        """How many each query has."""
        return np.bincount(self.row[self.match], minlength=rows)


class _Join:
    """Pairs of equal codes, query by query."""

    def __init__(self, left: Ints, right: Ints):
        self.left = left
        self.order = np.argsort(right, kind="stable")
        sizes = np.bincount(right, minlength=int(left.max(initial=-1)) + 1)
        self.sizes, self.starts = sizes, np.cumsum(sizes) - sizes

    def counts(self) -> Ints:
        return self.sizes[self.left]

    def pairs(self, queries: Ints) -> tuple[Ints, Ints]:
        code = self.left[queries]
        size = self.sizes[code]
        row = np.repeat(np.arange(len(queries)), size)
        first = np.cumsum(size) - size
        return row, self.order[self.starts[code][row] + np.arange(len(row)) - first[row]]


class Protocol:
    """Who queries whom. Without `gallery_labels` every item queries all others.

    Args:
        labels, gallery_labels: of any type but floating point.
        cameras, gallery_cameras: see above.
        ids, gallery_ids: see above.
        junk: label or labels of gallery items that are ignored. By default −1 if there are cameras, and none else.
    """

    def __init__(
        self,
        labels: Any,
        gallery_labels: Any = None,
        *,
        cameras: Any = None,
        gallery_cameras: Any = None,
        ids: Any = None,
        gallery_ids: Any = None,
        junk: Any = None,
    ):
        self.leave_one_out = gallery_labels is None
        own = checked(labels, None, "labels")
        other = None if gallery_labels is None else checked(gallery_labels, None, "gallery_labels")
        self.query_labels = own  # as they were given
        self.labels, self.gallery_labels = encode(own, other, "labels")
        self.queries, self.gallery = len(self.labels), len(self.gallery_labels)
        if self.queries == 0:
            raise InputError("there are no queries: embeddings and labels are empty")
        if self.gallery == 0:
            raise InputError("the gallery is empty")
        self.cameras = self._pair_of("cameras", cameras, gallery_cameras)
        self.ids = self._pair_of("ids", ids, gallery_ids)
        given = own if other is None else other
        ignored = _ignored(junk, given, cameras is not None)
        self._is_junk = np.fromiter((label in ignored for label in given.tolist()), np.bool_, self.gallery)
        self.junk_columns = np.flatnonzero(self._is_junk)
        self._check_classes()
        self._same_label = _Join(self.labels, self.gallery_labels)
        self._same_id = None if self.ids is None else _Join(*self.ids)

    def _pair_of(self, name: str, left: Any, right: Any) -> tuple[Ints, Ints] | None:
        if left is None and right is None:
            return None
        if left is None:
            raise InputError(f"gallery_{name} go with {name}")
        if self.leave_one_out and right is not None:
            raise InputError(f"gallery_{name} go with a gallery")
        if not self.leave_one_out and right is None:
            raise InputError(f"with a gallery, {name} need gallery_{name}")
        first = checked(left, self.queries, name)
        second = None if right is None else checked(right, self.gallery, f"gallery_{name}")
        return encode(first, second, name)

    def _check_classes(self) -> None:
        classes = np.unique(self.gallery_labels[~self._is_junk])
        if len(classes) == 1 and bool((self.labels == classes[0]).any()):
            raise InputError(
                "all gallery items share one label, so there is nothing to mistake them for: give several classes"
            )

    def pair_counts(self) -> Ints:
        """How many pairs each query has at most, (Q,): to cut the work into blocks."""
        counts = self._same_label.counts()
        return counts if self._same_id is None else counts + self._same_id.counts()

    def pairs(self, queries: Ints) -> Pairs:
        """All matches and ignored items of these queries, the columns of junk aside."""
        row, column = self._same_label.pairs(queries)
        match = ~self._is_junk[column]
        if self.leave_one_out:
            match &= column != queries[row]
        if self.cameras is not None:
            match &= self.cameras[0][queries[row]] != self.cameras[1][column]
        if self.ids is None or self._same_id is None:
            return Pairs(row, column, match)
        match &= self.ids[0][queries[row]] != self.ids[1][column]
        more_row, more_column = self._same_id.pairs(queries)
        other = self.labels[queries[more_row]] != self.gallery_labels[more_column]
        row, column = np.concatenate([row, more_row[other]]), np.concatenate([column, more_column[other]])
        match = np.concatenate([match, np.zeros(int(other.sum()), np.bool_)])
        order = np.argsort(row, kind="stable")
        return Pairs(row[order], column[order], match[order])


class Share:
    """Some queries and some gallery items of a protocol: what one of several processes searches for, and in.

    Args:
        protocol: of all.
        queries: which of them; here they are numbered 0, 1, ...
        columns: which gallery items, numbered so too; by default all.
    """

    def __init__(self, protocol: Protocol, queries: Ints, columns: slice | None = None):
        self._protocol, self._queries = protocol, queries
        self._columns = slice(0, protocol.gallery) if columns is None else columns
        self.labels = protocol.labels[queries]
        first, last = np.searchsorted(protocol.junk_columns, (self._columns.start, self._columns.stop))
        self.junk_columns = protocol.junk_columns[first:last] - self._columns.start

    def pair_counts(self) -> Ints:
        """How many pairs each query has at most, those in other shares included: all processes cut alike."""
        return self._protocol.pair_counts()[self._queries]

    def pairs(self, queries: Ints) -> Pairs:
        """All matches and ignored items of these queries that are in this share."""
        found = self._protocol.pairs(self._queries[queries])
        here = (found.column >= self._columns.start) & (found.column < self._columns.stop)
        return Pairs(found.row[here], found.column[here] - self._columns.start, found.match[here])


def _ignored(junk: Any, labels: NDArray[Any], with_cameras: bool) -> set[Any]:
    """The junk labels, of the type that labels are."""
    if junk is None:
        return {JUNK} if with_cameras else set()
    values = junk.tolist() if isinstance(junk, Tensor | np.ndarray | np.generic) else junk
    found = {values} if isinstance(values, str | bytes) or not isinstance(values, Iterable) else set(values)
    of_words = labels.dtype.kind in "US"
    if labels.dtype.kind != "O" and any(isinstance(value, str | bytes) != of_words for value in found):
        raise InputTypeError(f"junk={junk!r} can never be equal to labels that are {labels.dtype}")
    return found
