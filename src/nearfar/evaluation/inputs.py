"""Checks the inputs of an evaluation, reads embeddings in parts and encodes labels."""

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
NAMED = 10  # invalid rows listed in an error
CHECKED_AT_A_TIME = 2**22  # numbers


class Rows:
    """Embeddings (N, D): a tensor on any device, an array or a memory map, read in parts.

    Args:
        source: floating-point numbers of any width.
        name: the name in errors.
        device: the device of the parts; by default that of the tensor, or the CPU for arrays.
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
            raise InputTypeError(f"{name} are a masked array, and masks are not supported: leave out the masked rows")
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
        """Some rows, unchanged."""
        if isinstance(self.source, Tensor):
            rows = self.source[part if isinstance(part, slice) else torch.from_numpy(part).to(self.source.device)]
        else:
            array = np.ascontiguousarray(self.source[part])
            if array.dtype.byteorder not in "=|" or array.dtype.itemsize > 8 or not array.flags.writeable:
                array = array.astype(np.float64 if array.dtype.itemsize >= 8 else np.float32)
            rows = torch.from_numpy(array)
        return rows.to(self.device, dtype)

    def float32(self, part: Part) -> Tensor:
        """Some rows as float32. Raises `InputError` if they are not finite."""
        rows = self.read(part, torch.float32)
        # A finite sum proves in one pass that all numbers are finite. It may overflow, so the second check decides.
        if not bool(torch.isfinite(rows.sum())) and not bool(torch.isfinite(rows).all()):
            self.complain()
        return rows

    def normalized(self, part: Part) -> Tensor:
        """Some rows, normalised to unit length; zero vectors stay zero."""
        rows = self.float32(part)
        norms = self.norms(rows)
        if self.source.dtype in (torch.float64, np.float64) and not bool(norms.all()):
            self._check_zeros(part, norms == 0)
        return rows / positive(norms)[:, None]

    def _check_zeros(self, part: Part, zero: Tensor) -> None:
        small = int((self.read(part, torch.float64)[zero] != 0).any(1).sum())
        if small:
            raise InputError(
                f"at least {small} of {len(self)} {self.name} hold numbers so small that they are zero in float32: "
                "multiply them by a constant"
            )

    @staticmethod
    def norms(rows: Tensor) -> Tensor:
        """Euclidean norms, computed in float64 so that they neither overflow nor underflow."""
        lengths: Tensor = torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64).float()
        return lengths

    def complain(self) -> NoReturn:
        """Raise `InputError` with the number and the list of rows with NaN or infinity."""
        bad: list[int] = []
        step = max(1, CHECKED_AT_A_TIME // self.dimension)
        for start in range(0, len(self), step):
            rows = self.read(slice(start, start + step), torch.float32)
            bad += (start + (~torch.isfinite(rows)).any(1).nonzero().flatten()).tolist()
        listed = ", ".join(map(str, bad[:NAMED])) + (", …" if len(bad) > NAMED else "")
        raise InputError(
            f"{len(bad)} of {len(self)} {self.name} hold NaN or infinity (or numbers beyond float32): "
            f"row{'s' * (len(bad) != 1)} {listed}. Leave them out, or check the model"
        )


def positive(norms: Tensor) -> Tensor:
    """Norms for divisions, with 1 instead of 0."""
    return torch.where(norms > 0, norms, torch.ones_like(norms))


def unit_vectors(source: Any, name: str, device: torch.device | str | None = None) -> Tensor:
    """All rows as float32 vectors of unit length."""
    return Rows(source, name, device).normalized(slice(None))


def to_numpy(values: Any) -> NDArray[Any]:
    """Convert a tensor on any device, an array or a list to an array."""
    if isinstance(values, Tensor):
        values = values.detach().cpu()
        return np.asarray((values.float() if values.dtype == torch.bfloat16 else values).numpy())
    return np.asarray(values)


def labels(values: Any, count: int | None, name: str) -> NDArray[Any]:
    """Check `count` labels, cameras or ids: integers, strings or other objects, but not floats."""
    array = to_numpy(values)
    if isinstance(values, list | tuple) and array.ndim == 1:
        array = _unconverted(values, array)
    if array.ndim != 1:
        raise InputError(f"{name} must be (N,), not {array.shape}")
    if array.dtype.kind in "fc" and len(array):
        raise InputTypeError(
            f"{name} are {array.dtype}, which cannot hold every integer: give integers or strings, "
            f"such as {name}.astype('int64') or {name}.long()"
        )
    if count is not None and len(array) != count:
        raise InputError(f"there are {len(array)} {name} for {count} {_owner(name)}: give one for each")
    if array.dtype.kind in "OmM":
        missing = [i for i, value in enumerate(array) if value is None or value != value]
        if missing:
            raise InputError(
                f"{len(missing)} of {len(array)} {name} are missing (None, NaN or NaT; first: {missing[0]}): "
                "leave these items out, or label them"
            )
    return array


def _unconverted(values: Sequence[Any], array: NDArray[Any]) -> NDArray[Any]:
    """The values as objects if numpy has converted integers to strings or floats."""
    numbers = sum(isinstance(value, Integral) for value in values)
    if (array.dtype.kind in "US" and numbers) or (array.dtype.kind == "f" and numbers == len(values) > 0):
        array = np.empty(len(values), object)
        array[:] = values
    return array


def _owner(name: str) -> str:
    return "gallery embeddings" if name.startswith("gallery_") else "embeddings"


def indices(values: Any, name: str, columns: tuple[int, ...]) -> Ints:
    """Check row numbers (n, len(columns)); `columns` has the number of rows that each column indexes."""
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
    """Replace equal values of both arrays by equal codes 0, 1, …. Without `right`, both results are the same.

    Values are compared exactly, without rounding.
    """
    both = [left] if right is None else [left, right]
    kinds = {"number" if array.dtype.kind in "iub" else array.dtype.kind for array in both}
    if len(kinds) > 1 and "O" not in kinds:
        raise InputTypeError(f"{name} are {left.dtype} and gallery_{name} {both[1].dtype}: they can never be equal")
    if "O" in kinds or np.result_type(*both).kind == "f":  # int64 and uint64 together would be rounded
        known: dict[Any, int] = {}
        try:
            numbers = [known.setdefault(value, len(known)) for array in both for value in array.tolist()]
        except TypeError as error:
            raise InputTypeError(f"some {name} cannot be compared ({error}): give integers or strings") from None
        codes = np.array(numbers, np.int64)
    else:
        codes = np.unique(np.concatenate(both), return_inverse=True)[1].astype(np.int64)
    return codes[: len(left)], codes if right is None else codes[len(left) :]
