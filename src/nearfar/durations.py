"""Durations as people write them."""

import re

from nearfar.errors import InputError

_UNITS = {"s": 1, "sec": 1, "m": 60, "min": 60, "h": 3600}
_PART = re.compile(r"([0-9]*\.?[0-9]+)\s*([a-z]+)\s*")


def read_seconds(text: str) -> float:
    """Seconds of a duration such as 90s, 10min, 1.5h or 1h30min. A number without a unit is an error.

    >>> read_seconds("10min"), read_seconds("1h 30min"), read_seconds("1.5h")
    (600.0, 5400.0, 5400.0)
    """
    words = text.strip().lower()
    parts = _PART.findall(words)
    if not parts or _PART.sub("", words) or any(unit not in _UNITS for _, unit in parts):
        hint = f"write {words}min or {words}s" if re.fullmatch(r"[0-9.]+", words) else "write 90s, 10min or 1h30min"
        raise InputError(f"{text!r} is no duration: {hint}")
    seconds = sum(float(number) * _UNITS[unit] for number, unit in parts)
    if not seconds > 0:
        raise InputError(f"{text!r} is no time at all: write 90s, 10min or 1h30min")
    return seconds


def spoken(seconds: float) -> str:
    """A duration for people.

    >>> spoken(8.4), spoken(150), spoken(5400)
    ('8 s', '2 min 30 s', '1 h 30 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min" + (f" {whole % 60} s" if whole % 60 and whole < 600 else "")
    return f"{whole // 3600} h" + (f" {whole % 3600 // 60} min" if whole % 3600 >= 60 else "")
