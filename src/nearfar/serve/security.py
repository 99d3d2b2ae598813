"""Who may ask, and what every answer says to the browser.

- The Host header must be an address or a known name: a page elsewhere whose name is made to point here (DNS rebinding)
  names itself there.
- Pages elsewhere may neither send anything here nor show what is here.
- Every answer forbids the browser to load anything from outside, to guess at types, to be framed, and to tell others
  where it was.
- Writing needs the token that the server printed when it started.
"""

import ipaddress
import logging
import math
import secrets
from collections.abc import Collection
from urllib.parse import urlsplit

from fastapi import HTTPException
from fastapi.security import HTTPAuthorizationCredentials
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nearfar.serve.limits import RateLimit

LOG = logging.getLogger("nearfar.serve")
UPLOAD_COST = 10  # of a request that sends something, in requests
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; connect-src 'self'; "
    "form-action 'none'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}


class Guard:
    """Refuses what must not come in, and puts the headers on what goes out.

    Args:
        app: what is guarded.
        names: host names, besides addresses, under which browsers may reach the server.
        rate: for each client; None for no limit.
    """

    def __init__(self, app: ASGIApp, names: Collection[str], rate: RateLimit | None):
        self.app, self.rate = app, rate
        self.names = frozenset(name.lower() for name in names)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":  # there are no websockets here
            await send({"type": "websocket.close", "code": 1000})
            return

        began = False

        async def send_with_headers(message: Message) -> None:
            nonlocal began
            if message["type"] == "http.response.start":
                began = True
                headers = MutableHeaders(scope=message)
                headers.update(HEADERS)
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        try:
            await (self._refusal(scope) or self.app)(scope, receive, send_with_headers)
        except Exception:  # a bug: it is printed here, and nothing of it is told
            if began:
                raise
            LOG.exception("an error in %s %s", scope["method"], scope["path"])
            await _refused(500, "something is wrong with the server: it printed what")(
                scope, receive, send_with_headers
            )

    def _refusal(self, scope: Scope) -> JSONResponse | None:
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if not known_host(host, self.names):
            named = host.encode("ascii", "replace").decode()[:100]
            return _refused(
                421, f"this server is not known as {named!r}: use its address, or start it with --name {named}"
            )
        if _from_elsewhere(headers, host):
            return _refused(403, "this is no request of the page of this server")
        if self.rate is not None:
            cost = 1 if scope["method"] in ("GET", "HEAD", "OPTIONS") else UPLOAD_COST
            if wait := self.rate.wait((scope.get("client") or ("",))[0], cost):
                return _refused(429, "too many requests: slow down", {"Retry-After": str(math.ceil(wait))})
        return None


def known_host(header: str, names: Collection[str]) -> bool:
    """Whether a Host header is an address, which no one else can have, or one of the names.

    >>> [known_host(h, {"localhost"}) for h in ("127.0.0.1:8000", "[::1]", "localhost:80", "evil.example", "a b", "")]
    [True, True, True, False, False, False]
    """
    try:
        name = (urlsplit(f"//{header}").hostname or "").rstrip(".")
    except ValueError:
        return False
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return name in names
    return True


def _from_elsewhere(headers: Headers, host: str) -> bool:
    """Whether a browser says that a page of another origin asks; following a link to the page is no such thing."""
    if headers.get("sec-fetch-site") in ("cross-site", "same-site"):  # another port is the same site to a browser
        return headers.get("sec-fetch-mode") != "navigate"
    origin = headers.get("origin")
    if origin is None:
        return False
    try:
        return urlsplit(origin).netloc.lower() != host.lower()
    except ValueError:
        return True


def _refused(status: int, why: str, headers: dict[str, str] | None = None) -> JSONResponse:
    return JSONResponse({"detail": why}, status, headers)


class WriteAccess:
    """The token for writes.

    Args:
        token: None where nothing may be written.
    """

    def __init__(self, token: str | None):
        self.token = token
        self._failures = RateLimit(per_second=0.1, burst=10)

    @property
    def possible(self) -> bool:
        """Whether anyone may write."""
        return self.token is not None

    def check(self, given: HTTPAuthorizationCredentials | None, client: str) -> None:
        """Raise unless the token is the right one."""
        if self.token is None:
            raise HTTPException(403, "this server was started with --read-only: nothing can be changed")
        if given is not None and secrets.compare_digest(given.credentials.encode(), self.token.encode()):
            return
        if given is not None and (wait := self._failures.wait(client)):
            raise HTTPException(429, "too many wrong tokens: wait", {"Retry-After": str(math.ceil(wait))})
        why = "changes need the token that the server printed when it started" if given is None else "a wrong token"
        raise HTTPException(401, why, {"WWW-Authenticate": "Bearer"})


def new_token() -> str:
    """A token that cannot be guessed: 192 bits."""
    return secrets.token_urlsafe(24)
