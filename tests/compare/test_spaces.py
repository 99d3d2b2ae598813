"""What is searched."""

import pytest

from nearfar.compare.spaces import (
    LOSSES,
    SPACES,
    Choice,
    Range,
    dimensions,
    forms,
    has_proxies,
    read_contestant,
    share,
    space_of,
)
from nearfar.losses import list_losses
from nearfar.training.config import LossConfig
from nearfar.training.loss_defaults import defaults_of
from nearfar.training.options import ConfigError

KNOWN = {info.name: info for info in list_losses()}


@pytest.mark.parametrize("name", SPACES)
def test_spaces_are_of_arguments_and_hold_their_defaults(name: str) -> None:
    for argument, own in SPACES[name].items():
        default = (KNOWN[name].arguments | dict(defaults_of(name, "frozen").arguments))[argument]
        assert default in own.values if isinstance(own, Choice) else own.low <= default <= own.high


@pytest.mark.parametrize("name", sorted(KNOWN))
def test_every_loss_with_labels_has_a_space(name: str) -> None:
    if KNOWN[name].level == "towers":
        with pytest.raises(ConfigError, match="two views"):
            read_contestant(name)
        return
    loss = read_contestant(name)
    space = space_of(loss, "frozen")
    assert space["lr"].first == defaults_of(name, "frozen").lr
    assert ("classes" in space) == (KNOWN[name].level in ("class", "proxy"))
    assert set(space) - {"lr", "classes"} == {f"loss.{argument}" for argument in SPACES.get(name, {})}
    assert all(each.low <= each.first <= each.high for each in space.values() if isinstance(each, Range))


def test_contestants() -> None:
    assert read_contestant("CircleLoss") == LossConfig("CircleLoss")
    assert read_contestant("CircleLoss/class") == LossConfig("CircleLoss", class_level=True)
    assert read_contestant("CircleLoss/pair") == LossConfig("CircleLoss")
    assert has_proxies(read_contestant("CircleLoss/class")) and not has_proxies(read_contestant("CircleLoss"))
    assert len(set(LOSSES)) == len(LOSSES) >= 10
    for name in LOSSES:
        assert read_contestant(name).name in SPACES


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("CircelLoss", "did you mean CircleLoss"),
        ("CircleLoss/clas", "no form clas"),
        ("ArcFaceLoss/class", "only one form"),
        ("SigLIPLoss", "two views"),
    ],
)
def test_what_is_no_contestant(word: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_contestant(word)


def test_either_form_starts_where_its_paper_does() -> None:
    pair, own = forms("CircleLoss")
    assert (pair.class_level, own.class_level) == (False, True)
    assert [space_of(pair, "frozen")[f"loss.{name}"].first for name in ("m", "gamma")] == [0.4, 80]
    assert [space_of(own, "frozen")[f"loss.{name}"].first for name in ("m", "gamma")] == [0.25, 128]
    assert forms("CircleLoss/class") == (own,) and forms("CircleLoss/pair") == (pair,)
    assert forms("ArcFaceLoss") == (read_contestant("ArcFaceLoss"),)


def test_more_dimensions_are_given_more_settings() -> None:
    known = {"SupConLoss": 2, "CircleLoss/pair": 3, "TripletMarginLoss": 3, "CosFaceLoss": 4, "CircleLoss": 5}
    assert {name: dimensions(name) for name in known} == known
    assert {name: share(name, 10) for name in known} == dict(zip(known, (7, 10, 10, 13, 17), strict=True))
    assert {share(name, 1) for name in LOSSES} == {1}
    assert all(share(name, more) >= share(name, more - 1) for name in LOSSES for more in range(2, 30))


def test_ranges() -> None:
    assert Range(1, 100, log=True).first == pytest.approx(10)
    assert Range(0, 1).first == 0.5
    assert Range(0, 1, start=0.2).first == 0.2
    for bad in ((1, 1, False), (2, 1, False), (0, 1, True)):
        with pytest.raises(ValueError, match="is not a range"):
            Range(*bad)
