"""Checks of requests, and the security headers of responses.

- The Host header must be an IP address or a known name, against DNS rebinding.
- Cross-origin requests are refused.
- Every response forbids external resources, content sniffing, framing and referrers.
- Changes need the token that the server prints when it starts.
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
UPLOAD_COST = 10  # of a request with a body, in requests
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
    """Middleware that refuses bad requests and adds the security headers to responses.

    Args:
        names: host names that requests may use; IP addresses are always allowed.
        rate: the limit for each client; None is unlimited.
    """

    def __init__(self, app: ASGIApp, names: Collection[str], rate: RateLimit | None):
        self.app, self.rate = app, rate
        self.names = frozenset(name.lower() for name in names)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":  # the application has no websockets
            await send({"type": "websocket.close", "code": 1000})
            return

        started = False

        async def send_with_headers(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                headers = MutableHeaders(scope=message)
                headers.update(HEADERS)
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        try:
            await (self._refusal(scope) or self.app)(scope, receive, send_with_headers)
        except Exception:  # a bug: its traceback is logged and not sent
            if started:
                raise
            LOG.exception("an error in %s %s", scope["method"], scope["path"])
            await _refused(500, "internal error: see the server's log")(scope, receive, send_with_headers)

    def _refusal(self, scope: Scope) -> JSONResponse | None:
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if not known_host(host, self.names):
            name = host.encode("ascii", "replace").decode()[:100]
            return _refused(421, f"unknown host name {name!r}: use the IP address, or start with --name {name}")
        if _is_cross_origin(headers, host):
            return _refused(403, "cross-origin request refused")
        if self.rate is not None:
            cost = 1 if scope["method"] in ("GET", "HEAD", "OPTIONS") else UPLOAD_COST
            if wait := self.rate.wait((scope.get("client") or ("",))[0], cost):
                return _refused(429, "too many requests: slow down", {"Retry-After": str(math.ceil(wait))})
        return None


def known_host(header: str, names: Collection[str]) -> bool:
    """Whether a Host header is an IP address or one of the names.

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


def _is_cross_origin(headers: Headers, host: str) -> bool:
    """Whether a page of another origin sent the request; following a link to the page is allowed."""
    if headers.get("sec-fetch-site") in ("cross-site", "same-site"):  # same-site includes other ports
        return headers.get("sec-fetch-mode") != "navigate"
    origin = headers.get("origin")
    if origin is None:
        return False
    try:
        return urlsplit(origin).netloc.lower() != host.lower()
    except ValueError:
        return True


def _refused(status: int, detail: str, headers: dict[str, str] | None = None) -> JSONResponse:
    return JSONResponse({"detail": detail}, status, headers)


class WriteAccess:
    """Checks the write token.

    Args:
        token: None forbids changes.
    """

    def __init__(self, token: str | None):
        self.token = token
        self._failures = RateLimit(per_second=0.1, burst=10)

    @property
    def possible(self) -> bool:
        """Whether the server allows changes."""
        return self.token is not None

    def check(self, credentials: HTTPAuthorizationCredentials | None, client: str) -> None:
        """Raise unless the credentials hold the token."""
        if self.token is None:
            raise HTTPException(403, "the server was started with --read-only, so the gallery cannot be changed")
        if credentials is None:
            detail = "changes need the token that the server printed when it started"
        elif secrets.compare_digest(credentials.credentials.encode(), self.token.encode()):
            return
        elif wait := self._failures.wait(client):
            raise HTTPException(429, "too many wrong tokens: wait", {"Retry-After": str(math.ceil(wait))})
        else:
            detail = "the token is wrong"
        raise HTTPException(401, detail, {"WWW-Authenticate": "Bearer"})


def new_token() -> str:
    """A random token of 192 bits."""
    return secrets.token_urlsafe(24)
