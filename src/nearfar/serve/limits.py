"""How much one client, and all of them together, may ask for."""

import ipaddress
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import ParamSpec, TypeVar

import anyio
import anyio.to_thread

from nearfar.errors import NearfarError

CLIENTS = 10_000  # that are remembered; the longest silent is forgotten first
P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True)
class Limits:
    """What is refused.

    Attributes:
        upload_bytes: of one picture.
        upload_pixels: width times height.
        upload_seconds: in which a picture must have arrived.
        rate: requests a second from one address, in the long run; a picture sent counts as ten. None: without limit.
        burst: of them at once.
        at_work: requests that compute at the same time.
        waiting: requests that wait for their turn; those beyond are told to come back.
    """

    upload_bytes: int = 20_000_000
    upload_pixels: int = 50_000_000
    upload_seconds: float = 30.0
    rate: float | None = 100.0
    burst: int = 500
    at_work: int = 2
    waiting: int = 200


class RateLimit:
    """A bucket of tokens for every client, filled at a steady rate.

    >>> now = [0.0]
    >>> limit = RateLimit(per_second=2, burst=3, clock=lambda: now[0])
    >>> [limit.wait("192.0.2.1") for _ in range(4)]
    [0.0, 0.0, 0.0, 0.5]
    >>> now[0] = 1.0
    >>> [limit.wait("192.0.2.1") for _ in range(3)]
    [0.0, 0.0, 0.5]
    """

    def __init__(self, per_second: float, burst: int, clock: Callable[[], float] = time.monotonic):
        self.per_second, self.burst = per_second, burst
        self._clock = clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()  # tokens left, and when that was

    def wait(self, client: str, cost: float = 1.0) -> float:
        """Take tokens, and return 0; or, where too few are left, how many seconds it takes until there are enough."""
        now, key = self._clock(), _network(client)
        left, then = self._buckets.pop(key, (float(self.burst), now))
        left = min(float(self.burst), left + (now - then) * self.per_second)
        cost = min(cost, float(self.burst))  # what costs more than a full bucket would never be allowed
        lacking = max(0.0, cost - left)
        self._buckets[key] = (left if lacking else left - cost), now
        if len(self._buckets) > CLIENTS:
            self._buckets.popitem(last=False)
        return lacking / self.per_second


def _network(client: str) -> str:
    """Whom a limit is for: an IPv4 address; of IPv6 the network, since one machine has all of its addresses.

    >>> _network("2001:db8::1:2:3:4") == _network("2001:db8::5:6:7:8")
    True
    """
    try:
        address = ipaddress.ip_address(client.partition("%")[0])
    except ValueError:
        return client
    if address.version == 6 and not address.ipv4_mapped:
        return str(ipaddress.ip_network(f"{address}/64", strict=False))
    return str(address)


class BusyError(NearfarError, RuntimeError):
    """Too many requests are waiting."""


class Slots:
    """Threads for what computes: so many at once, so many waiting, and no more."""

    def __init__(self, at_work: int, waiting: int):
        self._limiter = anyio.CapacityLimiter(at_work)
        self._room = at_work + waiting
        self._inside = 0

    async def run(self, function: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
        """Call a function in a thread. Raises `BusyError` where too many wait already."""
        if self._inside >= self._room:
            raise BusyError
        self._inside += 1
        try:
            return await anyio.to_thread.run_sync(partial(function, *args, **options), limiter=self._limiter)
        finally:
            self._inside -= 1
