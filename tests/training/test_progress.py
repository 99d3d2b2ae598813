"""What is seen while images are gone through: nothing if it is quick or quiet, a line now and then, or a bar."""

import io

import pytest
from rich.console import Console

from nearfar.training import progress
from nearfar.training.progress import Display, print_table


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(progress, "time", made)
    return made


def shown(clock: Clock, seconds: float, *, terminal: bool = False, quiet: bool = False) -> str:
    """What 10 batches of 8 images show, each of so many seconds."""
    display, written = Display(quiet), io.StringIO()
    display.console = Console(file=written, force_terminal=terminal, width=100, quiet=quiet)
    with display.looking("test images", 80) as advance:
        for _ in range(10):
            clock.now += seconds
            advance(8)
    return written.getvalue()


def test_lines_where_there_is_no_terminal(clock: Clock) -> None:
    assert shown(clock, 7) == "test images: 40 of 80\ntest images: 80 of 80\n"  # every 30 seconds at most


def test_a_bar_on_a_terminal(clock: Clock) -> None:
    text = shown(clock, 0.6, terminal=True)
    assert "test images" in text and "16/80" in text and "80/80" in text and "8/80" not in text.replace("48/80", "")


@pytest.mark.parametrize("terminal", [False, True])
def test_nothing_where_it_is_quick_or_quiet(clock: Clock, terminal: bool) -> None:
    assert shown(clock, 0.05, terminal=terminal) == ""
    assert shown(clock, 60, terminal=terminal, quiet=True) == ""


def test_thresholds_are_similarities_and_not_shares(capsys: pytest.CaptureFixture[str]) -> None:
    found = {"recall@1": 0.5, "lfw accuracy": 0.9876, "lfw threshold@far=0.01": 0.4321, "lfw threshold": -0.25}
    print_table("faces: 4 images", {"": found})
    lines = [line.split("│")[1:3] for line in capsys.readouterr().out.splitlines() if "│" in line]
    assert {name.strip(): value.strip() for name, value in lines if name.strip()} == {
        "recall@1": "50.0%",
        "lfw accuracy": "98.8%",
        "lfw threshold@far=0.01": "0.432",
        "lfw threshold": "-0.250",
    }
