import logging

import pytest


@pytest.fixture(autouse=True)
def no_trace_of_tracing(monkeypatch: pytest.MonkeyPatch) -> None:
    """pytest listens to loggers that do not propagate, and torch takes a listener of this one for a wish to have every
    step of its tracing described, which more than doubles the time of an export.
    """
    trace = logging.getLogger("torch.__trace")
    monkeypatch.setattr(trace, "handlers", [])
    monkeypatch.setattr(trace, "addHandler", lambda handler: None)
