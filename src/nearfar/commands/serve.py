"""`nearfar serve`."""

import math
from collections.abc import Sequence

from nearfar.commands.grammar import Parser
from nearfar.errors import InputError, MissingPackageError


def run(words: Sequence[str]) -> int:
    """Serve a page to search a run's gallery and to see what its model gets wrong."""
    options = parser().parse_args(words)
    try:
        import fastapi
        import uvicorn  # noqa: F401
    except ImportError as missing:
        raise MissingPackageError(
            "the server is made with FastAPI and uvicorn: pip install 'nearfar[serve]'"
        ) from missing
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
    """Its words."""
    words = Parser(
        "serve RUN [RUN] [options]",
        "A page to search with pictures, to browse the gallery, to see the worst queries and the most "
        "confused classes, and to compare two runs; and the API behind it. A run without an index gets one.",
    )
    words.add_run("runs", nargs="+", help="folder that nearfar train left; two are compared")
    words.add_argument(
        "--index", nargs="+", metavar="WHERE", help="of each run: a folder, or milvus:ADDRESS (RUN/index)"
    )
    words.add_argument("--port", type=int, default=8000, metavar="N", help="to listen on; 0 takes a free one (8000)")
    words.add_argument(
        "--host", default="127.0.0.1", help="to listen on; 0.0.0.0 lets other machines in (127.0.0.1: this one alone)"
    )
    words.add_argument("--name", action="append", metavar="NAME", help="a host name under which browsers may reach it")
    words.flag("--read-only", help="let no one add images or take them away")
    words.flag("--open", help="open the page in the browser")
    words.add_argument("--max-upload", type=float, default=20, metavar="MB", help="of a picture (20)")
    words.add_argument(
        "--rate", type=float, default=100, metavar="N", help="requests a second from one address; 0: any number (100)"
    )
    words.add_device("where the networks compute")
    return words
