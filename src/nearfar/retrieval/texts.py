"""Many short texts in two arrays, which are fast to read and write and much smaller than a list."""

import hashlib
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray


class Texts:
    """Texts in a block of UTF-8, with the end of each.

    >>> texts = Texts.of(["one", "", "drei"])
    >>> len(texts), texts[2], list(texts)
    (3, 'drei', ['one', '', 'drei'])
    """

    def __init__(self, block: NDArray[np.uint8], ends: NDArray[np.int64]):
        if len(ends) and (int(ends[-1]) != len(block) or int(ends[0]) < 0 or bool((np.diff(ends) < 0).any())):
            raise ValueError("texts are damaged: their ends do not match the block")
        self.block, self.ends = block, ends

    @classmethod
    def of(cls, texts: Iterable[str]) -> "Texts":
        """Make it from texts. Surrogate escapes of file names that are not UTF-8 are preserved."""
        encoded = [text.encode("utf-8", "surrogateescape") for text in texts]
        ends = np.cumsum([len(text) for text in encoded], dtype=np.int64)
        return cls(np.frombuffer(b"".join(encoded), np.uint8), ends)

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, row: int) -> str:
        start = int(self.ends[row - 1]) if row else 0
        return self.block[start : self.ends[row]].tobytes().decode("utf-8", "surrogateescape")

    def __iter__(self) -> Iterator[str]:
        return (self[row] for row in range(len(self)))

    def take(self, rows: Iterable[int]) -> list[str]:
        """The texts of some rows."""
        return [self[row] for row in rows]


def hashed(texts: Sequence[str]) -> NDArray[np.uint64]:
    """64-bit hashes of texts."""
    digests = (hashlib.blake2b(text.encode("utf-8", "surrogateescape"), digest_size=8).digest() for text in texts)
    return np.frombuffer(b"".join(digests), "<u8").astype(np.uint64)
