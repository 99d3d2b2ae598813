"""What a miner returns, an `indices_tuple`: checked, and turned into pairs, triplets, or weights of samples.

A miner lists triplets (anchors, positives, negatives), or pairs (anchors, positives, anchors, negatives): tensors of
indices. Anchors are rows; the others are columns, which with `ref_emb` index that.

Shapes: N rows, M columns; P pairs or T triplets listed; b rows and t columns of a tile.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from nearfar.errors import InputError, InputTypeError
from nearfar.losses.engine.pairs import MaskPairs

IndicesTuple = Sequence[Tensor]
NAMES = {3: ("anchors", "positives", "negatives"), 4: ("anchors", "positives", "anchors", "negatives")}


def checked(indices_tuple: IndicesTuple, rows: int, columns: int, device: torch.device) -> tuple[Tensor, ...]:
    """The three or four lists of indices, on the device, with their ranges and lengths checked."""
    if not isinstance(indices_tuple, tuple | list) or len(indices_tuple) not in NAMES:
        actual = f"{len(indices_tuple)} parts" if isinstance(indices_tuple, tuple | list) else f"{type(indices_tuple)}"
        raise InputError(
            "indices_tuple must be triplets (anchors, positives, negatives) or pairs (anchors, positives, anchors, "
            f"negatives), not {actual}"
        )
    names = NAMES[len(indices_tuple)]
    limits = (rows if name == "anchors" else columns for name in names)
    result = tuple(_indices(*part, device) for part in zip(indices_tuple, names, limits, strict=True))
    a1, p, a2, n = as_pairs(result)
    for name, others, anchors in (("positives", p, a1), ("negatives", n, a2)):
        if len(others) != len(anchors):
            raise InputError(
                f"indices_tuple has {len(others)} {name} for {len(anchors)} anchors: there must be one each"
            )
    return result


def _indices(index: Tensor, name: str, limit: int, device: torch.device) -> Tensor:
    if not isinstance(index, Tensor):
        raise InputTypeError(
            f"{name} of indices_tuple must be a torch.Tensor, not {type(index).__name__}: torch.as_tensor makes one"
        )
    integers = not (index.is_floating_point() or index.is_complex() or index.dtype == torch.bool)
    if index.ndim != 1 or not (integers or index.numel() == 0):
        raise InputError(
            f"{name} of indices_tuple must be integers of shape (n,), not {index.dtype} {tuple(index.shape)}"
        )
    index = index.to(device, torch.long)
    if index.numel():
        low, high = (int(bound) for bound in torch.aminmax(index))
        if low < 0 or high >= limit:
            of = "embeddings" if name == "anchors" else "samples to compare with"
            raise InputError(
                f"{name} of indices_tuple run from {low} to {high}, but there are {limit} {of}: 0 to {limit - 1}"
            )
    return index


def as_pairs(indices: tuple[Tensor, ...]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Pairs or triplets as (anchors, positives, anchors, negatives)."""
    a1, p, a2, n = indices if len(indices) == 4 else (indices[0], indices[1], indices[0], indices[2])
    return a1, p, a2, n


def sample_weights(indices: tuple[Tensor, ...], rows: int) -> Tensor | None:
    """How often each sample is listed, relative to the most listed one, (N,); None if none is."""
    listed = torch.cat(indices)
    if not len(listed):
        return None
    number = torch.bincount(listed, minlength=rows).to(torch.float32)
    return number / number.max()


class TuplePairs(MaskPairs):
    """The pairs that are listed, and no others; each counts once, however often it is listed.

    Args:
        indices: from `checked`.
        rows, columns: N and M.
        same: the columns are the rows themselves; a sample with itself is no pair.
    """

    def __init__(self, indices: tuple[Tensor, ...], rows: int, columns: int, same: bool):
        a1, p, a2, n = as_pairs(indices)
        self.rows, self.columns = rows, columns
        self.mask = self._tile_masks
        self.listed = _pair_list(a1, p, rows, columns, same), _pair_list(a2, n, rows, columns, same)
        if _meet(*self.listed):
            raise InputError("indices_tuple lists some pairs both as positive and as negative")
        self.positives, self.negatives = (side.numbers for side in self.listed)

    def _tile_masks(self, rows: slice, columns: slice) -> tuple[Tensor, Tensor]:
        return self.listed[0].mask(rows, columns), self.listed[1].mask(rows, columns)


class _Sorted:
    """Few pairs (i, j): each once, sorted by row and then by column.

    Attributes:
        keys: (P,) i M + j.
        numbers: (N,) the number of pairs of each row.
    """

    def __init__(self, keys: Tensor, rows: int, columns: int):
        self.keys: Tensor = torch.unique(keys)
        self.rows, self.columns = self.keys // max(1, columns), self.keys % max(1, columns)
        self.numbers = torch.bincount(self.rows, minlength=rows)
        self.starts = _starts(self.numbers)

    def mask(self, rows: slice, columns: slice) -> Tensor:
        """The pairs of a tile, as boolean (b, t)."""
        listed = slice(self.starts[rows.start], self.starts[rows.stop])
        width = columns.stop - columns.start
        j = self.columns[listed] - columns.start
        j = torch.where((j >= 0) & (j < width), j, width)  # pairs outside the tile fall into a column that is cut off
        mask = torch.zeros(rows.stop - rows.start, width + 1, dtype=torch.bool, device=j.device)
        mask[self.rows[listed] - rows.start, j] = True
        return mask[:, :width]

    def holds(self, keys: Tensor) -> Tensor:
        """Which of the keys are listed."""
        if not len(self.keys):
            return torch.zeros_like(keys, dtype=torch.bool)
        return self.keys[torch.searchsorted(self.keys, keys).clamp_max(len(self.keys) - 1)] == keys


class _Scattered:
    """Many pairs, as a boolean matrix (N, M), which is smaller than their list."""

    def __init__(self, keys: Tensor, rows: int, columns: int):
        self.matrix = torch.zeros(rows * columns, dtype=torch.bool, device=keys.device)
        self.matrix[keys] = True
        self.matrix = self.matrix.view(rows, columns)
        self.numbers = self.matrix.sum(1)

    def mask(self, rows: slice, columns: slice) -> Tensor:
        return self.matrix[rows, columns]

    def holds(self, keys: Tensor) -> Tensor:
        return self.matrix.view(-1)[keys]


def _pair_list(i: Tensor, j: Tensor, rows: int, columns: int, same: bool) -> _Sorted | _Scattered:
    if same:
        other = i != j
        i, j = i[other], j[other]
    kind = _Scattered if 8 * len(i) > rows * columns else _Sorted
    return kind(i * columns + j, rows, columns)


def _meet(a: _Sorted | _Scattered, b: _Sorted | _Scattered) -> bool:
    """Whether some pair is in both lists."""
    if isinstance(a, _Sorted):
        return bool(b.holds(a.keys).any())
    return bool((a.matrix & b.matrix).any()) if isinstance(b, _Scattered) else _meet(b, a)


class Triplets(TuplePairs):
    """Triplets as they are listed, by their anchors. They have no pairs: the same pair may be positive in one triplet
    and negative in another.
    """

    def __init__(self, anchors: Tensor, positives: Tensor, negatives: Tensor, rows: int, columns: int):
        super().__init__((anchors[:0],) * 4, rows, columns, same=False)
        if bool((anchors[1:] < anchors[:-1]).any()):  # most miners list them in order
            order = torch.argsort(anchors, stable=True)
            anchors, positives, negatives = anchors[order], positives[order], negatives[order]
        self.triplets = anchors, positives, negatives
        self.starts = _starts(torch.bincount(anchors, minlength=rows))

    def __len__(self) -> int:
        return self.starts[-1]

    def between(self, first: int, last: int) -> tuple[Tensor, Tensor, Tensor]:
        """The triplets of the anchors first .. last - 1: anchors counted from the first, positives, negatives."""
        anchors, positives, negatives = (t[self.starts[first] : self.starts[last]] for t in self.triplets)
        return anchors - first, positives, negatives


def _starts(numbers: Tensor) -> list[int]:
    """Where each row begins in a list sorted by row, and (last) its length; on the host, for slicing."""
    return [0, *numbers.cumsum(0).tolist()]
