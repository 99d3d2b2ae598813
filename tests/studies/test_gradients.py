"""The numbers behind the gradient fields, against the papers' closed forms."""

import math
from dataclasses import replace

import numpy as np
import pytest

from nearfar.losses import ProxyAnchorLoss, ProxyNCALoss, list_losses
from nearfar.studies import fields, gradients, observations
from nearfar.studies.gradient_cases import paper_case
from nearfar.studies.gradients import Options, targets, transition
from nearfar.training.config import LossConfig
from nearfar.training.options import ConfigError

PLACES = [(0.1, 0.1), (0.5, 0.5), (0.9, 0.9), (0.3, 0.8), (-0.4, 0.2), (0.7, -0.6)]


def slopes(name: str, s_n: float, s_p: float, **arguments: float) -> tuple[float, float, float]:
    return fields.slopes(fields.build(LossConfig(name, arguments)), s_n, s_p)


@pytest.mark.parametrize(("s_n", "s_p"), PLACES)
@pytest.mark.parametrize(("m", "gamma"), [(0.25, 32.0), (0.4, 8.0)])
def test_circle_has_the_slopes_of_the_paper(s_n: float, s_p: float, m: float, gamma: float) -> None:
    """Eq. 9 and 10 for one pair of each: Z γ α_n and -Z γ α_p, with Z = 1 - exp(-L)."""
    a_n, a_p = max(s_n + m, 0), max(1 + m - s_p, 0)
    exponent = gamma * (a_n * (s_n - m) - a_p * (s_p - 1 + m))
    value = math.log1p(math.exp(exponent))
    z = 1 - math.exp(-value)
    assert slopes("CircleLoss", s_n, s_p, m=m, gamma=gamma) == pytest.approx(
        (value, z * gamma * a_n, -z * gamma * a_p), rel=1e-9, abs=1e-12
    )


@pytest.mark.parametrize(("s_n", "s_p"), PLACES)
def test_am_softmax_and_triplet(s_n: float, s_p: float) -> None:
    share = 1 / (1 + math.exp(-32 * (s_n - s_p + 0.25)))
    expected = (math.log1p(math.exp(32 * (s_n - s_p + 0.25))), 32 * share, -32 * share)
    assert slopes("AMSoftmaxLoss", s_n, s_p, margin=0.25, scale=32.0) == pytest.approx(expected, rel=1e-9)
    active = s_n - s_p + 0.25 > 0
    found = slopes("TripletMarginLoss", s_n, s_p, margin=0.25, distance="cosine")
    assert found == pytest.approx((max(0.0, s_n - s_p + 0.25), float(active), -float(active)), abs=1e-12)


def test_a_loss_of_dot_products_has_the_same_geometry() -> None:
    """Nothing is normalised in a softmax: of unit vectors, the slopes are yet those by the similarities."""
    share = math.exp(0.3) / (math.exp(0.3) + math.exp(0.6))
    assert slopes("SoftmaxLoss", 0.3, 0.6)[1:] == pytest.approx((share, -share), rel=1e-9)


FIELDS = [
    info.name
    for info in list_losses()
    if info.level != "towers" and info.name not in ("CenterLoss", "LiftedStructureLoss")
]


@pytest.mark.parametrize("name", FIELDS)
def test_every_loss_has_a_field(name: str) -> None:
    """And never pulls the wrong way, but for the regularisers of some."""
    value, by_n, by_p = slopes(name, 0.55, 0.5)
    assert math.isfinite(value)
    assert by_n >= -1e-9 and by_p <= 1e-9


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("CenterLoss", "CenterLoss is not a function of a positive's and a negative's similarity"),
        ("LiftedStructureLoss", "LiftedStructureLoss has no field over one positive and one negative"),
        ("InfoNCELoss", "InfoNCELoss compares two views"),
    ],
)
def test_losses_without_a_field(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        slopes(name, 0.5, 0.5)


def test_proxy_anchor_weighs_samples_by_each_other_and_proxy_nca_does_not() -> None:
    own, others = [0.1, 0.5, 0.8], [0.3, -0.1]
    found = fields.proxy_slopes(ProxyAnchorLoss(3, 12, margin=0.1, alpha=32).double(), own, others)
    pull = np.exp(-32 * (np.array(own) - 0.1))
    push = np.exp(32 * (np.array(others) + 0.1))
    np.testing.assert_allclose(found[0], -32 / 2 * pull / (1 + pull.sum()), rtol=1e-9)  # two proxies have positives
    np.testing.assert_allclose(found[1], 32 / 3 * push / (1 + push.sum()), rtol=1e-9)  # of three in all
    found = fields.proxy_slopes(ProxyNCALoss(3, 12, exclude_positive=True).double(), own, others)
    np.testing.assert_allclose(found[0], -2 / 5, rtol=1e-9)
    among = np.exp(2 * np.array(others))
    np.testing.assert_allclose(found[1], 2 / 5 * among / (among + 1), rtol=1e-9)


def test_states_and_targets() -> None:
    states = {"A": (0.1, 0.1), "B": (0.9, 0.9), "C": (0.5, 0.5)}
    rows = {
        (row["loss"], row["state"]): row for row in gradients.state_rows([paper_case("Circle", 0.25, 32.0)], states)
    }
    a, b, c = (abs(rows["Circle", state]["by_p"] / rows["Circle", state]["by_n"]) for state in "ABC")
    assert (a, b, c) == pytest.approx((1.15 / 0.35, 0.35 / 1.15, 1.0), rel=1e-9)  # α_p / α_n
    found = {(row["loss"], row["target"]): row for row in targets(32.0)}
    assert found["AM-Softmax", "T"]["value"] == pytest.approx(math.log(2)) == found["AM-Softmax", "T′"]["value"]
    touch = found["Circle", "touches at"]
    assert (touch["s_n"], touch["s_p"]) == pytest.approx((0.35, 0.65), abs=3e-3)
    assert touch["value"] == pytest.approx(math.log(2), abs=0.05)
    assert found["Circle", "T"]["value"] > 2 * math.log(2)


def test_transition_of_am_softmax_is_that_of_a_logistic_curve() -> None:
    assert transition(paper_case("AM-Softmax", 0.25, 32.0)) == pytest.approx(math.log(81) / 32, abs=0.02)
    assert transition(paper_case("Triplet", 0.25, 32.0)) < 0.02


def test_the_study(tmp_path) -> None:
    found = gradients.run(replace(Options().small(), points=5), tmp_path, print)
    assert set(found.figures) == {"observations", "fields", "sides", "targets", "hardness"}
    assert len(found.tables["fields"]) == 3 * 25
    corner = next(r for r in found.tables["fields"] if r["loss"] == "Circle" and r["s_n"] == 0.9 and r["s_p"] == 0.1)
    assert corner["by_n"] == pytest.approx(32 * 1.15, rel=1e-6)
    words = " ".join(found.sentences)
    assert "at A (0.8, 0.8) s_p 0.43 × as hard as s_n" in words and "at C (0.1, 0.1) s_p 3.29 × as hard" in words
    for name in ("Balanced optimisation", "Gradually attenuated gradients", "A definite target"):
        assert f"{name} is confirmed" in words
    alone = gradients.run(replace(Options(), loss=(LossConfig("ProxyAnchorLoss"),), points=5), tmp_path, print)
    assert list(alone.figures) == ["fields"] and {row["loss"] for row in alone.tables["fields"]} == {"ProxyAnchorLoss"}


def test_observations_have_their_closed_forms() -> None:
    m, gamma, a = 0.25, 32.0, (0.8, 0.8)
    cases = observations.touching(m, gamma)
    assert [case.m for case in cases] == [0.5, 0.5, 0.25]
    for row in observations.balanced(cases, a):
        a_p, a_n = 1 + m - row["s_p"], a[0] + m
        assert row["share"] == pytest.approx(a_p / (a_p + a_n) if row["loss"] == "Circle" else 0.5, rel=1e-6)
    rows = observations.attenuated(cases, a)
    am = [row for row in rows if row["loss"] == "AM-Softmax"]
    first = 1 / (1 + math.exp(-gamma * 0.5))
    for row in am:
        expected = 1 / (1 + math.exp(-gamma * (row["s_n"] - row["s_p"] + 0.5)))
        assert row["pull"] == pytest.approx(expected / first, rel=1e-6)
    assert observations.width(rows, "Circle") > 3 * observations.width(rows, "AM-Softmax")


def test_descent_ends_on_the_boundary() -> None:
    cases = [case for case in observations.touching(0.25, 32.0) if case.name != "Triplet"]
    rows = observations.target(cases)
    for row in rows:
        if row["loss"] == "AM-Softmax":  # along the diagonal that it starts on, as far as there is room
            assert row["s_p"] - row["s_n"] == pytest.approx(0.5, abs=0.04)
            if row["s_n"] > 0 and row["s_p"] < 1:
                assert row["s_n"] + row["s_p"] == pytest.approx(row["from s_n"] + row["from s_p"], abs=1e-6)
        else:
            assert row["s_n"] ** 2 + (1 - row["s_p"]) ** 2 == pytest.approx(0.125, abs=0.03)
    assert observations.spread(rows, "Circle") < observations.spread(rows, "AM-Softmax")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"low": 1.0}, "low must be a similarity"),
        ({"points": 2}, "at least 3"),
        ({"margins": ()}, "one margin"),
        ({"states": "A=0.8"}, "is not a state"),
        ({"states": "A=0.8,1.8"}, "between -1 and 1"),
        ({"states": "B=0,0"}, "must include A"),
    ],
)
def test_wrong_options(wrong: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Options(**wrong)
