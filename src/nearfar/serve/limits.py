"""Limits on uploads, request rates and concurrent work."""

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

MAX_CLIENTS = 10_000  # with a bucket; the least recently active is dropped first
P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True)
class Limits:
    """The limits on requests.

    Attributes:
        upload_bytes: the largest size of an uploaded picture.
        upload_pixels: its largest width times height.
        upload_seconds: the time within which it must arrive.
        rate: sustained requests per second from one address, an upload counting as ten; None is unlimited.
        burst: requests from one address at once.
        max_running: requests that compute at the same time.
        max_waiting: requests that wait for their turn; further ones are refused.
    """

    upload_bytes: int = 20_000_000
    upload_pixels: int = 50_000_000
    upload_seconds: float = 30.0
    rate: float | None = 100.0
    burst: int = 500
    max_running: int = 2
    max_waiting: int = 200


class RateLimit:
    """A token bucket for every client.

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
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()  # tokens left, time of the last request

    def wait(self, client: str, cost: float = 1.0) -> float:
        """Take tokens and return 0; if there are too few, return the seconds until there are enough."""
        now, key = self._clock(), _network(client)
        left, last = self._buckets.pop(key, (float(self.burst), now))
        left = min(float(self.burst), left + (now - last) * self.per_second)
        cost = min(cost, float(self.burst))  # a request above a full bucket would never be allowed
        missing = max(0.0, cost - left)
        self._buckets[key] = (left if missing else left - cost), now
        if len(self._buckets) > MAX_CLIENTS:
            self._buckets.popitem(last=False)
        return missing / self.per_second


def _network(client: str) -> str:
    """The key of a client: its IPv4 address, or its IPv6 /64 network, all of which one machine can use.

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
    """Threads for computations, with limits on running and waiting requests."""

    def __init__(self, max_running: int, max_waiting: int):
        self._limiter = anyio.CapacityLimiter(max_running)
        self._capacity = max_running + max_waiting
        self._requests = 0

    async def run(self, function: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
        """Call a function in a thread. Raises `BusyError` if too many requests wait already."""
        if self._requests >= self._capacity:
            raise BusyError
        self._requests += 1
        try:
            return await anyio.to_thread.run_sync(partial(function, *args, **options), limiter=self._limiter)
        finally:
            self._requests -= 1
