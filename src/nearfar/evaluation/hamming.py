"""Binary codes, packed eight bits to a byte, as vectors of +1 and −1.

Their inner product is bits − 2 · (Hamming distance), an integer that float32 holds exactly. So codes are searched like
embeddings, and ties, which are frequent, are exact.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nearfar.errors import InputError, InputTypeError
from nearfar.evaluation.inputs import Part, Rows


class Codes:
    """Packed codes (N, bytes), uint8: a tensor, an array or a memory map. The counterpart of `Rows`."""

    def __init__(self, source: Any, name: str, device: torch.device | str | None = None):
        if not isinstance(source, Tensor | np.ndarray):
            raise InputTypeError(f"{name} must be a torch.Tensor or a numpy array, not {type(source).__name__}")
        if source.dtype not in (torch.uint8, np.uint8):
            raise InputTypeError(
                f'{name} are {source.dtype}, but similarity="hamming" takes packed codes, uint8: pack_bits({name}) '
                "converts real vectors"
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
        """The packed codes of some rows."""
        if isinstance(self.source, Tensor):
            index = part if isinstance(part, slice) else torch.from_numpy(part).to(self.source.device)
            return self.source[index].cpu().numpy()
        return np.ascontiguousarray(self.source[part])

    def float32(self, part: Part) -> Tensor:
        """Some rows as vectors of +1 and −1."""
        bits = np.unpackbits(self.packed(part), axis=1)
        return torch.from_numpy(bits).to(self.device).float().mul_(2).sub_(1)


def signs(embeddings: NDArray[np.float32]) -> NDArray[np.float32]:
    """1 where a number is above 0, else −1; NaN stays NaN."""
    result = np.where(embeddings > 0, np.float32(1), np.float32(-1))
    result[np.isnan(embeddings)] = np.nan
    return result


def on_grid(cosines: NDArray[np.float32], bits: int) -> NDArray[np.float32]:
    """Round cosines of `signs` to 1 − 2 · (Hamming distance) / bits, so that equal distances tie."""
    return np.asarray(np.rint(cosines * np.float32(bits)) / np.float32(bits), np.float32)


def pack_bits(embeddings: Any) -> NDArray[np.uint8]:
    """The signs of embeddings (N, D) as packed codes (N, ⌈D/8⌉): a bit is 1 where the number is above 0.

    If D is not a multiple of 8, all codes are padded with zero bits, which does not change distances.
    """
    rows = Rows(embeddings, "embeddings", "cpu")
    codes = np.empty((len(rows), -(-rows.dimension // 8)), np.uint8)
    step = 2**14
    for start in range(0, len(rows), step):
        part = slice(start, min(start + step, len(rows)))
        codes[part] = np.packbits((rows.float32(part) > 0).numpy(), axis=1)
    return codes
