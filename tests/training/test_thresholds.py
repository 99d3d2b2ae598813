"""What is said of a threshold."""

from typing import Any

import pytest

from nearfar.training.thresholds import said

BROKEN = "the target is missed on these classes"


def measured(**values: tuple[float, float]) -> dict[str, Any]:
    found: dict[str, Any] = {"classes": 12, "confidence": 0.9, "share": 0.1}
    for name, interval in {"precision": (0.8, 0.99), "tar": (0.3, 0.5), "far": (0.01, 0.02), **values}.items():
        found |= {name: sum(interval) / 2, f"{name}_interval": interval}
    return found


@pytest.mark.parametrize(
    ("target", "wished", "interval", "broken"),
    [
        ("precision", 0.95, (0.9, 0.99), False),
        ("precision", 0.95, (0.97, 0.99), False),  # better than promised
        ("precision", 0.95, (0.1, 0.2), True),
        ("far", 0.01, (0.005, 0.02), False),
        ("far", 0.01, (0.001, 0.002), False),
        ("far", 0.01, (0.02, 0.1), True),
    ],
)
def test_a_promise_that_the_test_classes_do_not_keep_is_said_to_be_broken(
    target: str, wished: float, interval: tuple[float, float], broken: bool
) -> None:
    found = {"threshold": 0.5, "target": target, "wished": wished, "measured": measured(**{target: interval})}
    assert (BROKEN in said(found)) == broken
    goal = {"precision": "a precision of 95 %", "far": "a false-accept rate of 1 %"}[target]
    assert f"from a similarity of 0.500 on (calibrated for {goal}). Measured on 12 unseen classes" in said(found)


def test_a_threshold_that_was_given_promises_nothing() -> None:
    assert "calibrated" not in said({"threshold": 0.5})
    told = said({"threshold": 0.5, "measured": measured()})
    assert "calibrated" not in told and BROKEN not in told
