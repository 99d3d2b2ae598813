"""`nearfar serve`."""

import math
from collections.abc import Sequence

from nearfar.commands.grammar import Parser
from nearfar.errors import InputError, MissingPackageError


def run(arguments: Sequence[str]) -> int:
    """Serve the page and its API."""
    options = parser().parse_args(arguments)
    try:
        import fastapi
        import uvicorn  # noqa: F401
    except ImportError as missing:
        raise MissingPackageError("the server needs FastAPI and uvicorn: pip install 'nearfar[serve]'") from missing
    del fastapi
    from nearfar.serve.limits import Limits
    from nearfar.serve.server import ServerOptions, serve

    if not 0 < options.max_upload < math.inf or not 0 <= options.rate < math.inf:
        raise InputError("--max-upload must be positive, and --rate not negative")
    serve(
        options.runs,
        ServerOptions(
            host=options.host,
            port=options.port,
            indexes=options.index or [],
            names=options.name or [],
            read_only=options.read_only,
            browser=options.open,
            device=options.device,
            limits=Limits(
                upload_bytes=int(options.max_upload * 1e6),
                rate=options.rate or None,
                burst=max(50, int(5 * options.rate)),
            ),
        ),
    )
    return 0


def parser() -> Parser:
    """The parser of the command."""
    command = Parser(
        "serve RUN [RUN] [options]",
        "Serve a page, and its API, to search by picture, browse the gallery, see the worst queries and the most "
        "confused classes, and compare two runs. A run without an index gets one.",
    )
    command.add_run("runs", nargs="+", help="run folder, written by nearfar train; two are compared")
    command.add_argument(
        "--index", nargs="+", metavar="WHERE", help="index of each run: a folder, or milvus:ADDRESS (RUN/index)"
    )
    command.add_argument("--port", type=int, default=8000, metavar="N", help="port to listen on; 0: a free one (8000)")
    command.add_argument(
        "--host",
        default="127.0.0.1",
        help="address to listen on; 0.0.0.0 accepts other machines (127.0.0.1: only this one)",
    )
    command.add_argument("--name", action="append", metavar="NAME", help="a host name that browsers may use")
    command.flag("--read-only", help="reject adding and removing images")
    command.flag("--open", help="open the page in the browser")
    command.add_argument("--max-upload", type=float, default=20, metavar="MB", help="largest size of a picture (20)")
    command.add_argument(
        "--rate", type=float, default=100, metavar="N", help="requests per second from one address; 0: no limit (100)"
    )
    command.add_device("device of the networks")
    return command
