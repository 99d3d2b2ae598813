"""Opens runs with their indexes and serves them."""

import contextlib
import ipaddress
import os
import socket
import sys
import threading
import webbrowser
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np
import uvicorn
from numpy.typing import NDArray

from nearfar.data import SPLITS, Source
from nearfar.data.opening import reopen
from nearfar.errors import FileError, InputError, NearfarError
from nearfar.models.extraction import progress_bar
from nearfar.retrieval.build import add_images
from nearfar.retrieval.calibration import calibrated
from nearfar.retrieval.encoder import Encoder
from nearfar.retrieval.gallery import Pictures, gallery_for, gallery_of
from nearfar.retrieval.identify import PRIOR, calibration_of
from nearfar.retrieval.index import Index, index_exists, make_index
from nearfar.retrieval.search import index_of, open_for
from nearfar.serve.analysis import EvaluationRows
from nearfar.serve.app import create_app
from nearfar.serve.limits import Limits
from nearfar.serve.security import new_token
from nearfar.serve.served_gallery import ServedGallery
from nearfar.serve.served_run import RunSummary, ServedRun
from nearfar.training.finish import tested
from nearfar.training.kept_split import ROW, parts_of
from nearfar.training.progress import Display
from nearfar.training.runs import Run

TOKEN = "NEARFAR_TOKEN"
"""The environment variable of a fixed write token."""
MIN_TOKEN_LENGTH = 16
ADDED = "added"  # the folder of a run for pictures that were added on the page


@dataclass(frozen=True)
class ServerOptions:
    """The options of a server.

    Attributes:
        host: the address or name to listen on.
        port: 0 chooses a free port.
        indexes: the index of each run; by default the one in its folder.
        names: host names that requests may use; IP addresses are always allowed.
        read_only: forbid changes of the gallery.
        browser: open the page in the browser.
        device: the device of the networks.
        limits: the limits on requests.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    indexes: Sequence[str | None] = ()
    names: Sequence[str] = ()
    read_only: bool = False
    browser: bool = False
    device: str = "cpu"
    limits: Limits = field(default_factory=Limits)


def serve(runs: Sequence[str | os.PathLike[str]], options: ServerOptions) -> None:
    """Serve one run, or two side by side, until the process is stopped."""
    if not 1 <= len(runs) <= 2:
        raise InputError(f"serve takes one run, or two to compare, not {len(runs)}")
    if len(options.indexes) > len(runs):
        raise InputError(f"there are {len(options.indexes)} indexes for {len(runs)} runs: give one for each")
    if not 0 <= options.port < 2**16:  # larger numbers would wrap around
        raise InputError(f"--port must be a number from 0 to {2**16 - 1}, not {options.port}")
    token = None if options.read_only else _token()
    # Bound first, so that a used port is reported before minutes of indexing.
    with contextlib.closing(_listen(options.host, options.port)) as listening:
        indexes = [*options.indexes, *[None] * (len(runs) - len(options.indexes))]
        served = {
            key: open_run(key, Run(run), index, options.device)
            for key, run, index in zip("ab", runs, indexes, strict=False)
        }
        _make_names_unique(served)
        names = {"localhost", *options.names, *([] if _is_address(options.host) else [options.host])}
        app = create_app(served, token=token, names=names, limits=options.limits)
        listening.listen(2048)  # from here on, connections wait instead of being refused
        address = _address(options.host, listening.getsockname()[1])
        _announce(served, address, token, options.host)
        if options.browser:
            webbrowser.open(address if token is None else f"{address}#token={token}")
        config = uvicorn.Config(
            app,
            log_level="warning",
            server_header=False,
            proxy_headers=False,  # clients could claim any address
            ws="none",
            timeout_keep_alive=15,
            timeout_graceful_shutdown=5,
            limit_concurrency=512,
        )
        with contextlib.suppress(KeyboardInterrupt):  # the usual way to stop it
            uvicorn.Server(config).run(sockets=[listening])


def open_run(key: str, run: Run, index: str | None = None, device: str = "cpu") -> ServedRun:
    """Open a run and its index; without an index, one is built from the run's data."""
    encoder = Encoder.of_run(run, device)
    location = index_of(run.folder, index)
    opened = open_for(encoder, location) if index_exists(location) else _build(run, encoder, location)
    config = run.config
    summary = RunSummary(
        os.path.basename(os.path.abspath(run.folder)),
        " + ".join(loss.name for loss in config.loss),
        Path(config.data.path).name,
        {name: value for name, value in run.metrics.get("after", {}).items() if isinstance(value, (int, float))},
    )
    pictures, lock, computing = Pictures(), threading.Lock(), threading.Lock()

    def source(image: str) -> Source:
        with lock:  # so that each data set is opened once
            source = pictures.source(image)
        if source is None:
            raise KeyError(image)
        return source

    def embed(picture: Source) -> NDArray[np.float32]:
        with computing:  # a single embedding already uses all cores
            return encoder.embed([picture])

    calibrate = partial(calibration_of, run, prior=PRIOR)
    gallery = ServedGallery(opened, source, run.folder / ADDED)
    return ServedRun(key, summary, embed, gallery, evaluation_rows(run), calibrate)


def _build(run: Run, encoder: Encoder, location: str) -> Index:
    """Build the index as `nearfar index RUN` does."""
    gallery = gallery_for(run.config.data, [], display=Display())
    print(f"building {location} from {len(gallery):,} images of {run.config.data.path}", flush=True)
    index = make_index(location, encoder.about())
    with progress_bar(sys.stderr.isatty(), len(gallery)) as advance:
        add_images(index, encoder, gallery, advance=advance)
    index.set_threshold(calibrated(run, encoder))
    return index


def evaluation_rows(run: Run) -> EvaluationRows | None:
    """The test rows of a run; None if its data are missing."""
    config = run.config
    try:
        parts = parts_of(run)
        ids = gallery_of(reopen(config.data.path, config.data.layout), config.data.path).ids
    except (OSError, NearfarError):
        return None
    for note in parts.notes:
        print(f"note: {note}", flush=True)
    rows = tested(parts)
    if rows is None or ROW not in rows.columns:  # other data, which the gallery does not hold
        return None
    query = gallery = np.ones(len(rows), np.bool_)
    if {"query", "gallery"} <= set(rows.split_names):
        query, gallery = (rows.split_ids == SPLITS.index(name) for name in ("query", "gallery"))
    return EvaluationRows(ids.take(rows.columns[ROW].tolist()), query, gallery, rows.camera)


def _make_names_unique(served: Mapping[str, ServedRun]) -> None:
    """Add the parent folders to the names of two runs with the same name."""
    if len({run.summary.name for run in served.values()}) < len(served):
        for run in served.values():
            parent = run.gallery.added.parent.parent.name
            run.summary = replace(run.summary, name=f"{parent}/{run.summary.name}")


def _token() -> str:
    token = os.environ.get(TOKEN)
    if token is None:
        return new_token()
    if len(token) < MIN_TOKEN_LENGTH or not token.isascii() or not token.isprintable() or " " in token:
        raise InputError(f"{TOKEN} must have at least {MIN_TOKEN_LENGTH} ASCII characters, without spaces")
    return token


def _listen(host: str, port: int) -> socket.socket:
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = addresses[0]
        with contextlib.ExitStack() as on_error:
            # Without an explicit protocol, asyncio leaves Nagle's algorithm on, which adds 40 ms to every response.
            listening = on_error.enter_context(socket.socket(family, kind, protocol))
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(address)
            on_error.pop_all()
            return listening
    except (OSError, UnicodeError) as error:  # UnicodeError for an invalid host name
        reason = getattr(error, "strerror", None) or error
        raise FileError(
            f"cannot listen on {host}, port {port}: {reason}. Choose another port with --port, or a free one with "
            "--port 0"
        ) from error


def _is_address(host: str) -> bool:
    with contextlib.suppress(ValueError):
        return bool(ipaddress.ip_address(host))
    return False


def _is_loopback(host: str) -> bool:
    return ipaddress.ip_address(host).is_loopback if _is_address(host) else host == "localhost"


def _address(host: str, port: int) -> str:
    """The URL for a browser on this machine."""
    if _is_address(host) and ipaddress.ip_address(host).is_unspecified:
        host = "127.0.0.1"
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"


def _announce(served: Mapping[str, ServedRun], address: str, token: str | None, host: str) -> None:
    for run in served.values():
        images, classes = len(run.gallery.catalogue.ids), len(run.gallery.catalogue.names)
        print(f"{run.summary.name}: {images:,} images of {classes:,} classes")
    if not _is_loopback(host):
        print(f"! anyone who can reach {host} can search and view the gallery; the traffic is not encrypted")
    print(f"\n  {address}")
    if token is not None:
        print(f"  {address}#token={token}\n\nThe second address allows changes of the gallery. Stop with Ctrl-C.")
    else:
        print("\nThe gallery is read-only. Stop with Ctrl-C.")
    sys.stdout.flush()
