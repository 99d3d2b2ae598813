"""Exact ranks of all matches of embeddings, computed in tiles and in bounded memory.

    queries ──► tiles of float32 products with the gallery ──► counting.py: negatives before each match ──► ranks
                       │                                            │ rounding could decide
                       └────────── the same pair in float64 ◄───────┘

Similarities are float64 products of float32 vectors. A float32 matrix product only decides the clear cases. So the
result depends neither on the size of the tiles nor on the order of the items, and equal vectors are tied despite the
rounding errors of matrix products.

Leave-one-out needs only the tiles above the diagonal, each of which is counted along its rows and its columns. This is
half the number of products of a search for neighbours.
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
PAIRS_AT_A_TIME = 2**21  # matches and ignored items of a block of queries, about 100 bytes each
NUMBERS_AT_A_TIME = 2**17  # gathered float64 numbers, small enough for a core's cache
ROWS_AT_A_TIME = 64  # queries whose matches are multiplied together
PROBE = 256  # vectors multiplied to measure the rounding error


@dataclass(frozen=True)
class Bounds:
    """The similarities that a negative must reach to be ranked before each match of a tile of queries.

    `exact` (b, R) is ascending along the rows, which are padded with ∞; `low` and `high` enclose it by the rounding
    error of a float32 product; `before` counts the negatives that reach it.
    """

    exact: Tensor
    low: Tensor
    high: Tensor
    before: Tensor

    def ranks(self) -> tuple[Ints, Ints]:
        """The ranks of the matches, ordered by query and rank, and the number of matches of each query."""
        used = torch.isfinite(self.exact)
        matches = used.sum(1)
        place = matches[:, None] - torch.arange(self.exact.shape[1], device=used.device)
        return (place + self.before).flip(1)[used.flip(1)].cpu().numpy(), matches.cpu().numpy()


class Across:
    """Communication between processes that each search a part of the gallery. In a single process it does nothing."""

    def total(self, counts: Tensor) -> Tensor:
        """The sum of the counts of all processes, possibly in place."""
        return counts

    def union(self, row: Ints, bound: Tensor) -> tuple[Ints, Tensor]:
        """The matches of all processes: their queries and bounds."""
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
    """Yield blocks of queries with the ranks of their matches. Queries without matches may be left out.

    Args:
        queries, gallery: the same object for leave-one-out.
        memory_budget: bytes of vectors that may be held in memory.
        tile: queries and gallery items at a time.
        progress: called with the number of (query, gallery item) pairs done since the last call.
        across: communication between processes that have the same queries and a part of the gallery each.
    """
    same, across = queries is gallery, across or Across()
    counts = protocol.pair_counts()
    mutual = same and queries.similarity != "l2" and counts.sum() <= PAIRS_AT_A_TIME and queries.bytes <= memory_budget
    if mutual:
        blocks = [np.arange(len(queries))]
    else:
        if gallery.bytes <= memory_budget // 2:
            gallery.hold()
        rows = max(tile, memory_budget // 2 // (4 * queries.dimension))
        blocks = _query_blocks(counts, rows)
    if queries.similarity == "hamming":
        error = TIED_CODES / 2  # products are exact integers, and no integer lies within this error of a bound
    else:
        error = _rounding(queries.dimension, queries.rows.device)
        if not (mutual and queries.similarity == "cosine"):  # which reads, and so checks, all vectors at once
            error *= gallery.longest()
            if queries is not gallery:
                queries.longest()
    for block in blocks:
        pairs = protocol.pairs(block)
        matches = across.total(torch.from_numpy(pairs.matches(len(block)))).numpy()
        # Queries are sorted by their number of matches, because a tile has as many bounds as its largest row.
        order = np.lexsort((protocol.labels[block], matches))
        if not mutual:
            order = order[matches[order] > 0]
            progress((len(block) - len(order)) * len(gallery))
            if len(order) == 0:
                continue
        with workers(2 * tile * tile, queries.rows.device) as team:
            search = _BlockSearch(block[order], queries, None if mutual else gallery, tile, error, ties, team, across)
            search.arrange(pairs, order, len(block), protocol.junk_columns)
            search.run(progress)
            ranks = search.ranks()
        yield block[order], ranks


def _query_blocks(counts: Ints, rows: int) -> list[Ints]:
    """Divide the queries into blocks of at most `rows` queries and about PAIRS_AT_A_TIME pairs."""
    blocks, start = [], 0
    total = np.cumsum(counts)
    while start < len(counts):
        before = total[start] - counts[start]
        stop = int(np.searchsorted(total, before + PAIRS_AT_A_TIME, side="right"))
        stop = min(max(stop, start + 1), start + rows)
        blocks.append(np.arange(start, stop))
        start = stop
    return blocks


def _rounding(dimension: int, device: torch.device) -> float:
    """A bound for the rounding error of float32 products of unit vectors: eight times the largest measured error.

    It is measured because the precision depends on the library, the device and torch's settings (such as TF32), and a
    tight bound leaves fewer products in doubt. Errors grow with the partial sums, which are largest if all terms have
    the same sign, or if the second half of the terms cancels the first.
    """
    x = normalize(torch.randn(PROBE, dimension, generator=torch.Generator().manual_seed(0)).to(device))
    positive, reversed_half = x.abs(), x.abs()
    reversed_half[:, dimension // 2 :].neg_()
    largest = max(
        float((torch.mm(left, right.t()).double() - torch.mm(left.double(), right.double().t())).abs().max())
        for left, right in ((x, x), (positive, positive), (positive, reversed_half))
    )
    return 8 * max(largest, 2.0**-24)


class _BlockSearch:
    """The search of a block of queries in the whole gallery.

    Args:
        order: the indices of the queries, in the order in which they are processed.
        queries: the vectors of all queries.
        gallery: the vectors of the gallery; None if the block is also the gallery, in the same order.
        error: the bound of the rounding error of a product, relative to the norm of the query.
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
        self.crowded: set[int] = set()  # tiles of queries with too many doubtful scores in an earlier tile
        self.lock = threading.Lock()

    def arrange(self, pairs: Pairs, order: Ints, size: int, junk: Ints) -> None:
        """Compute the bounds of all matches and sort the ignored pairs by tile.

        `pairs` number the `size` queries of the block in their original order; the i-th processed query is order[i].
        """
        position = np.full(size, -1)
        position[order] = np.arange(len(order))
        row, column, match = position[pairs.row], pairs.column, pairs.match
        if self.gallery is None:
            column, junk = position[column], np.sort(position[junk])
        self.junk = junk
        by_row = np.argsort(row, kind="stable")
        by_row = by_row[np.searchsorted(row[by_row], 0) :]  # only processed queries
        row, column, match = row[by_row], column[by_row], match[by_row]
        self._hide(row, column)
        row, column = row[match], column[match]
        if self.gallery is None:  # each pair is used for both of its queries
            row, column = row[row < column], column[row < column]
        similarity = self._similarities(row, column)
        bound = bounds_of(similarity, self._tolerance(row, column, similarity), self.ties)
        if self.gallery is None:
            row, bound = np.concatenate([row, column]), torch.cat([bound, bound])
        self._bound(*self.across.union(row, bound))

    def _hide(self, row: Ints, column: Ints) -> None:
        """Sort the matches and ignored pairs by tile."""
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
        """The float64 similarities of pairs that are sorted by row."""
        similarities = torch.empty(len(row), dtype=torch.float64, device=self.left.device)
        starts = np.searchsorted(row, np.arange(0, len(self.left) + ROWS_AT_A_TIME, ROWS_AT_A_TIME))

        def multiply(start: int, memory: Tensor) -> None:
            """Multiply some consecutive rows, most of which have the same columns."""
            pairs = np.arange(starts[start], starts[start + 1])
            left = self.left[start * ROWS_AT_A_TIME : (start + 1) * ROWS_AT_A_TIME].double()
            columns, which = np.unique(column[pairs], return_inverse=True)
            for part in parts_of(len(columns), self._at_a_time()):
                product = torch.mm(left, self._right(columns[part]).double().t())
                used = (which >= part.start) & (which < part.stop)
                entry = row[pairs[used]] - start * ROWS_AT_A_TIME, which[used] - part.start
                similarities[self._index(pairs[used])] = product[self._index(entry[0]), self._index(entry[1])]

        self.team.run(partial(multiply, start) for start in range(len(starts) - 1))
        return similarities

    def _index(self, numbers: Ints) -> Tensor:
        return torch.from_numpy(numbers).to(self.left.device)

    def _at_a_time(self) -> int:
        return max(1, NUMBERS_AT_A_TIME // self.left.shape[1])

    def _tolerance(self, row: Ints, column: Ints, similarity: Tensor) -> Tensor | float:
        """The largest difference between the similarities of these pairs and similarities tied with them."""
        if self.lengths is None:
            return TIED_CODES if self.similarity == "hamming" else TIED
        dimension = self.left.shape[1] - (2 if self.similarity == "l2" else 0)  # without the added coordinates
        right = torch.empty(len(column), dtype=torch.float64, device=self.left.device)
        for part in parts_of(len(column), self._at_a_time()):
            right[part] = torch.linalg.vector_norm(self._right(column[part])[:, :dimension], dim=1, dtype=torch.float64)
        left: Tensor = torch.linalg.vector_norm(self.left[:, :dimension], dim=1, dtype=torch.float64)[self._index(row)]
        if self.similarity == "dot":
            return TIED * left * right
        # Distances d are tied if they differ by TIED times the norms; the similarity is (|x|² − d²)/2.
        distance = (left.square() - 2 * similarity).clamp_min_(0).sqrt_()
        apart = TIED * torch.maximum(left, right)
        return apart * (distance + apart / 2)

    def run(self, progress: Callable[[int], None]) -> None:
        """Count the negatives in all tiles."""
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
        """Set the scores of matches, ignored items and junk to -∞."""
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
        """Add to the counts of the queries in tile `down`, whose vectors are `left`."""
        bounds = self.bounds[down]
        if bounds.exact.shape[1] == 0:
            return
        counted = None if down in self.crowded else tally(scores, bounds.low, bounds.high, memory)
        if counted is None:  # too many doubtful scores: compute the whole tile in float64
            self.crowded.add(down)
            precise = torch.mm(left.double(), right.double().t()).masked_fill_(torch.isneginf(scores), -torch.inf)
            counts = count_at_least(precise, bounds.exact)
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
