"""Binary codes, packed eight bits to a byte, as vectors of +1 and −1.

Their inner product is bits − 2 · (Hamming distance), a whole number that float32 holds exactly: so codes go the same
way as embeddings do, and ties, which are everywhere among codes, are exact.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nearfar.errors import InputError, InputTypeError
from nearfar.evaluation.inputs import Part, Rows


class Codes:
    """Packed codes (N, bytes), uint8: a tensor, an array or a memory map; what `Rows` is for embeddings."""

    def __init__(self, source: Any, name: str, device: torch.device | str | None = None):
        if not isinstance(source, Tensor | np.ndarray):
            raise InputTypeError(f"{name} must be a torch.Tensor or a numpy array, not {type(source).__name__}")
        if source.dtype not in (torch.uint8, np.uint8):
            raise InputTypeError(
                f'{name} are {source.dtype}, but similarity="hamming" takes packed codes, uint8: pack_bits({name}) '
                "makes them of real numbers"
            )
        if source.ndim != 2 or source.shape[1] == 0:
            raise InputError(f"{name} must be (N, bytes), not {tuple(source.shape)}")
        self.source: Tensor | NDArray[Any] = source
        self.name = name
        self.device = torch.device(device or (source.device if isinstance(source, Tensor) else "cpu"))
        self.dimension = 8 * int(source.shape[1])

    def __len__(self) -> int:
        return len(self.source)

    def packed(self, part: Part) -> NDArray[np.uint8]:
        """Some of them, as they are."""
        if isinstance(self.source, Tensor):
            index = part if isinstance(part, slice) else torch.from_numpy(part).to(self.source.device)
            return self.source[index].cpu().numpy()
        return np.ascontiguousarray(self.source[part])

    def float32(self, part: Part) -> Tensor:
        """Some of them, as vectors of +1 and −1."""
        bits = np.unpackbits(self.packed(part), axis=1)
        return torch.from_numpy(bits).to(self.device).float().mul_(2).sub_(1)


def signs(embeddings: NDArray[np.float32]) -> NDArray[np.float32]:
    """1 where a number is above 0, else −1: codes as vectors. Rows of NaN stay what they are."""
    found = np.where(embeddings > 0, np.float32(1), np.float32(-1))
    found[np.isnan(embeddings)] = np.nan
    return found


def on_grid(cosines: NDArray[np.float32], bits: int) -> NDArray[np.float32]:
    """Cosines of `signs` without rounding errors, 1 − 2 · (Hamming distance) / bits, so that equal distances tie."""
    return np.asarray(np.rint(cosines * np.float32(bits)) / np.float32(bits), np.float32)


def pack_bits(embeddings: Any) -> NDArray[np.uint8]:
    """The signs of embeddings (N, D) as packed codes (N, ⌈D/8⌉): a bit is 1 where the number is above 0.

    Where D is no multiple of 8, bits of 0 are added to all: distances stay what they are.
    """
    rows = Rows(embeddings, "embeddings", "cpu")
    codes = np.empty((len(rows), -(-rows.dimension // 8)), np.uint8)
    step = 2**14
    for start in range(0, len(rows), step):
        part = slice(start, min(start + step, len(rows)))
        codes[part] = np.packbits((rows.float32(part) > 0).numpy(), axis=1)
    return codes
