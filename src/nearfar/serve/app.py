"""The application: the API under /api, and the page.

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
from importlib import resources

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.responses import JSONResponse, Response

import nearfar
from nearfar.errors import NearfarError
from nearfar.imaging import BrokenImageError
from nearfar.retrieval.index import RetrievalError
from nearfar.serve.api import changes, identify, insight, items, search
from nearfar.serve.gallery import UnknownItemError
from nearfar.serve.insight import NoInsightError
from nearfar.serve.limits import BusyError, Limits, RateLimit, Slots
from nearfar.serve.runs import ServedRun, Serving, UnknownRunError
from nearfar.serve.schema import Problem
from nearfar.serve.security import Guard, WriteAccess

PAGE = {
    "/": "index.html",
    **{f"/{name}": name for name in ("style.css", "icon.svg")},
    **{
        f"/{name}.js": f"{name}.js"
        for name in ("app", "api", "cards", "dom", "gallery", "map", "mistakes", "search", "threshold", "who", "write")
    },
}
"""Every file of the page, by its address: nothing else is served."""
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
    """The application.

    Args:
        runs: one or two, by the keys "a" and "b".
        token: for writes; None if nothing may be written.
        names: host names, besides addresses, under which browsers may reach it.
        limits: what is refused.
        prepare: compute mistakes and maps in the background when it starts, so that they are there when asked for.
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
        description="Search a gallery, see what the model gets wrong, add images and take them away.",
        openapi_url="/api/openapi.json",
        docs_url=None,  # FastAPI's own pages load scripts from elsewhere
        redoc_url=None,
        lifespan=lifespan,
    )
    app.state.serving = Serving(
        runs,
        WriteAccess(token),
        limits,
        Slots(limits.at_work, limits.waiting),
        Slots(limits.at_work, 5 * limits.waiting),
    )
    for part in (items, search, identify, insight, changes):
        app.include_router(part.router, prefix="/api")
    _add_page(app)
    _add_problems(app)
    rate = None if limits.rate is None else RateLimit(limits.rate, limits.burst)
    app.add_middleware(Guard, names=names, rate=rate)
    return app


def _prepare(runs: Mapping[str, ServedRun]) -> None:
    for run in runs.values():
        with contextlib.suppress(NoInsightError):  # who asks will be told
            run.insight.judged()
            run.insight.flat_map()
        with contextlib.suppress(NoInsightError):
            run.identity.identifier()


def _add_page(app: FastAPI) -> None:
    folder = resources.files("nearfar.serve").joinpath("page")
    for address, name in PAGE.items():
        content = folder.joinpath(name).read_bytes()
        kind = TYPES[name.rpartition(".")[2]]
        tag = f'"{hashlib.sha256(content).hexdigest()[:16]}"'
        app.add_api_route(address, _file(content, kind, tag), include_in_schema=False)


def _file(content: bytes, kind: str, tag: str) -> Callable[[Request], Response]:
    headers = {"Cache-Control": "no-cache", "ETag": tag}  # asked for again every time, and sent when it has changed

    def answer(request: Request) -> Response:
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        return Response(content, media_type=kind, headers=headers)

    return answer


def _add_problems(app: FastAPI) -> None:
    """What goes wrong, as answers that say what it is and nothing of where things are. A type of error decides: those
    that are no `NearfarError`, nor of the system, are bugs, and come to `Guard`.
    """

    def problem(status: int, why: str) -> JSONResponse:
        headers = {"Retry-After": "1"} if status == 503 else None
        return JSONResponse(Problem(detail=why).model_dump(), status, headers)

    @app.exception_handler(UnknownRunError)
    def unknown_run(_: Request, error: Exception) -> Response:
        return problem(404, f"there is no run {error}: the server was started with one run alone")

    @app.exception_handler(UnknownItemError)
    def unknown_item(_: Request, error: Exception) -> Response:
        return problem(404, "there is no such image in the gallery (any more)")

    @app.exception_handler(BrokenImageError)
    def broken(_: Request, error: Exception) -> Response:
        assert isinstance(error, BrokenImageError)
        return problem(422, f"the picture cannot be read: {error.reason}")

    @app.exception_handler(NoInsightError)
    def no_insight(_: Request, error: Exception) -> Response:
        return problem(409, str(error))

    @app.exception_handler(BusyError)
    def busy(_: Request, error: Exception) -> Response:
        return problem(503, "too many requests are waiting: try again in a moment")

    @app.exception_handler(RequestValidationError)
    def invalid(_: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        words = [f"{'.'.join(map(str, one['loc'][1:]))}: {one['msg']}" for one in error.errors()[:5]]
        return problem(422, "; ".join(words))

    @app.exception_handler(RetrievalError)
    def index_problem(_: Request, error: Exception) -> Response:
        LOG.warning("%s", error)
        return problem(409, "the index cannot be read or changed now: what the server printed says why")

    @app.exception_handler(NearfarError)
    def for_the_operator(_: Request, error: Exception) -> Response:
        """Its message says what to do to whoever runs the server, and may name files: it is not for visitors."""
        LOG.error("%s", error)
        return problem(500, "this cannot be answered now: what the server printed says why")

    @app.exception_handler(OSError)
    def system(_: Request, error: Exception) -> Response:
        assert isinstance(error, OSError)
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return problem(507, "the disk is full: nothing was changed")
        LOG.error("%s", error)
        return problem(500, "a file could not be read or written: what the server printed says which")
