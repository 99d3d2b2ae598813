"""`Journal`: results, written to the disk at once.

A comparison that resumes after a kill runs the same search from its beginning, and reads the results in the journal
instead of computing them. So it ends with the results of an uninterrupted one.
"""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nearfar.errors import InputError


class Journal:
    """Entries by key, one line of JSON each, appended and flushed to the disk. A line cut off by a kill is dropped.

    Args:
        clock: returns the seconds of a budget that are spent, noted with every entry.
    """

    def __init__(self, path: Path, clock: Callable[[], float] | None = None):
        self._path, self.clock = path, clock
        self._entries: dict[str, dict[str, Any]] = {}
        text = path.read_bytes() if path.is_file() else b""
        whole = text[: text.rfind(b"\n") + 1]
        try:
            for line in whole.decode().splitlines():
                entry = json.loads(line)
                self._entries[entry["key"]] = entry
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"{path} is damaged ({error}): remove it to measure everything again") from error
        if len(whole) < len(text):
            with path.open("r+b") as file:
                file.truncate(len(whole))

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def spent(self) -> float:
        """The seconds that were spent at the last entry."""
        return max((entry.get("at", 0.0) for entry in self._entries.values()), default=0.0)

    def get(self, key: str) -> dict[str, Any] | None:
        """The entry of that key, or None."""
        return self._entries.get(key)

    def add(self, key: str, **values: Any) -> dict[str, Any]:
        """Write an entry, and return it."""
        if key in self._entries:
            raise ValueError(f"the journal already has {key}")
        entry = {"key": key, **values}
        if self.clock is not None:
            entry["at"] = round(self.clock(), 3)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("ab") as file:
            file.write(json.dumps(entry).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        self._entries[key] = entry
        return entry
