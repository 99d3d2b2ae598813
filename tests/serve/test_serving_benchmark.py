"""The load test, small: everything is answered, and nothing that was added is lost."""

import contextlib

import pytest
from benchmarks import serving

from tests.serve.listening import listening


@contextlib.contextmanager
def in_a_thread(folder):
    """In place of a process of its own, which takes seconds to start."""
    with listening(serving.application(folder)) as (_, port):
        yield port


def test_every_request_is_answered(tmp_path) -> None:
    rows = serving.measure(gallery=300, requests=16, out=tmp_path / "rows.csv", served=in_a_thread)
    assert [(row.request, row.clients) for row in rows] == [
        *((kind, clients) for kind in ("a picture", "an image of the gallery", "a page of the gallery", "a small picture") for clients in (1, 8)),
        ("add", 4),
    ]  # fmt: skip
    assert all(row.lost == 0 and row.p99_ms >= row.p50_ms > 0 and row.per_second > 0 for row in rows)
    assert len((tmp_path / "rows.csv").read_text().splitlines()) == 1 + len(rows)


def test_a_refused_request_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="401"):
        serving.load(0, lambda connection, number: (401, {}), clients=2, requests=4)
