"""The FastAPI application: the API under /api, and the page.

    app = create_app(runs, token="...")                 # runs: {"a": ServedRun, ...}
    uvicorn.run(app, host="127.0.0.1", port=8000)

The schema is at /api/openapi.json.
"""

import contextlib
import errno
import hashlib
import logging
import threading
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from functools import partial
from importlib import resources
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.responses import JSONResponse, Response

import nearfar
from nearfar.errors import NearfarError
from nearfar.imaging import BrokenImageError
from nearfar.retrieval.index import RetrievalError
from nearfar.serve.analysis import AnalysisError
from nearfar.serve.api import changes, diagnostics, items, neighbours
from nearfar.serve.limits import BusyError, Limits, RateLimit, Slots
from nearfar.serve.schema import Problem
from nearfar.serve.security import Guard, WriteAccess
from nearfar.serve.served_gallery import UnknownItemError
from nearfar.serve.served_run import ServedRun, Serving, UnknownRunError

_SCRIPTS = "app api cards dom gallery identification map mistakes search threshold write"
PAGE = {"/": "index.html", **{f"/{name}": name for name in ("style.css", "icon.svg")}}
PAGE |= {f"/{name}.js": f"{name}.js" for name in _SCRIPTS.split()}
"""The files of the page by path; no other files are served."""
LOG = logging.getLogger("nearfar.serve")
TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}


def create_app(
    runs: Mapping[str, ServedRun],
    *,
    token: str | None,
    names: Collection[str] = ("localhost",),
    limits: Limits | None = None,
    prepare: bool = True,
) -> FastAPI:
    """Create the application.

    Args:
        runs: one or two runs, by the keys "a" and "b".
        token: the write token; None forbids changes.
        names: host names that requests may use; IP addresses are always allowed.
        limits: the limits on requests.
        prepare: compute mistakes and maps in the background at startup.
    """
    limits = limits or Limits()

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        if prepare:
            threading.Thread(target=_prepare, args=(runs,), daemon=True, name="nearfar-prepare").start()
        yield

    app = FastAPI(
        title="nearfar serve",
        version=nearfar.__version__,
        description="Search a gallery, inspect the model's mistakes, add and remove images.",
        openapi_url="/api/openapi.json",
        docs_url=None,  # FastAPI's documentation pages load external scripts
        redoc_url=None,
        lifespan=lifespan,
    )
    app.state.serving = Serving(
        runs,
        WriteAccess(token),
        limits,
        Slots(limits.max_running, limits.max_waiting),
        Slots(limits.max_running, 5 * limits.max_waiting),
    )
    for endpoints in (items, neighbours, diagnostics, changes):
        app.include_router(endpoints.router, prefix="/api")
    _add_page(app)
    _add_error_handlers(app)
    rate = None if limits.rate is None else RateLimit(limits.rate, limits.burst)
    app.add_middleware(Guard, names=names, rate=rate)
    return app


def _prepare(runs: Mapping[str, ServedRun]) -> None:
    for run in runs.values():
        with contextlib.suppress(AnalysisError):  # requests will report it
            run.analysis.diagnosis()
            run.analysis.flat_map()
        with contextlib.suppress(AnalysisError):
            run.identifier.current()


def _add_page(app: FastAPI) -> None:
    folder = resources.files("nearfar.serve").joinpath("page")
    for address, name in PAGE.items():
        content = folder.joinpath(name).read_bytes()
        kind = TYPES[name.rpartition(".")[2]]
        tag = f'"{hashlib.sha256(content).hexdigest()[:16]}"'
        app.add_api_route(address, _file(content, kind, tag), include_in_schema=False)


def _file(content: bytes, kind: str, tag: str) -> Callable[[Request], Response]:
    headers = {"Cache-Control": "no-cache", "ETag": tag}  # revalidated each time, sent when changed

    def answer(request: Request) -> Response:
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        return Response(content, media_type=kind, headers=headers)

    return answer


def _add_error_handlers(app: FastAPI) -> None:
    """Turn errors into responses that reveal no paths. Errors that are neither `NearfarError` nor `OSError` are bugs,
    which `Guard` handles.
    """
    for kind, describe in _RESPONSES.items():
        app.add_exception_handler(kind, partial(_error_response, describe))


def _error_response(describe: Callable[[Any], tuple[int, str]], _: Request, error: Exception) -> Response:
    status, detail = describe(error)
    if detail.endswith(_LOGGED):
        LOG.error("%s", error)
    return JSONResponse(Problem(detail=detail).model_dump(), status, {"Retry-After": "1"} if status == 503 else None)


def _validation_error(error: RequestValidationError) -> tuple[int, str]:
    details = [f"{'.'.join(map(str, entry['loc'][1:]))}: {entry['msg']}" for entry in error.errors()[:5]]
    return 422, "; ".join(details)


def _system_error(error: OSError) -> tuple[int, str]:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return 507, "the disk is full: nothing was changed"
    return 500, f"a file could not be read or written: {_LOGGED}"


_LOGGED = "see the server's log"
_RESPONSES: dict[type[Exception], Callable[[Any], tuple[int, str]]] = {
    UnknownRunError: lambda key: (404, f"there is no run {key}: the server was started with only one run"),
    UnknownItemError: lambda _: (404, "the gallery has no such image; it may have been removed"),
    BrokenImageError: lambda error: (422, f"the picture cannot be read: {error.reason}"),
    AnalysisError: lambda error: (409, str(error)),
    BusyError: lambda _: (503, "too many requests are waiting: try again in a moment"),
    RequestValidationError: _validation_error,
    RetrievalError: lambda _: (409, f"the index cannot be read or changed now: {_LOGGED}"),
    NearfarError: lambda _: (500, f"the request failed: {_LOGGED}"),  # its message is for the operator
    OSError: _system_error,
}
