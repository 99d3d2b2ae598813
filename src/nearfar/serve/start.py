"""From the folders of runs to a server that listens."""

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
from nearfar.retrieval.identify import FAR, PRIOR, calibration_of
from nearfar.retrieval.index import Index, index_exists, make_index
from nearfar.retrieval.search import index_of, open_for
from nearfar.serve.app import create_app
from nearfar.serve.gallery import Gallery
from nearfar.serve.insight import Evaluated
from nearfar.serve.limits import Limits
from nearfar.serve.runs import About, ServedRun
from nearfar.serve.security import new_token
from nearfar.training.finish import tested
from nearfar.training.kept_split import ROW, parts_of
from nearfar.training.progress import Display
from nearfar.training.runs import Run

TOKEN = "NEARFAR_TOKEN"
"""The environment variable of a token that stays the same."""
SHORTEST_TOKEN = 16
ADDED = "added"  # folder of a run: pictures that were added on the page


@dataclass(frozen=True)
class Options:
    """How to serve.

    Attributes:
        host: address or name to listen on.
        port: 0 takes one that is free.
        indexes: where the indexes are, run by run; by default in the runs.
        names: host names under which browsers may reach it, besides addresses.
        read_only: let no one change the gallery.
        browser: open the page in the browser.
        device: where the networks compute.
        limits: what is refused.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    indexes: Sequence[str | None] = ()
    names: Sequence[str] = ()
    read_only: bool = False
    browser: bool = False
    device: str = "cpu"
    limits: Limits = field(default_factory=Limits)


def serve(runs: Sequence[str | os.PathLike[str]], options: Options) -> None:
    """Serve one run, or two side by side, until the process is told to stop."""
    if not 1 <= len(runs) <= 2:
        raise InputError(f"serve takes one run, or two to compare, not {len(runs)}")
    if len(options.indexes) > len(runs):
        raise InputError(f"there are {len(options.indexes)} indexes for {len(runs)} runs: give one for each")
    if not 0 <= options.port < 2**16:  # the system would take what is left of it
        raise InputError(f"--port is a number from 0 to {2**16 - 1}, not {options.port}")
    token = None if options.read_only else _token()
    # First of all: a port that is taken shows before minutes of work.
    with contextlib.closing(_listen(options.host, options.port)) as listening:
        indexes = [*options.indexes, *[None] * (len(runs) - len(options.indexes))]
        served = {
            key: open_run(key, Run(run), index, options.device)
            for key, run, index in zip("ab", runs, indexes, strict=False)
        }
        _tell_apart(served)
        names = {"localhost", *options.names, *([] if _is_address(options.host) else [options.host])}
        app = create_app(served, token=token, names=names, limits=options.limits)
        listening.listen(2048)  # from here on, who comes is kept waiting and not turned away
        address = _address(options.host, listening.getsockname()[1])
        _announce(served, address, token, options.host)
        if options.browser:
            webbrowser.open(address if token is None else f"{address}#token={token}")
        config = uvicorn.Config(
            app,
            log_level="warning",
            server_header=False,
            proxy_headers=False,  # anyone could claim to be anyone
            ws="none",
            timeout_keep_alive=15,
            timeout_graceful_shutdown=5,
            limit_concurrency=512,
        )
        with contextlib.suppress(KeyboardInterrupt):  # that is how it is stopped
            uvicorn.Server(config).run(sockets=[listening])


def open_run(key: str, run: Run, index: str | None = None, device: str = "cpu") -> ServedRun:
    """A run ready to answer; where it has no index, one is made of its data."""
    encoder = Encoder.of_run(run, device)
    where = index_of(run.folder, index)
    opened = open_for(encoder, where) if index_exists(where) else _build(run, encoder, where)
    config = run.config
    about = About(
        os.path.basename(os.path.abspath(run.folder)),
        " + ".join(loss.name for loss in config.loss),
        Path(config.data.path).name,
        {name: value for name, value in run.metrics.get("after", {}).items() if isinstance(value, (int, float))},
    )
    pictures, lock, computing = Pictures(), threading.Lock(), threading.Lock()

    def source(image: str) -> Source:
        with lock:  # a data set is opened once
            found = pictures.source(image)
        if found is None:
            raise KeyError(image)
        return found

    def embed(picture: Source) -> NDArray[np.float32]:
        with computing:  # one at a time uses all cores
            return encoder.embed([picture])

    calibrate = partial(calibration_of, run, far=FAR, prior=PRIOR)
    gallery = Gallery(opened, source, run.folder / ADDED)
    return ServedRun(key, about, embed, gallery, evaluated_of(run), calibrate)


def _build(run: Run, encoder: Encoder, where: str) -> Index:
    """What `nearfar index RUN` does."""
    gallery = gallery_for(run.config.data, [], display=Display())
    print(f"{where} is made of {len(gallery):,} images of {run.config.data.path}", flush=True)
    index = make_index(where, encoder.about())
    with progress_bar(sys.stderr.isatty(), len(gallery)) as advance:
        add_images(index, encoder, gallery, advance=advance)
    index.set_threshold(calibrated(run, encoder))
    return index


def evaluated_of(run: Run) -> Evaluated | None:
    """The images that a run is measured on; None where its data is no longer there."""
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
    everyone = np.ones(len(rows), np.bool_)
    query, gallery = everyone, everyone
    if {"query", "gallery"} <= set(rows.split_names):
        query, gallery = (rows.split_ids == SPLITS.index(name) for name in ("query", "gallery"))
    return Evaluated(ids.take(rows.columns[ROW].tolist()), query, gallery, rows.camera)


def _tell_apart(served: Mapping[str, ServedRun]) -> None:
    """Two runs of one name, in different folders, are called after these too."""
    if len({run.about.name for run in served.values()}) < len(served):
        for run in served.values():
            parent = run.gallery.added.parent.parent.name
            run.about = replace(run.about, name=f"{parent}/{run.about.name}")


def _token() -> str:
    own = os.environ.get(TOKEN)
    if own is None:
        return new_token()
    if len(own) < SHORTEST_TOKEN or not own.isascii() or not own.isprintable() or " " in own:
        raise InputError(f"{TOKEN} must have at least {SHORTEST_TOKEN} ASCII characters, without spaces")
    return own


def _listen(host: str, port: int) -> socket.socket:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        with contextlib.ExitStack() as unless_it_works:
            # With its protocol named: else asyncio leaves Nagle's algorithm on, and every answer takes 40 ms more.
            listening = unless_it_works.enter_context(socket.socket(family, kind, protocol))
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(address)
            unless_it_works.pop_all()
            return listening
    except (OSError, UnicodeError) as error:  # the latter of a name that cannot be one
        why = getattr(error, "strerror", None) or error
        raise FileError(
            f"cannot listen on {host}, port {port}: {why}. Choose another with --port, or --port 0 for any"
        ) from error


def _is_address(host: str) -> bool:
    with contextlib.suppress(ValueError):
        return bool(ipaddress.ip_address(host))
    return False


def _is_loopback(host: str) -> bool:
    return ipaddress.ip_address(host).is_loopback if _is_address(host) else host == "localhost"


def _address(host: str, port: int) -> str:
    """Where a browser on this machine finds it."""
    if _is_address(host) and ipaddress.ip_address(host).is_unspecified:
        host = "127.0.0.1"
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"


def _announce(served: Mapping[str, ServedRun], address: str, token: str | None, host: str) -> None:
    for run in served.values():
        images, classes = len(run.gallery.catalogue.ids), len(run.gallery.catalogue.names)
        print(f"{run.about.name}: {images:,} images of {classes:,} classes")
    if not _is_loopback(host):
        print(f"! everyone who can reach {host} can search and look at the gallery; the traffic is not encrypted")
    print(f"\n  {address}")
    if token is not None:
        print(f"  {address}#token={token}\n\nThe second address lets its visitor change the gallery. Ctrl-C stops.")
    else:
        print("\nNothing can be changed. Ctrl-C stops.")
    sys.stdout.flush()
