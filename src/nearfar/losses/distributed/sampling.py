"""Which classes take part in a step, if only some do.

Every class is drawn independently, by a hash of the seed, the step and the class: the same classes are drawn on any
number of ranks, and a run that resumes from a checkpoint draws what it would have drawn.
"""

import torch
from torch import Tensor

_MASK = 2**64 - 1
_GOLDEN, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def drawn(first: int, stop: int, rate: float, seed: int, step: int, device: torch.device) -> Tensor:
    """Which of the classes first .. stop - 1 are drawn, (stop - first,), each with probability `rate`."""
    start = _mixed(seed ^ _mixed(step + 1))
    key = torch.arange(first, stop, device=device, dtype=torch.long).mul_(_signed(_GOLDEN)).add_(_signed(start))
    # 53 bits, as many as a float64 has.
    return _shifted(_hashed(key), 11).double() * 2.0**-53 < rate


def _hashed(key: Tensor) -> Tensor:
    """SplitMix64's finaliser (G. Steele, D. Lea, C. Flood, 2014): every bit of the key changes half of the result's."""
    key = (key ^ _shifted(key, 30)) * _signed(_FIRST)
    key = (key ^ _shifted(key, 27)) * _signed(_SECOND)
    return key ^ _shifted(key, 31)


def _mixed(number: int) -> int:
    """The same for one number."""
    number = (number + _GOLDEN) & _MASK
    number = ((number ^ (number >> 30)) * _FIRST) & _MASK
    number = ((number ^ (number >> 27)) * _SECOND) & _MASK
    return number ^ (number >> 31)


def _shifted(values: Tensor, bits: int) -> Tensor:
    """Shifted to the right, filled with zeros: torch's integers are signed, and would be filled with their sign."""
    return torch.bitwise_and(values >> bits, 2 ** (64 - bits) - 1)


def _signed(number: int) -> int:
    """64 bits as a signed integer, which torch's are."""
    number &= _MASK
    return number - 2**64 if number >= 2**63 else number
