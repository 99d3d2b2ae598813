"""Times as people write them."""

import pytest

from nearfar.foundation.durations import duration, read_seconds


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("10min", 600), ("2h", 7200), ("1h30min", 5400), ("1.5 h", 5400), ("2 min 30 s", 150), ("5m", 300)],
)
def test_times(text: str, seconds: float) -> None:
    assert read_seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "ten minutes", "10 parsecs", "min", "1..5h", ".5h", "-3min", "3min!", "1h30"])
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration: write 90s, 10min or 1h30min"):
        read_seconds(text)


def test_a_number_without_a_unit_is_no_time() -> None:
    with pytest.raises(ValueError, match=r"^--budget 10: write 10min or 10s$"):
        read_seconds("10", "--budget")
    with pytest.raises(ValueError, match=r"^1\.5: write 1\.5min or 1\.5s$"):
        read_seconds(" 1.5 ")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.4, "0 s"),
        (59.4, "59 s"),
        (59.6, "1 min"),
        (150, "2 min 30 s"),
        (3599.4, "59 min 59 s"),
        (3599.6, "1 h"),
        (3600, "1 h"),
        (5430, "1 h 30 min"),
        (36 * 3600, "36 h"),
        (float("inf"), "unknown"),
    ],
)
def test_times_are_written_to_be_read(seconds: float, text: str) -> None:
    assert duration(seconds) == text
    if seconds < 3600 and seconds == round(seconds):
        assert read_seconds(text) == seconds
