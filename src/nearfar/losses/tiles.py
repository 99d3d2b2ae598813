"""The tiles of a group of rows: which they are, where they are kept, and what their rows see of them.

Shapes: b rows and t columns of a tile; K vectors of a class.
"""

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from nearfar.losses.pools import Pool
from nearfar.losses.rows import View

if TYPE_CHECKING:
    from nearfar.losses.engine import Run


@dataclass(frozen=True)
class Group:
    """Rows whose statistics are complete together, and the tiles that make them so."""

    rows: slice
    tiles: list[tuple[slice, slice]]
    mirrored: bool = False  # they serve the rows of both their sides

    @functools.cached_property
    def lines(self) -> dict[int, int]:
        """The tiles that a row has, numbered, by the column that each begins with; mirrored tiles are among them."""
        mirrored = {i.start for i, j in self.tiles if j.start != i.start} if self.mirrored else set()
        return {start: line for line, start in enumerate(sorted(mirrored | {j.start for _, j in self.tiles}))}


def laid(memory: Tensor, *shape: int) -> Tensor:
    """Tiles (..., b, t) in flat memory, each with its longer side outermost: so the products of some hundred rows with
    thousands of columns run a tenth faster, and at the same speed whatever the address (docs/LOG.md).
    """
    *planes, rows, columns = shape
    return memory.view(shape) if columns <= rows else memory.view(*planes, columns, rows).transpose(-1, -2)


def as_it_lies(tiles: Tensor) -> Tensor:
    """Tiles (..., b, t) contiguous, for work that does not care which side is which."""
    return tiles if tiles.is_contiguous() else tiles.transpose(-1, -2)


class Tiles:
    """The tiles of a group, as views for the rows they serve.

    They are kept while the budget lasts, first as similarities, then (`hold`) as the gradients that these become; those
    beyond it are computed at every visit.

    What is kept goes to memory that is used again by the next group, since fresh pages cost more than the passes over
    them: an arena of the budget's size; and, for the first strip, the place of the column gradient that its tiles will
    be turned into, which is nobody's until then.
    """

    def __init__(self, run: "Run", group: Group, hold: bool, sweeps: int):
        self.run, self.group, self.hold = run, group, hold
        self.used = self.used_of_gradient = 0
        self.kept: dict[int, list[View]] = {}
        # Similarities that one sweep, or a pool, uses up can all be computed in one place.
        self.scratch: Tensor | None = None
        if len(group.tiles) > 1 and (sweeps == 1 or run.pool is not None):
            largest = max((i.stop - i.start) * (j.stop - j.start) for i, j in group.tiles)
            self.scratch = run.like.new_empty(largest * run.per_class)
        self.left = run.plan.budget if hold or sweeps > 1 else 0
        if run.pool is not None and self.scratch is not None:  # planes, their weights, and what is made of both
            self.left = max(0, self.left - 3 * self.scratch.nbytes)

    def visit(self) -> Iterator[list[View]]:
        for index, (i, j) in enumerate(self.group.tiles):
            views = self.kept.get(index)
            if views is None:
                if self.run.pool is None:
                    views = self._make(i, j)
                    self._keep(index, i, j, views)
                else:
                    views = [self._make_pooled(index, i, j, self.run.pool)]
            yield views

    def _keep(self, index: int, i: slice, j: slice, views: list[View]) -> None:
        place = self._place_of_gradient(i, j)
        size = sum(view.nbytes for view in views) if place is None else 0
        if size > self.left:
            return
        self.left -= size
        self.kept[index] = views
        for view in views:
            view.keep = self.hold
            if place is not None:
                view.store = laid(place, i.stop - i.start, j.stop - j.start)
            elif self.hold and len(self.group.tiles) > 1:
                assert view.s is not None
                rows, columns = view.s.shape
                part = self._allot(rows * columns)
                # A mirrored view keeps its tile's layout, so that both can be added as they lie.
                view.store = part.as_strided(view.s.shape, view.s.stride())
        if len(views) == 1 and views[0].store is not None:  # the two sides of a mirrored tile are added: no sharing
            views[0].scratch = self._scratch(i, j)

    def _place_of_gradient(self, i: slice, j: slice) -> Tensor | None:
        grad = self.run.grad_y
        # Only the first strip's: its product is what that place is written to first.
        if not (self.hold and self.run.overwritten and grad is not None and i.start == 0):
            return None
        if self.run.plan.budget == 0 or len(self.group.tiles) == 1:
            return None
        # What needs more than the tile's own part reaches into those of later ones, which are written to only after
        # this has been used; the last find no place here.
        start = max(self.used_of_gradient, j.start * self.run.per_class * grad.shape[1])
        stop = start + self.run.numbers((i.stop - i.start) * (j.stop - j.start))
        if stop > grad.numel():
            return None
        self.used_of_gradient = stop
        return grad.view(-1)[start:stop]

    def _allot(self, size: int) -> Tensor:
        if self.run.arena is None:
            size_of_all = self.run.plan.budget // self.run.like.element_size()
            self.run.arena = self.run.plan.spare.take((size_of_all,), self.run.like)
        self.used += size
        return self.run.arena[self.used - size : self.used]

    def _scratch(self, i: slice, j: slice) -> Tensor | None:
        rows, columns = i.stop - i.start, j.stop - j.start
        return None if self.scratch is None else laid(self.scratch[: rows * columns], rows, columns)

    def _make(self, i: slice, j: slice) -> list[View]:
        s = self.run.similarities(i, j, self._scratch(i, j))
        views = [self._view(s, i, j)]
        if self.group.mirrored and i.start != j.start:
            views.append(self._view(s.t(), j, i))
        return views

    def _make_pooled(self, index: int, i: slice, j: slice, pool: Pool) -> View:
        """Of planes that stay in the scratch memory: what is kept is what they are pooled to, and their shares."""
        run, rows, columns = self.run, i.stop - i.start, j.stop - j.start
        pairs = rows * columns
        memory = run.like.new_empty(pool.size * pairs) if self.scratch is None else self.scratch[: pool.size * pairs]
        planes = laid(memory, pool.size, rows, columns)
        for plane, vectors in zip(planes, run.planes(j), strict=True):
            run.similarities(i, vectors, plane)
        if not run.wants_tiles:
            return self._view(pool.value(planes), i, j)
        place = self._place_of_gradient(i, j)
        taken = run.numbers(pairs) * run.like.element_size()
        if place is None and self.hold and taken <= self.left:
            self.left -= taken
            place = self._allot(run.numbers(pairs))
        pooled, shares = pool.gather(as_it_lies(planes), None if place is None else place[pairs:])
        view = self._view(pooled if planes.is_contiguous() else pooled.t(), i, j)
        view.shares, view.planes = shares, planes
        if place is not None:
            view.keep, view.store = True, laid(place[:pairs], rows, columns)
            self.kept[index] = [view]
        return view

    def _view(self, s: Tensor, i: slice, j: slice) -> View:
        only = self.group.tiles == [(self.group.rows, j)]
        return self.run.view(s, i, j, self.group.rows.start, None if only else self.group.lines[j.start])
