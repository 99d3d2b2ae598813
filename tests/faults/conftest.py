"""The process whose children are killed."""

from collections.abc import Iterator

import pytest

from tests.faults.crash import Crasher


@pytest.fixture(scope="session")
def crasher() -> Iterator[Crasher]:
    process = Crasher()
    yield process
    process.close()
    print(f"\nfaults: {dict(process.done)}")  # pytest -s shows how many there were
