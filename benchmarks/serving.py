"""`nearfar serve` under load: a gallery of 100,000 made vectors, bounded requests over loopback, the network aside.

The server runs in a process of its own, as the command starts it; clients are threads here, each with one connection.
What the network would take is left out: a picture's embedding is drawn from its bytes. At the end the server is killed,
and what it answered to have added is looked for on the disk.
"""

import contextlib
import hashlib
import http.client
import io
import json
import multiprocessing
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import uvicorn
from fastapi import FastAPI
from PIL import Image

from benchmarks.results import ROOT, Stamped, append, stamp
from nearfar.retrieval.index import About, make_index, open_index
from nearfar.serve.app import create_app
from nearfar.serve.limits import Limits
from nearfar.serve.served_gallery import ServedGallery, item_key
from nearfar.serve.served_run import RunSummary, ServedRun

CSV = ROOT / "benchmarks" / "results" / "serving.csv"
GALLERY, DIMENSION, EACH = 100_000, 512, 20
REQUESTS = 100  # of each kind
TOKEN = "benchmark-token-0"
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Row(Stamped):
    """One measurement: so many requests by so many clients at once. `index_ms` is what the search itself took."""

    gallery: int
    dimension: int
    request: str
    clients: int
    requests: int
    per_second: float
    p50_ms: float
    p99_ms: float
    index_ms: float | None
    lost: int


def embed(source: Any) -> Floats:
    """A vector drawn from the bytes of a picture."""
    content = source if isinstance(source, bytes) else Path(source).read_bytes()
    rng = np.random.default_rng(int.from_bytes(hashlib.sha256(content).digest()[:8], "big"))
    vector = rng.standard_normal((1, DIMENSION), dtype=np.float32)
    return np.asarray(vector / np.linalg.norm(vector), np.float32)


def picture(seed: int) -> bytes:
    """A small photograph-like JPEG."""
    pixels = np.random.default_rng(seed).integers(0, 255, (12, 16, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).resize((320, 240)).save(file, "JPEG")
    return file.getvalue()


def build(folder: Path, gallery: int) -> None:
    """An index of classes of 20, each around a centre."""
    rng = np.random.default_rng(0)
    index = make_index(folder / "index", About("exact", "cosine", DIMENSION, "made", threshold={"threshold": 0.5}))
    with index.change() as change:
        for start in range(0, gallery, 10_000):
            rows = range(start, min(start + 10_000, gallery))
            x = rng.standard_normal((len(rows), DIMENSION), dtype=np.float32)
            x += np.repeat(rng.standard_normal((-(-len(rows) // EACH), DIMENSION), dtype=np.float32), EACH, 0)[: len(x)]
            change.put([f"{folder}/{row:06}.jpg" for row in rows], x, [f"class {row // EACH}" for row in rows])
    index.close()


def application(folder: Path) -> FastAPI:
    """What is served."""
    (folder / "shown.jpg").write_bytes(picture(0))
    gallery = ServedGallery(open_index(folder / "index"), lambda image: str(folder / "shown.jpg"), folder / "added")
    run = ServedRun("a", RunSummary("made", "none", "made", {}), embed, gallery)
    return create_app({"a": run}, token=TOKEN, limits=Limits(rate=None), prepare=False)


def serve(folder: Path, told: Connection) -> None:
    """The server; it tells its port."""
    config = uvicorn.Config(
        application(folder), log_level="warning", ws="none", server_header=False, proxy_headers=False
    )
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(2048)
        told.send(listening.getsockname()[1])
        uvicorn.Server(config).run(sockets=[listening])


Ask = Callable[[http.client.HTTPConnection, int], tuple[int, dict[str, Any]]]


def asking(method: str, address: str, body: bool = False) -> Ask:
    """A kind of request; {} in the address is the number of the request, or the key of an image."""
    headers = {"Authorization": f"Bearer {TOKEN}"}

    def ask(connection: http.client.HTTPConnection, number: int) -> tuple[int, dict[str, Any]]:
        connection.request(method, address.format(number), picture(number) if body else None, headers)
        answer = connection.getresponse()
        content = answer.read()
        return answer.status, json.loads(content) if "json" in answer.headers["content-type"] else {}

    return ask


def load(port: int, ask: Ask, clients: int, requests: int) -> tuple[list[float], list[dict[str, Any]], float]:
    """Milliseconds of every request, the answers, and the seconds of all of them. A request that fails is an error."""
    numbers = iter(range(requests))
    lock = threading.Lock()
    times: list[float] = []
    answers: list[dict[str, Any]] = []
    failures: list[str] = []

    def client() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        while True:
            with lock:
                number = next(numbers, None)
            if number is None or failures:
                break
            began = time.perf_counter()
            status, answer = ask(connection, number)
            taken = 1000 * (time.perf_counter() - began)
            with lock:
                if status not in (200, 201):
                    failures.append(f"{status}: {answer}")
                times.append(taken)
                answers.append(answer)
        connection.close()

    threads = [threading.Thread(target=client) for _ in range(clients)]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures or len(times) != requests:
        raise RuntimeError(f"{requests - len(times)} requests were lost; {failures[:3]}")
    return times, answers, time.perf_counter() - began


@contextlib.contextmanager
def own_process(folder: Path) -> Iterator[int]:
    """The port of a server, which is killed in the end."""
    ours, theirs = multiprocessing.Pipe(False)
    process = multiprocessing.get_context("spawn").Process(target=serve, args=(folder, theirs), daemon=True)
    process.start()
    try:
        yield ours.recv()
    finally:
        process.kill()
        process.join()


def measure(
    gallery: int = GALLERY,
    requests: int = REQUESTS,
    out: Path | None = CSV,
    served: Callable[[Path], AbstractContextManager[int]] = own_process,
) -> list[Row]:
    """Every kind of request, by one client and by eight; `served` gives the port of a server of a folder."""
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        build(folder, gallery)
        with served(folder) as port:
            item = item_key(f"{folder}/{gallery // 2:06}.jpg")
            kinds = {
                "a picture": (asking("POST", "/api/runs/a/search?k=24", body=True), requests),
                "an image of the gallery": (asking("GET", f"/api/runs/a/items/{item}/neighbours?k=24"), requests),
                "a page of the gallery": (asking("GET", "/api/runs/a/items?limit=60&offset={}"), requests),
                "a small picture": (asking("GET", f"/api/runs/a/items/{item}/picture?side=192"), requests),
                "add": (asking("POST", "/api/runs/a/items?label=new", body=True), max(8, requests // 20)),
            }
            added: set[str] = set()
            for kind, (ask, count) in kinds.items():
                for clients in (1, 8) if kind != "add" else (4,):
                    load(port, ask, clients, min(count, 8))  # warm
                    times, answers, seconds = load(port, ask, clients, count)
                    added |= {answer["added"]["item"] for answer in answers if "added" in answer}
                    searched = [answer["search_ms"] for answer in answers if "search_ms" in answer]
                    rows.append(_row(gallery, kind, clients, times, seconds, searched))
                    print(describe(rows[-1]), file=sys.stderr, flush=True)
        kept = {item_key(one.id) for one in open_index(folder / "index").listed()}
        lost = len(added - kept)
    print(f"{len(added)} added, {lost} of them lost", file=sys.stderr, flush=True)
    rows = [replace(row, lost=lost if row.request == "add" else 0) for row in rows]
    if out is not None:
        for row in rows:
            append(row, out)
    return rows


def _row(gallery: int, kind: str, clients: int, times: list[float], seconds: float, searched: list[float]) -> Row:
    p50, p99 = np.percentile(times, [50, 99])
    return Row(
        **stamp(),  # type: ignore[arg-type]
        gallery=gallery,
        dimension=DIMENSION,
        request=kind,
        clients=clients,
        requests=len(times),
        per_second=round(len(times) / seconds, 1),
        p50_ms=round(float(p50), 2),
        p99_ms=round(float(p99), 2),
        index_ms=round(float(np.median(searched)), 2) if searched else None,
        lost=0,
    )


def describe(row: Row) -> str:
    """A row in a few words."""
    index = "" if row.index_ms is None else f" (of which the index {row.index_ms:.1f})"
    return (
        f"{row.gallery:,} x {row.dimension}, {row.request}, {row.clients} at once: {row.per_second:,.0f} requests/s, "
        f"median {row.p50_ms:.1f} ms{index}, p99 {row.p99_ms:.1f} ms"
    )
