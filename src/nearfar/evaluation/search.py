"""Exact ranks of all matches of embeddings, tile by tile, in bounded memory.

    queries ──► tiles of float32 products with the gallery ──► counting.py: negatives before each match ──► ranks
                       │                                            │ rounding could decide
                       └────────── the same pair in float64 ◄───────┘

What counts is the float64 product of two float32 vectors, whichever way it is come by: a matrix product of float32
only sorts out what is clear. So the result depends neither on the size of the tiles nor on the order of the items, and
vectors that are equal are tied, whatever a matrix product makes of them.

Among themselves (leave-one-out) items need only the tiles above the diagonal, each of which is counted along its rows
and along its columns: half the products that a search for neighbours computes.
"""

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from nearfar.evaluation.counting import count_at_least, tally
from nearfar.evaluation.inputs import Ints, Rows
from nearfar.evaluation.metrics import Ranks
from nearfar.evaluation.protocols import Pairs, Protocol, Share
from nearfar.evaluation.ties import TIED, TIED_CODES, Ties, bounds_of
from nearfar.evaluation.vectors import Vectors, parts_of
from nearfar.evaluation.workers import Workers, workers

TILE = 1024  # queries, and gallery items
PAIRS_AT_A_TIME = 2**21  # matches and ignored items of the queries at work, some 100 bytes each
NUMBERS_AT_A_TIME = 2**17  # gathered, in float64: few enough to stay in a core's cache
ROWS_AT_A_TIME = 64  # whose matches are multiplied together
PROBE = 256  # vectors multiplied to see how precisely it is done


@dataclass(frozen=True)
class Bounds:
    """Of a tile of queries: what a negative must reach to stand before each of their matches.

    `exact` (b, R) rises along the rows, which are filled up with ∞; `low` and `high` enclose it by what a float32
    product may be wrong; `before` counts the negatives that reach it.
    """

    exact: Tensor
    low: Tensor
    high: Tensor
    before: Tensor

    def ranks(self) -> tuple[Ints, Ints]:
        """The ranks of the matches, query after query, nearest first; and how many matches each query has."""
        there = torch.isfinite(self.exact)
        matches = there.sum(1)
        place = matches[:, None] - torch.arange(self.exact.shape[1], device=there.device)
        return (place + self.before).flip(1)[there.flip(1)].cpu().numpy(), matches.cpu().numpy()


class Across:
    """What is put together where each of several processes searches its part of the gallery; in one, nothing."""

    def total(self, counts: Tensor) -> Tensor:
        """The sum of what each has counted, which may be in place."""
        return counts

    def union(self, row: Ints, bound: Tensor) -> tuple[Ints, Tensor]:
        """Everybody's matches: the queries they belong to, and the bounds that they set."""
        return row, bound


def exact_ranks(
    queries: Vectors,
    gallery: Vectors,
    protocol: Protocol | Share,
    ties: Ties,
    *,
    memory_budget: int,
    tile: int = TILE,
    progress: Callable[[int], None] = lambda products: None,
    across: Across | None = None,
) -> Iterator[tuple[Ints, Ranks]]:
    """Some queries and the ranks of their matches, until all that have any have had their turn.

    Args:
        queries, gallery: the same object for leave-one-out.
        memory_budget: bytes of vectors that may be held.
        tile: queries and gallery items at a time.
        progress: told how many (query, gallery item) pairs have been settled since the last time.
        across: puts together what processes find that have the same queries and a part of the gallery each.
    """
    same, across = queries is gallery, across or Across()
    counts = protocol.pair_counts()
    mutual = same and queries.similarity != "l2" and counts.sum() <= PAIRS_AT_A_TIME and queries.bytes <= memory_budget
    if mutual:
        turns = [np.arange(len(queries))]
    else:
        if gallery.bytes <= memory_budget // 2:
            gallery.hold()
        rows = max(tile, memory_budget // 2 // (4 * queries.dimension))
        turns = _turns(counts, rows)
    if queries.similarity == "hamming":
        error = TIED_CODES / 2  # whole numbers are exact: this keeps all of them off the bounds
    else:
        error = _rounding(queries.dimension, queries.rows.device)
        if not (mutual and queries.similarity == "cosine"):  # where all is read at once anyway, and found to be finite
            error *= gallery.longest()
            if queries is not gallery:
                queries.longest()
    for turn in turns:
        pairs = protocol.pairs(turn)
        matches = across.total(torch.from_numpy(pairs.matches(len(turn)))).numpy()
        # Queries with as many matches stand together: a tile compares with as many bounds as its largest row has.
        order = np.lexsort((protocol.labels[turn], matches))
        if not mutual:
            order = order[matches[order] > 0]
            progress((len(turn) - len(order)) * len(gallery))
            if len(order) == 0:
                continue
        with workers(2 * tile * tile, queries.rows.device) as team:
            work = _Turn(turn[order], queries, None if mutual else gallery, tile, error, ties, team, across)
            work.arrange(pairs, order, len(turn), protocol.junk_columns)
            work.run(progress)
            ranks = work.ranks()
        yield turn[order], ranks


def _turns(counts: Ints, rows: int) -> list[Ints]:
    """Cut the queries so that each part has few enough of them and of their pairs."""
    turns, start = [], 0
    total = np.cumsum(counts)
    while start < len(counts):
        before = total[start] - counts[start]
        stop = int(np.searchsorted(total, before + PAIRS_AT_A_TIME, side="right"))
        stop = min(max(stop, start + 1), start + rows)
        turns.append(np.arange(start, stop))
        start = stop
    return turns


def _rounding(dimension: int, device: torch.device) -> float:
    """More than what a float32 product of unit vectors is wrong by.

    Eight times the largest error seen. The smaller this is, the fewer products are in doubt; but how precise they are
    depends on the library that multiplies, and torch can be told to use fewer digits, by several switches, on some
    devices. Errors grow with the partial sums: where all terms have one sign, and where the second half of them takes
    back the first, these are as large as they can be.
    """
    x = normalize(torch.randn(PROBE, dimension, generator=torch.Generator().manual_seed(0)).to(device))
    positive, reversed_half = x.abs(), x.abs()
    reversed_half[:, dimension // 2 :].neg_()
    seen = max(
        float((torch.mm(left, right.t()).double() - torch.mm(left.double(), right.double().t())).abs().max())
        for left, right in ((x, x), (positive, positive), (positive, reversed_half))
    )
    return 8 * max(seen, 2.0**-24)


class _Turn:
    """Some queries, all of the gallery.

    Args:
        order: the queries' indices, in the order in which they are taken.
        queries: what they index.
        gallery: None if the queries at work are the gallery too, in the same order.
        error: what a product of float32 vectors may be wrong by, per length of the query.
    """

    def __init__(
        self,
        order: Ints,
        queries: Vectors,
        gallery: Vectors | None,
        tile: int,
        error: float,
        ties: Ties,
        team: Workers,
        across: Across,
    ) -> None:
        self.gallery, self.tile, self.error, self.ties, self.team = gallery, tile, error, ties, team
        self.across = across
        self.left = torch.empty(len(order), queries.dimension, device=queries.rows.device)

        def read(part: slice, memory: Tensor) -> None:
            self.left[part] = queries.read(order[part])

        team.run(partial(read, part) for part in parts_of(len(order), tile))
        self.columns = len(order) if gallery is None else len(gallery)
        self.similarity = queries.similarity
        self.lengths = None if queries.similarity in ("cosine", "hamming") else Rows.norms(self.left).double()
        self.bounds: list[Bounds] = []
        self.crowded: set[int] = set()  # tiles of queries that had too many scores near their bounds once
        self.lock = threading.Lock()

    def arrange(self, pairs: Pairs, order: Ints, size: int, junk: Ints) -> None:
        """Take note of who matches and who is ignored.

        `pairs` number the `size` queries of the turn as they came, of which the i-th taken is order[i].
        """
        position = np.full(size, -1)
        position[order] = np.arange(len(order))
        row, column, match = position[pairs.row], pairs.column, pairs.match
        if self.gallery is None:
            column, junk = position[column], np.sort(position[junk])
        self.junk = junk
        by_row = np.argsort(row, kind="stable")
        by_row = by_row[np.searchsorted(row[by_row], 0) :]  # those that are taken
        row, column, match = row[by_row], column[by_row], match[by_row]
        self._hide(row, column)
        row, column = row[match], column[match]
        if self.gallery is None:  # each pair once, for both
            row, column = row[row < column], column[row < column]
        similarity = self._similarities(row, column)
        bound = bounds_of(similarity, self._tolerance(row, column, similarity), self.ties)
        if self.gallery is None:
            row, bound = np.concatenate([row, column]), torch.cat([bound, bound])
        self._bound(*self.across.union(row, bound))

    def _hide(self, row: Ints, column: Ints) -> None:
        """Sort the pairs that are no negatives by the tile they are in."""
        across = -(-self.columns // self.tile)
        key = row // self.tile * across + column // self.tile
        by_tile = np.argsort(key, kind="stable")
        self.hidden_row, self.hidden_column = (self._index(x[by_tile] % self.tile) for x in (row, column))
        tiles = -(-len(self.left) // self.tile) * across
        self.hidden_start = np.searchsorted(key[by_tile], np.arange(tiles + 1))

    def _bound(self, row: Ints, bound: Tensor) -> None:
        by_row = np.argsort(row, kind="stable")
        row, bound = row[by_row], bound[self._index(by_row)]
        matches = np.bincount(row, minlength=len(self.left))
        place = np.arange(len(row)) - (np.cumsum(matches) - matches)[row]
        for start in range(0, len(self.left), self.tile):
            stop = min(start + self.tile, len(self.left))
            a, b = np.searchsorted(row, (start, stop))
            exact = bound.new_full((stop - start, int(matches[start:stop].max())), torch.inf)
            exact[self._index(row[a:b] - start), self._index(place[a:b])] = bound[a:b]
            exact = exact.sort(1).values
            error = self.error if self.lengths is None else self.error * self.lengths[start:stop, None]
            infinity = exact.new_tensor(torch.inf, dtype=torch.float32)
            low = torch.nextafter((exact - error).float(), -infinity)
            high = torch.nextafter((exact + error).float(), infinity)
            self.bounds.append(Bounds(exact, low, high, torch.zeros_like(exact, dtype=torch.int64)))

    def _right(self, column: Ints) -> Tensor:
        if self.gallery is None:
            return self.left[self._index(column)]
        return self.gallery.read(column)

    def _similarities(self, row: Ints, column: Ints) -> Tensor:
        """Of pairs in the order of their rows, in float64."""
        found = torch.empty(len(row), dtype=torch.float64, device=self.left.device)
        starts = np.searchsorted(row, np.arange(0, len(self.left) + ROWS_AT_A_TIME, ROWS_AT_A_TIME))

        def multiply(start: int, memory: Tensor) -> None:
            """All products of neighbouring rows, most of which have the same columns."""
            pairs = np.arange(starts[start], starts[start + 1])
            left = self.left[start * ROWS_AT_A_TIME : (start + 1) * ROWS_AT_A_TIME].double()
            columns, which = np.unique(column[pairs], return_inverse=True)
            for part in parts_of(len(columns), self._at_a_time()):
                product = torch.mm(left, self._right(columns[part]).double().t())
                here = (which >= part.start) & (which < part.stop)
                at = row[pairs[here]] - start * ROWS_AT_A_TIME, which[here] - part.start
                found[self._index(pairs[here])] = product[self._index(at[0]), self._index(at[1])]

        self.team.run(partial(multiply, start) for start in range(len(starts) - 1))
        return found

    def _index(self, numbers: Ints) -> Tensor:
        return torch.from_numpy(numbers).to(self.left.device)

    def _at_a_time(self) -> int:
        return max(1, NUMBERS_AT_A_TIME // self.left.shape[1])

    def _tolerance(self, row: Ints, column: Ints, similarity: Tensor) -> Tensor | float:
        """By how much the similarities of these pairs may differ from others that are tied with them."""
        if self.lengths is None:
            return TIED_CODES if self.similarity == "hamming" else TIED
        added = 2 if self.similarity == "l2" else 0  # coordinates
        own = self.left.shape[1] - added
        right = torch.empty(len(column), dtype=torch.float64, device=self.left.device)
        for part in parts_of(len(column), self._at_a_time()):
            right[part] = torch.linalg.vector_norm(self._right(column[part])[:, :own], dim=1, dtype=torch.float64)
        left: Tensor = torch.linalg.vector_norm(self.left[:, :own], dim=1, dtype=torch.float64)[self._index(row)]
        if self.similarity == "dot":
            return TIED * left * right
        # Distances d are tied that differ by TIED of the vectors' lengths; the similarity is (|x|² − d²)/2.
        distance = (left.square() - 2 * similarity).clamp_min_(0).sqrt_()
        apart = TIED * torch.maximum(left, right)
        return apart * (distance + apart / 2)

    def run(self, progress: Callable[[int], None]) -> None:
        """Count."""
        if self.gallery is None:
            tiles = range(len(self.bounds))
            self.team.run(
                partial(self._run_tile, down, across, self._part(across), progress)
                for down in tiles
                for across in tiles[down:]
            )
            return
        for piece in self.gallery.pieces(self.tile):
            panel = self.gallery.read(piece)
            self.team.run(
                partial(self._run_tile, down, (piece.start + part.start) // self.tile, panel[part], progress)
                for part in parts_of(len(panel), self.tile)
                for down in range(len(self.bounds))
            )

    def _part(self, tile: int) -> Tensor:
        return self.left[tile * self.tile : (tile + 1) * self.tile]

    def _run_tile(self, down: int, across: int, right: Tensor, progress: Callable[[int], None], memory: Tensor) -> None:
        left = self._part(down)
        size = len(left) * len(right)
        mirrored = self.gallery is None and down != across
        if self.bounds[down].exact.shape[1] or (mirrored and self.bounds[across].exact.shape[1]):
            scores = torch.mm(left, right.t(), out=memory[:size].view(len(left), len(right)))
            self._mask(scores, down, across)
            self._count(scores, left, right, down, memory[size:])
            if mirrored:
                self._count(scores.t(), right, left, across, memory[size:])
        with self.lock:
            progress(size * (1 + mirrored))

    def _mask(self, scores: Tensor, down: int, across: int) -> None:
        """Leave nothing but negatives."""
        tile = down * -(-self.columns // self.tile) + across
        hidden = slice(self.hidden_start[tile], self.hidden_start[tile + 1])
        scores[self.hidden_row[hidden], self.hidden_column[hidden]] = -torch.inf
        if len(self.junk):
            scores[:, self._junk_in(across)] = -torch.inf
            if self.gallery is None:
                scores[self._junk_in(down)] = -torch.inf

    def _junk_in(self, tile: int) -> Tensor:
        a, b = np.searchsorted(self.junk, (tile * self.tile, (tile + 1) * self.tile))
        return self._index(self.junk[a:b] - tile * self.tile)

    def _count(self, scores: Tensor, left: Tensor, right: Tensor, down: int, memory: Tensor) -> None:
        """Add to the counts of the queries of the tile `down`, whose vectors are `left`."""
        bounds = self.bounds[down]
        if bounds.exact.shape[1] == 0:
            return
        counted = None if down in self.crowded else tally(scores, bounds.low, bounds.high, memory)
        if counted is None:  # so many are near a bound that all are computed again
            self.crowded.add(down)
            again = torch.mm(left.double(), right.double().t()).masked_fill_(torch.isneginf(scores), -torch.inf)
            counts = count_at_least(again, bounds.exact)
        else:
            counts, doubts = counted
            for part in parts_of(len(doubts), self._at_a_time()):
                row, column, bound = doubts[part].unbind(1)
                exact = torch.linalg.vecdot(left[row].double(), right[column].double())
                reached = (exact >= bounds.exact[row, bound]).to(torch.int64)
                counts.index_put_((row, bound), reached, accumulate=True)
        with self.lock:
            bounds.before.add_(counts)

    def ranks(self) -> Ranks:
        for bounds in self.bounds:
            self.across.total(bounds.before)
        ranks, matches = zip(*(bounds.ranks() for bounds in self.bounds), strict=True)
        return Ranks.of(np.concatenate(ranks), np.concatenate(matches))
