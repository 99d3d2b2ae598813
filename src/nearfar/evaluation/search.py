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

import math
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize, pad

from nearfar.evaluation.counting import count_at_least, tally
from nearfar.evaluation.hamming import Codes
from nearfar.evaluation.inputs import Ints, Part, Rows
from nearfar.evaluation.metrics import Ranks
from nearfar.evaluation.protocols import Pairs, Protocol
from nearfar.evaluation.workers import Workers, workers

Similarity = Literal["cosine", "dot", "l2", "hamming"]
Ties = Literal["pessimistic", "optimistic"]

TILE = 1024  # queries, and gallery items
PAIRS_AT_A_TIME = 2**21  # matches and ignored items of the queries at work, some 100 bytes each
NUMBERS_AT_A_TIME = 2**17  # gathered, in float64: few enough to stay in a core's cache
ROWS_AT_A_TIME = 64  # whose matches are multiplied together
PANEL = 2**24  # bytes of a gallery that is read piece by piece
TIED = 4 * 2.0**-23  # of the vectors' lengths: similarities that differ by no more are tied
TIED_CODES = 0.5  # inner products of codes are whole numbers
LONGEST = 1e18  # whose square is within float32
PROBE = 256  # vectors multiplied to see how precisely it is done


class Vectors:
    """Embeddings made such that their inner products are the similarities, float32.

    cosine: of unit length. dot: as they are. hamming: of +1 and −1. l2: x·y − |y|²/2, which orders the gallery as
    −|x − y|² does: queries get two coordinates of 1, gallery items −|y|²/2 split into two float32 numbers, the rounded
    one and the rest.
    """

    def __init__(self, rows: Rows | Codes, similarity: Similarity, *, gallery: bool):
        self.rows, self.similarity, self.gallery = rows, similarity, gallery
        self.dimension = rows.dimension + 2 * (similarity == "l2")
        self.bytes = len(rows) * self.dimension * 4
        self._held: Tensor | None = None

    def __len__(self) -> int:
        return len(self.rows)

    def read(self, part: Part) -> Tensor:
        """Some of them."""
        if self._held is not None:
            return self._held[part if isinstance(part, slice) else torch.from_numpy(part).to(self._held.device)]
        if isinstance(self.rows, Rows) and self.similarity == "cosine":
            return self.rows.normalized(part)
        x = self.rows.float32(part)
        if self.similarity != "l2":
            return x
        if not self.gallery:
            return pad(x, (0, 2), value=1.0)
        half = -x.double().square().sum(1) / 2
        rounded = half.float()
        return torch.cat([x, rounded[:, None], (half - rounded.double()).float()[:, None]], 1)

    def pieces(self, multiple: int = TILE) -> Iterator[slice]:
        """Parts to read one after the other, whole multiples of some number of items."""
        return _parts(len(self), max(1, PANEL // (4 * self.dimension) // multiple) * multiple)

    def hold(self) -> None:
        """Keep all of them in memory."""
        held = torch.empty(len(self), self.dimension, device=self.rows.device)
        for piece in self.pieces():
            held[piece] = self.read(piece)
        self._held = held

    def longest(self) -> float:
        """The largest length; where they have not been read, they are, so that bad rows are found before the work."""
        if self._held is not None and self.similarity == "cosine":
            return 1.0
        longest = max(float(Rows.norms(self.read(piece)).max()) for piece in self.pieces())
        if longest > LONGEST:
            raise ValueError(
                f'{self.rows.name} have vectors so long that similarity="{self.similarity}" exceeds float32: '
                "divide them by a constant"
            )
        return 1.0 if self.similarity == "cosine" else longest


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


def exact_ranks(
    queries: Vectors,
    gallery: Vectors,
    protocol: Protocol,
    ties: Ties,
    *,
    memory_budget: int,
    tile: int = TILE,
    progress: Callable[[int], None] = lambda products: None,
) -> Iterator[tuple[Ints, Ranks]]:
    """Some queries and the ranks of their matches, until all that have any have had their turn.

    Args:
        queries, gallery: the same object for leave-one-out.
        memory_budget: bytes of vectors that may be held.
        tile: queries and gallery items at a time.
        progress: told how many (query, gallery item) pairs have been settled since the last time.
    """
    same = queries is gallery
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
        matches = pairs.matches(len(turn))
        # Queries with as many matches stand together: a tile compares with as many bounds as its largest row has.
        order = np.lexsort((protocol.labels[turn], matches))
        if not mutual:
            order = order[matches[order] > 0]
            progress((len(turn) - len(order)) * len(gallery))
            if len(order) == 0:
                continue
        with workers(2 * tile * tile, queries.rows.device) as team:
            work = _Turn(turn[order], queries, None if mutual else gallery, tile, error, ties, team)
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


def _parts(count: int, step: int) -> Iterator[slice]:
    return (slice(start, min(start + step, count)) for start in range(0, count, step))


def _rounding(dimension: int, device: torch.device) -> float:
    """More than what a float32 product of unit vectors is wrong by.

    The errors of its additions are independent but for contrived vectors, so they grow with the dimension's square
    root; 8 times that is beyond the largest among all pairs of a million vectors, and never need it be more than the
    sum of all errors at their largest.
    """
    bound = 2.0**-24 * (min(dimension, 8 * math.sqrt(dimension)) + 4)
    # Torch can be told to multiply float32 in fewer digits, by several switches, on some devices. Better to see.
    x = normalize(torch.randn(PROBE, dimension, generator=torch.Generator().manual_seed(0)).to(device))
    seen = float((torch.mm(x, x.t()).double() - torch.mm(x.double(), x.double().t())).abs().max())
    return bound if seen < bound else 8 * seen


class _Turn:
    """Some queries, all of the gallery.

    Args:
        order: the queries' indices, in the order in which they are taken.
        queries: what they index.
        gallery: None if the queries at work are the gallery too, in the same order.
        error: what a product of float32 vectors may be wrong by, per length of the query.
    """

    def __init__(
        self, order: Ints, queries: Vectors, gallery: Vectors | None, tile: int, error: float, ties: Ties, team: Workers
    ) -> None:
        self.gallery, self.tile, self.error, self.ties, self.team = gallery, tile, error, ties, team
        self.left = torch.empty(len(order), queries.dimension, device=queries.rows.device)

        def read(part: slice, memory: Tensor) -> None:
            self.left[part] = queries.read(order[part])

        team.run(partial(read, part) for part in _parts(len(order), tile))
        self.columns = len(order) if gallery is None else len(gallery)
        self.tied = TIED_CODES if queries.similarity == "hamming" else TIED
        self.lengths = None if queries.similarity in ("cosine", "hamming") else Rows.norms(self.left).double()
        self.bounds: list[Bounds] = []
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
        tolerance = self._tolerance(row, column)
        if self.ties == "pessimistic":
            bound = similarity - tolerance
        else:
            bound = torch.nextafter(similarity + tolerance, similarity.new_tensor(torch.inf))
        if self.gallery is None:
            row, bound = np.concatenate([row, column]), torch.cat([bound, bound])
        self._bound(row, bound)

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
            for part in _parts(len(columns), self._at_a_time()):
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

    def _tolerance(self, row: Ints, column: Ints) -> Tensor | float:
        if self.lengths is None:
            return self.tied
        right = torch.empty(len(column), dtype=torch.float64, device=self.left.device)
        for part in _parts(len(column), self._at_a_time()):
            right[part] = Rows.norms(self._right(column[part])).double()
        return self.tied * self.lengths[self._index(row)] * right

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
                for part in _parts(len(panel), self.tile)
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
        counted = tally(scores, bounds.low, bounds.high, memory)
        if counted is None:  # so many are near a bound that all are computed again
            again = torch.mm(left.double(), right.double().t()).masked_fill_(torch.isneginf(scores), -torch.inf)
            counts = count_at_least(again, bounds.exact)
        else:
            counts, doubts = counted
            for part in _parts(len(doubts), self._at_a_time()):
                row, column, bound = doubts[part].unbind(1)
                exact = torch.linalg.vecdot(left[row].double(), right[column].double())
                reached = (exact >= bounds.exact[row, bound]).to(torch.int64)
                counts.index_put_((row, bound), reached, accumulate=True)
        with self.lock:
            bounds.before.add_(counts)

    def ranks(self) -> Ranks:
        ranks, matches = zip(*(bounds.ranks() for bounds in self.bounds), strict=True)
        return Ranks.of(np.concatenate(ranks), np.concatenate(matches))
