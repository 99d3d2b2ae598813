"""Evaluation protocols: which gallery items match a query, and which are ignored for it.

match       an item with the query's label that is not ignored
ignored     the query itself (leave-one-out), identified by its index
            items with the query's id, if there are `ids` (such as other crops of the same photograph)
            items with the query's label and camera, if there are `cameras` (person re-identification)
            items with a junk label (−1 in re-identification)
negative    all other items, including the distractors of re-identification (label 0, which no query has)
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
    """The (query, gallery item) pairs that are matches or ignored. All other pairs are negatives.

    Pairs are sorted by query: `row` (P,) is the position among the requested queries, `column` (P,) the gallery index.
    """

    row: Ints
    column: Ints
    match: Bools

    def matches(self, rows: int) -> Ints:
        """The number of matches of each query."""
        return np.bincount(self.row[self.match], minlength=rows)


class _Join:
    """A join of two columns: the pairs of equal codes of each query."""

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
    """The protocol of an evaluation. Without `gallery_labels`, every item is a query to all others.

    Args:
        labels, gallery_labels: integers, strings or other values, but not floats.
        cameras, gallery_cameras: see above.
        ids, gallery_ids: see above.
        junk: label or labels of gallery items that are ignored; by default −1 if there are cameras, otherwise none.
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
        query_labels = checked(labels, None, "labels")
        other = None if gallery_labels is None else checked(gallery_labels, None, "gallery_labels")
        self.query_labels = query_labels  # the caller's values, not codes
        self.labels, self.gallery_labels = encode(query_labels, other, "labels")
        self.queries, self.gallery = len(self.labels), len(self.gallery_labels)
        if self.queries == 0:
            raise InputError("there are no queries: embeddings and labels are empty")
        if self.gallery == 0:
            raise InputError("the gallery is empty")
        self.cameras = self._pair_of("cameras", cameras, gallery_cameras)
        self.ids = self._pair_of("ids", ids, gallery_ids)
        searched = query_labels if other is None else other
        ignored = _ignored(junk, searched, cameras is not None)
        self._is_junk = np.fromiter((label in ignored for label in searched.tolist()), np.bool_, self.gallery)
        self.junk_columns = np.flatnonzero(self._is_junk)
        self._check_classes()
        self._same_label = _Join(self.labels, self.gallery_labels)
        self._same_id = None if self.ids is None else _Join(*self.ids)

    def _pair_of(self, name: str, left: Any, right: Any) -> tuple[Ints, Ints] | None:
        if left is None and right is None:
            return None
        if left is None:
            raise InputError(f"gallery_{name} need {name}")
        if self.leave_one_out and right is not None:
            raise InputError(f"gallery_{name} need a gallery")
        if not self.leave_one_out and right is None:
            raise InputError(f"with a gallery, {name} need gallery_{name}")
        first = checked(left, self.queries, name)
        second = None if right is None else checked(right, self.gallery, f"gallery_{name}")
        return encode(first, second, name)

    def _check_classes(self) -> None:
        classes = np.unique(self.gallery_labels[~self._is_junk])
        if len(classes) == 1 and bool((self.labels == classes[0]).any()):
            raise InputError("all gallery items have the same label, so there are no negatives: give several classes")

    def pair_counts(self) -> Ints:
        """(Q,) an upper bound of the number of pairs of each query, for dividing the work into blocks."""
        counts = self._same_label.counts()
        return counts if self._same_id is None else counts + self._same_id.counts()

    def pairs(self, queries: Ints) -> Pairs:
        """The matches and ignored items of some queries, without the columns of junk."""
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
    """The part of a protocol for one of several processes: some queries and some gallery items.

    Args:
        protocol: the protocol of all queries and gallery items.
        queries: indices of the queries, which this part numbers from 0.
        columns: range of the gallery items, which this part numbers from 0; by default all.
    """

    def __init__(self, protocol: Protocol, queries: Ints, columns: slice | None = None):
        self._protocol, self._queries = protocol, queries
        self._columns = slice(0, protocol.gallery) if columns is None else columns
        self.labels = protocol.labels[queries]
        first, last = np.searchsorted(protocol.junk_columns, (self._columns.start, self._columns.stop))
        self.junk_columns = protocol.junk_columns[first:last] - self._columns.start

    def pair_counts(self) -> Ints:
        """As `Protocol.pair_counts`, including the pairs of other shares, so that all processes use the same blocks."""
        return self._protocol.pair_counts()[self._queries]

    def pairs(self, queries: Ints) -> Pairs:
        """The matches and ignored items of some queries in this share."""
        pairs = self._protocol.pairs(self._queries[queries])
        inside = (pairs.column >= self._columns.start) & (pairs.column < self._columns.stop)
        return Pairs(pairs.row[inside], pairs.column[inside] - self._columns.start, pairs.match[inside])


def _ignored(junk: Any, labels: NDArray[Any], with_cameras: bool) -> set[Any]:
    """The junk labels as a set, checked against the type of the labels."""
    if junk is None:
        return {JUNK} if with_cameras else set()
    values = junk.tolist() if isinstance(junk, Tensor | np.ndarray | np.generic) else junk
    ignored = {values} if isinstance(values, str | bytes) or not isinstance(values, Iterable) else set(values)
    are_strings = labels.dtype.kind in "US"
    if labels.dtype.kind != "O" and any(isinstance(value, str | bytes) != are_strings for value in ignored):
        raise InputTypeError(f"junk={junk!r} can never be equal to labels that are {labels.dtype}")
    return ignored
