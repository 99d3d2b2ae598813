"""Parses durations such as "10min" and "1h30min", and formats them as "2 min 30 s"."""

import math
import re

from nearfar.errors import InputError

UNITS = {"s": 1, "sec": 1, "m": 60, "min": 60, "h": 3600}


def read_seconds(text: str, name: str = "") -> float:
    """Parse a duration such as 90s, 10min, 1.5h or 1h30min into seconds. A number without a unit is an error.

    >>> read_seconds("10min"), read_seconds("1h30min")
    (600.0, 5400.0)

    Args:
        name: the option to name in errors.
    """
    compact = re.sub(r"\s", "", text.lower())
    setting = f"{name} {text.strip()}".strip()
    if re.fullmatch(r"[0-9]+\.?[0-9]*", compact):
        raise InputError(f"{setting}: write {compact}min or {compact}s")
    parts = re.findall(r"([0-9]+\.?[0-9]*)([a-z]+)", compact)
    if not parts or "".join(map("".join, parts)) != compact or any(unit not in UNITS for _, unit in parts):
        raise InputError(f"{setting or repr(text)} is not a duration: write 90s, 10min or 1h30min")
    return sum(float(number) * UNITS[unit] for number, unit in parts)


def duration(seconds: float) -> str:
    """Format a time in seconds, in minutes and seconds, or in hours and minutes.

    >>> duration(7), duration(150), duration(600), duration(5400)
    ('7 s', '2 min 30 s', '10 min', '1 h 30 min')
    """
    if not math.isfinite(seconds):
        return "unknown"
    rounded = round(seconds)
    if rounded < 60:
        return f"{rounded} s"
    if rounded < 3600:
        first, second, units = *divmod(rounded, 60), ("min", "s")
    else:
        first, second, units = *divmod(round(seconds / 60), 60), ("h", "min")
    return f"{first} {units[0]}" + (f" {second} {units[1]}" if second else "")
