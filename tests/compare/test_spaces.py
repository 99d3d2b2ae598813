"""What is searched."""

import pytest

from nearfar.compare.spaces import FROZEN_RATE, LOSSES, SPACES, Range, has_proxies, read_contestant, space_of
from nearfar.losses import list_losses
from nearfar.training.config import LossConfig
from nearfar.training.options import ConfigError

KNOWN = {info.name: info for info in list_losses()}


@pytest.mark.parametrize("name", SPACES)
def test_spaces_are_of_arguments_and_hold_their_defaults(name: str) -> None:
    for argument, own in SPACES[name].items():
        assert own.low <= KNOWN[name].arguments[argument] <= own.high


@pytest.mark.parametrize("name", sorted(KNOWN))
def test_every_loss_with_labels_has_a_space(name: str) -> None:
    if KNOWN[name].level == "towers":
        with pytest.raises(ConfigError, match="two views"):
            read_contestant(name)
        return
    loss = read_contestant(name)
    space = space_of(loss, FROZEN_RATE)
    assert space["lr"] == FROZEN_RATE
    assert ("proxies" in space) == (KNOWN[name].level in ("class", "proxy"))
    assert set(space) - {"lr", "proxies"} == {f"loss.{argument}" for argument in SPACES.get(name, {})}
    assert all(each.low <= each.middle <= each.high for each in space.values())


def test_contestants() -> None:
    assert read_contestant("CircleLoss") == LossConfig("CircleLoss")
    assert read_contestant("CircleLoss/class") == LossConfig("CircleLoss", class_level=True)
    assert has_proxies(read_contestant("CircleLoss/class")) and not has_proxies(read_contestant("CircleLoss"))
    assert len(set(LOSSES)) == len(LOSSES) >= 10
    for name in LOSSES:
        assert read_contestant(name).name in SPACES


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("CircelLoss", "did you mean CircleLoss"),
        ("CircleLoss/clas", "no form clas"),
        ("ArcFaceLoss/class", "one form alone"),
        ("SigLIPLoss", "two views"),
    ],
)
def test_what_is_no_contestant(word: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_contestant(word)


def test_ranges() -> None:
    assert Range(1, 100, log=True).middle == pytest.approx(10)
    assert Range(0, 1).middle == 0.5
    assert Range(0, 1, start=0.2).middle == 0.2
    for bad in ((1, 1, False), (2, 1, False), (0, 1, True)):
        with pytest.raises(ValueError, match="is no range"):
            Range(*bad)
