"""What callers hand to an evaluation: embeddings read a part at a time, labels turned into codes, both checked."""

from collections.abc import Sequence
from numbers import Integral
from typing import Any, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nearfar.errors import InputError, InputTypeError

Ints = NDArray[np.int64]
Part = slice | NDArray[np.integer[Any]]  # of the rows
NAMED = 10  # bad rows that an error lists
CHECKED_AT_A_TIME = 2**22  # numbers


class Rows:
    """Embeddings (N, D): a tensor on any device, an array, or a memory map, of which only what is asked for is read.

    Args:
        source: floating point of any width.
        name: what to call them in errors.
        device: where the parts go; by default where the tensor is, and the CPU for arrays.
    """

    def __init__(self, source: Any, name: str, device: torch.device | str | None = None):
        if not isinstance(source, Tensor | np.ndarray):
            raise InputTypeError(f"{name} must be a torch.Tensor or a numpy array, not {type(source).__name__}")
        if source.ndim != 2:
            raise InputError(f"{name} must be (N, dimension), not {tuple(source.shape)}: flatten or pool them first")
        if isinstance(source, Tensor) and source.layout != torch.strided:
            raise InputTypeError(
                f"{name} are a {str(source.layout).removeprefix('torch.')} tensor: call to_dense() first"
            )
        if isinstance(source, np.ma.MaskedArray):
            raise InputTypeError(f"{name} are a masked array, whose mask means nothing here: leave the masked rows out")
        if not (source.is_floating_point() if isinstance(source, Tensor) else source.dtype.kind == "f"):
            raise InputTypeError(f"{name} must be floating point, not {source.dtype}")
        if source.shape[1] == 0:
            raise InputError(f"{name} have no dimensions: {tuple(source.shape)}")
        self.source: Tensor | NDArray[Any] = source.detach() if isinstance(source, Tensor) else source
        self.name = name
        self.device = torch.device(device or (source.device if isinstance(source, Tensor) else "cpu"))
        self.dimension = int(source.shape[1])

    def __len__(self) -> int:
        return len(self.source)

    def read(self, part: Part, dtype: torch.dtype) -> Tensor:
        """Some rows, as they are."""
        if isinstance(self.source, Tensor):
            rows = self.source[part if isinstance(part, slice) else torch.from_numpy(part).to(self.source.device)]
        else:
            array = np.ascontiguousarray(self.source[part])
            if array.dtype.byteorder not in "=|" or array.dtype.itemsize > 8 or not array.flags.writeable:
                array = array.astype(np.float64 if array.dtype.itemsize >= 8 else np.float32)
            rows = torch.from_numpy(array)
        return rows.to(self.device, dtype)

    def float32(self, part: Part) -> Tensor:
        """Some rows, all of whose numbers are finite."""
        rows = self.read(part, torch.float32)
        # A sum is one pass, and finite only if everything in it is; it may overflow where nothing else does.
        if not bool(torch.isfinite(rows.sum())) and not bool(torch.isfinite(rows).all()):
            self.complain()
        return rows

    def normalized(self, part: Part) -> Tensor:
        """Some rows, of unit length; zero vectors stay zero."""
        rows = self.float32(part)
        norms = self.norms(rows)
        if self.source.dtype in (torch.float64, np.float64) and not bool(norms.all()):
            self._check_zeros(part, norms == 0)
        return rows / positive(norms)[:, None]

    def _check_zeros(self, part: Part, zero: Tensor) -> None:
        small = int((self.read(part, torch.float64)[zero] != 0).any(1).sum())
        if small:
            raise InputError(
                f"{small} or more of {len(self)} {self.name} hold numbers so small that float32 has zero for them: "
                "multiply them by a constant"
            )

    @staticmethod
    def norms(rows: Tensor) -> Tensor:
        """Euclidean lengths, whatever the magnitude of the numbers."""
        lengths: Tensor = torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64).float()
        return lengths

    def complain(self) -> NoReturn:
        """Raise an error that counts and names the rows that hold NaN or infinity."""
        bad: list[int] = []
        step = max(1, CHECKED_AT_A_TIME // self.dimension)
        for start in range(0, len(self), step):
            rows = self.read(slice(start, start + step), torch.float32)
            bad += (start + (~torch.isfinite(rows)).any(1).nonzero().flatten()).tolist()
        listed = ", ".join(map(str, bad[:NAMED])) + (", …" if len(bad) > NAMED else "")
        raise InputError(
            f"{len(bad)} of {len(self)} {self.name} hold NaN or infinity (or numbers beyond float32): "
            f"row{'s' * (len(bad) != 1)} {listed}. Leave them out, or look at the model that made them"
        )


def positive(norms: Tensor) -> Tensor:
    """Norms to divide by: 1 instead of 0."""
    return torch.where(norms > 0, norms, torch.ones_like(norms))


def unit_vectors(source: Any, name: str, device: torch.device | str | None = None) -> Tensor:
    """All rows, float32, of unit length."""
    return Rows(source, name, device).normalized(slice(None))


def to_numpy(values: Any) -> NDArray[Any]:
    """A tensor on any device, an array, or a list, as an array."""
    if isinstance(values, Tensor):
        values = values.detach().cpu()
        return np.asarray((values.float() if values.dtype == torch.bfloat16 else values).numpy())
    return np.asarray(values)


def labels(values: Any, count: int | None, name: str) -> NDArray[Any]:
    """Labels, cameras or ids, `count` of them, as whole numbers, strings or other names; never as floats."""
    array = to_numpy(values)
    if isinstance(values, list | tuple) and array.ndim == 1:
        array = _as_they_are(values, array)
    if array.ndim != 1:
        raise InputError(f"{name} must be one each (N,), not {array.shape}")
    if array.dtype.kind in "fc" and len(array):
        raise InputTypeError(
            f"{name} are {array.dtype}, which does not hold every whole number: give integers or strings, "
            f"such as {name}.astype('int64') or {name}.long()"
        )
    if count is not None and len(array) != count:
        raise InputError(f"{len(array)} {name} for {count} {_owner(name)}: there must be one each")
    if array.dtype.kind in "OmM":
        missing = [i for i, value in enumerate(array) if value is None or value != value]
        if missing:
            raise InputError(
                f"{len(missing)} of {len(array)} {name} are missing (None, NaN or NaT; first: {missing[0]}): "
                "leave these items out, or name them"
            )
    return array


def _as_they_are(values: Sequence[Any], array: NDArray[Any]) -> NDArray[Any]:
    """Where numpy made strings of numbers beside strings, or floats of integers that fit no one type: objects."""
    numbers = sum(isinstance(value, Integral) for value in values)
    if (array.dtype.kind in "US" and numbers) or (array.dtype.kind == "f" and numbers == len(values) > 0):
        array = np.empty(len(values), object)
        array[:] = values
    return array


def _owner(name: str) -> str:
    return "gallery embeddings" if name.startswith("gallery_") else "embeddings"


def indices(values: Any, name: str, columns: tuple[int, ...]) -> Ints:
    """(n, len(columns)) row numbers, those of each column below its bound."""
    array = to_numpy(values)
    if array.ndim != 2 or array.shape[1] != len(columns):
        raise InputError(f"{name} must be (n, {len(columns)}) row numbers, not {array.shape}")
    if array.dtype.kind not in "iu":
        raise InputTypeError(f"{name} must be integers, not {array.dtype}")
    for column, bound in zip(array.T, columns, strict=True):
        if len(column) and not (column.min() >= 0 and column.max() < bound):
            raise InputError(f"{name} run from {column.min()} to {column.max()}, but there are {bound} rows")
    return array.astype(np.int64)


def encode(left: NDArray[Any], right: NDArray[Any] | None, name: str) -> tuple[Ints, Ints]:
    """Codes 0, 1, … of the values of both, equal where the values are. Without `right` both are the same.

    Values are compared as they are: nothing is rounded.
    """
    both = [left] if right is None else [left, right]
    kinds = {"number" if array.dtype.kind in "iub" else array.dtype.kind for array in both}
    if len(kinds) > 1 and "O" not in kinds:
        raise InputTypeError(f"{name} are {left.dtype} and gallery_{name} {both[1].dtype}: they can never be equal")
    if "O" in kinds or np.result_type(*both).kind == "f":  # int64 beside uint64 would be rounded
        known: dict[Any, int] = {}
        try:
            found = [known.setdefault(value, len(known)) for array in both for value in array.tolist()]
        except TypeError as error:
            raise InputTypeError(
                f"{name} are compared, and some cannot be ({error}): give integers or strings"
            ) from None
        codes = np.array(found, np.int64)
    else:
        codes = np.unique(np.concatenate(both), return_inverse=True)[1].astype(np.int64)
    return codes[: len(left)], codes if right is None else codes[len(left) :]
