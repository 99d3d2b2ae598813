import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module", autouse=True)
def no_trace_of_tracing() -> Iterator[None]:
    """pytest listens to loggers that do not propagate, and torch takes a listener of this one for a wish to have every
    step of its tracing described, which more than doubles the time of an export.
    """
    trace = logging.getLogger("torch.__trace")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trace, "handlers", [])
        patch.setattr(trace, "addHandler", lambda handler: None)
        yield
