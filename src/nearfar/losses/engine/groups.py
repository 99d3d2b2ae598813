"""How the work is cut: rows into groups, whose statistics are complete together, and these into tiles."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from nearfar.losses.engine.plan import Sizes
from nearfar.losses.engine.vectors import blocks

Tile = tuple[slice, slice]  # rows and columns


@dataclass(frozen=True)
class Group:
    """Rows whose statistics are complete together, and the tiles that make them so."""

    rows: slice
    tiles: list[Tile]

    @property
    def one_tile(self) -> bool:
        """Whether one tile has all pairs of the rows."""
        return len(self.tiles) == 1 and self.tiles[0][0] == self.rows


def of_one_set(n: int, towers: int | None, sizes: Sizes) -> Group:
    """Samples × the same samples: the tiles of the upper triangle, each of which serves the rows of both its sides; for
    two towers, the second of which begins at `towers`, the tiles between them.
    """
    side = max(1, min(sizes.square, math.isqrt(sizes.tile)))
    edges = blocks(n, side)
    tiles = [(i, j) for k, i in enumerate(edges) for j in edges[k:]]
    if towers is not None:
        edges = blocks(towers, side)
        tiles = [(i, slice(towers + j.start, towers + j.stop)) for i in edges for j in edges]
    return Group(slice(0, n), tiles)


def of_two_sets(
    rows: int, columns: int, kept: int, sizes: Sizes, *, alike: int, pooled: bool, together: bool
) -> Iterator[Group]:
    """Strips of rows × tiles of columns.

    A strip has as many rows as can be kept, if these are enough for products at full speed; otherwise as many as the
    cache allows, and its tiles are computed again. Fewer strips mean fewer passes over the columns and their gradient.

    Args:
        kept: the number of rows whose similarities can all be kept.
        alike: the number of columns by which the rows are cut: where ranks have different columns of the same rows, the
            largest of any rank, so that all cut alike.
        pooled: each column stands for several vectors.
        together: all rows are one group, as the weight of each depends on all.
    """
    fewest = min(sizes.fewest_rows, sizes.tile)
    most = max(fewest, sizes.tile // max(1, min(sizes.square, alike)))
    height = min(most, kept) if kept >= fewest else most
    groups = []
    for strip in blocks(rows, height):
        widest = sizes.square
        if not pooled:
            widest = min(sizes.widest, max(sizes.square, sizes.tile // (strip.stop - strip.start)))
        groups.append(Group(strip, [(strip, part) for part in blocks(columns, min(widest, sizes.tile))]))
    if together:
        return iter([Group(slice(0, rows), [tile for group in groups for tile in group.tiles])])
    return iter(groups)
