"""The application behind a real socket, and the command in a process of its own."""

import contextlib
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass

import uvicorn

PATIENCE = 300  # seconds, after which something hangs; on a busy machine much takes long that takes no time elsewhere


class Announced(uvicorn.Server):
    """Says when it listens."""

    def __init__(self, config: uvicorn.Config):
        super().__init__(config)
        self.listens = threading.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listens.set()


@contextlib.contextmanager
def listening(app) -> Iterator[tuple[str, int]]:
    """Its address, while the block lasts."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as taken:
        taken.bind(("127.0.0.1", 0))
        server = Announced(uvicorn.Config(app, log_level="critical", ws="none", proxy_headers=False))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [taken]}, daemon=True)
        thread.start()
        assert server.listens.wait(PATIENCE)
        try:
            yield taken.getsockname()
        finally:
            server.should_exit = True
            thread.join(PATIENCE)


@dataclass
class Process:
    """`nearfar serve` in a process of its own."""

    process: subprocess.Popen[str]
    address: str
    token: str | None
    printed: str

    def stop(self, number: int) -> int:
        self.process.send_signal(number)
        return self.process.wait(PATIENCE)


@contextlib.contextmanager
def started(*words: str, **environment: str) -> Iterator[Process]:
    """The command, once it listens, while the block lasts."""
    command = [sys.executable, "-m", "nearfar.cli", "serve", *words, "--port", "0"]
    surroundings = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=surroundings) as process:
        try:
            printed = ""
            assert process.stdout is not None
            for line in process.stdout:
                printed += line
                if "Stop with Ctrl-C" in line:
                    break
            address = re.search(r"http://\S+:\d+", printed)
            token = re.search(r"#token=(\S+)", printed)
            assert address is not None, printed
            yield Process(process, address[0], token and token[1], printed)
        finally:
            process.kill()
