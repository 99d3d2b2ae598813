"""Every pointwise map: it keeps its input, and its slope is the derivative unless it says otherwise."""

import math
from dataclasses import dataclass, replace
from unittest import mock

import pytest
import torch
from torch import Tensor

from nearfar import losses
from nearfar.losses.engine import angles, maps

S = torch.linspace(-0.97, 0.97, 24, dtype=torch.float64).view(4, 6)
NORM = torch.linspace(0.3, 1.7, 24, dtype=torch.float64).flip(0).view(4, 6)
BORDER = torch.tensor([[0.9], [0.2], [-0.3], [0.6]], dtype=torch.float64)


@dataclass
class Case:
    map: maps.Map
    keeps_norm: bool = False  # similarities are as long as the norms
    constant: bool = False  # parts of it are constants in the gradient
    of_differences: bool = False  # similarities are -d^2 / 2

    @property
    def similarities(self) -> Tensor:
        if self.of_differences:
            return S - 1.5
        return S * NORM if self.keeps_norm else S.clone()


CASES = {
    "linear": Case(maps.Linear(3.0)),
    "itself": Case(maps.Linear(1.0)),
    "its negative": Case(maps.Linear(-1.0)),
    "linear with offset": Case(maps.Linear(-3.0, 0.7)),
    "circle, positive": Case(maps.SelfPaced(8.0, 1.25, 0.75, True), constant=True),
    "circle, negative": Case(maps.SelfPaced(8.0, -0.25, 0.25, False), constant=True),
    "arc": Case(angles.ArcMargin(4.0, 0.5)),
    "arc, past pi": Case(angles.ArcMargin(4.0, 2.0)),
    "arc, easy": Case(angles.ArcMargin(4.0, 0.5, easy=True)),
    "slack": Case(angles.AngularSlack(4.0, 0.1)),
    "combined": Case(angles.CombinedMargin(4.0, 1.4, 0.3, 0.2)),
    "combined, past pi": Case(angles.CombinedMargin(4.0, 4.0, 0.0, 0.0)),
    "multiplicative": Case(
        angles.MultiplicativeMargin(2.0, 3.0, 1.5, NORM / 2, torch.tensor(2.0, dtype=torch.float64)), keeps_norm=True
    ),
    "l2": Case(maps.Distance("l2", -1, 0.4)),
    "squared l2": Case(maps.Distance("squared_l2", 1, 0.4)),
    "cosine": Case(maps.Distance("cosine", -1, 0.4)),
    "l2 of any norm": Case(maps.EuclideanDistance("l2", -1, 0.4), of_differences=True),
    "squared l2 of any norm": Case(maps.EuclideanDistance("squared_l2", 1, 0.4), of_differences=True),
    "hinge": Case(maps.Hinge(maps.Distance("l2", 1, -0.9), 1)),
    "squared hinge": Case(maps.Hinge(maps.Distance("cosine", -1, 0.9), 2)),
    "interpolated": Case(maps.Interpolated(torch.tensor([0.0, 2.0, -1.0, 0.5, 3.0, 3.5], dtype=torch.float64))),
    "square": Case(maps.Square()),
    "softplus": Case(maps.Softplus(-1)),
    "linear with numbers of the rows": Case(maps.Linear(BORDER, -BORDER)),
    "circle with numbers of the rows": Case(maps.SelfPaced(8.0, BORDER + 1, -BORDER, True), constant=True),
    "arc with numbers of the pairs": Case(angles.ArcMargin(4.0, NORM)),
    "arc with numbers of the pairs, easy": Case(angles.ArcMargin(4.0, NORM, easy=True)),
    "curriculum": Case(maps.Curriculum(4.0, 0.3, BORDER), constant=True),
    "quality": Case(angles.QualityMargin(4.0, 0.4, NORM - 1), constant=True),
}
cases = pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())


def test_every_map_is_here() -> None:
    defined = [*vars(maps).values(), *vars(angles).values()]
    classes = {value for value in defined if isinstance(value, type) and hasattr(value, "slopes")}
    assert classes == {type(case.map) for case in CASES.values()} | {maps.ShiftedHinge, maps.Map}


@cases
def test_value_and_slopes_agree_and_leave_the_similarities_alone(case: Case) -> None:
    s = case.similarities
    before = s.clone()
    value = case.map.value(s)
    with_slope, slope = case.map.slopes(s)
    torch.testing.assert_close(value, with_slope, rtol=1e-14, atol=1e-14)
    assert value.data_ptr() != s.data_ptr() and with_slope.data_ptr() != s.data_ptr() and torch.equal(s, before)
    assert isinstance(slope, float) or slope.shape == s.shape


@pytest.mark.parametrize(
    "case", [c for c in CASES.values() if not c.constant], ids=[k for k, c in CASES.items() if not c.constant]
)
def test_the_slopes_are_the_derivatives(case: Case) -> None:
    s, step = case.similarities, 1e-6
    _, slope = case.map.slopes(s)
    rise = (case.map.value(s + step) - case.map.value(s - step)) / (2 * step)
    torch.testing.assert_close(torch.as_tensor(slope, dtype=s.dtype).expand_as(s), rise, rtol=1e-5, atol=1e-5)
    for name in case.map.parameters:
        number = getattr(case.map, name)
        if isinstance(number, Tensor):
            above, below = (replace(case.map, **{name: number + change}) for change in (step, -step))  # type: ignore[type-var]
            rise = (above.value(s) - below.value(s)) / (2 * step)
            torch.testing.assert_close(case.map.by(s, name).expand_as(s), rise, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", [(1,), (6,), (4, 1), (4, 6)])
def test_numbers_of_rows_and_columns_go_through_autograd(shape: tuple[int, ...]) -> None:
    number = torch.full(shape, 0.4, dtype=torch.float64, requires_grad=True)
    s = S.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda s, m: maps.through(angles.ArcMargin(4.0, m), s), (s, number))
    assert torch.autograd.gradcheck(lambda s, m: maps.through(maps.Linear(m, m), s), (s, number))


def test_what_is_a_constant_in_the_slope() -> None:
    """Circle's bracket, a hard negative's border, AdaFace's quality: by hand at one point each."""
    s = torch.tensor([[0.5]], dtype=torch.float64)
    value, slope = maps.SelfPaced(8.0, 1.25, 0.75, True).slopes(s)
    assert (float(value), float(slope)) == pytest.approx((-8 * 0.75 * -0.25, -8 * 0.75))  # type: ignore[arg-type]
    value, slope = maps.SelfPaced(8.0, -0.25, 0.25, False).slopes(s)
    assert (float(value), float(slope)) == pytest.approx((8 * 0.75 * 0.25, 8 * 0.75))  # type: ignore[arg-type]
    hard = maps.Curriculum(4.0, 0.3, torch.tensor([[0.4]], dtype=torch.float64)).slopes(s)
    assert (float(hard[0]), float(hard[1])) == pytest.approx((4 * 0.5 * 0.8, 4 * (0.3 + 2 * 0.5)))  # type: ignore[arg-type]
    easy = maps.Curriculum(4.0, 0.3, torch.tensor([[0.6]], dtype=torch.float64)).slopes(s)
    assert (float(easy[0]), float(easy[1])) == pytest.approx((4 * 0.5, 4.0))  # type: ignore[arg-type]
    z, theta = (1.2 - 1.0) / 0.501 * 2.0, math.acos(0.5)
    quality = angles.QualityMargin(4.0, 0.4, torch.tensor([[z]], dtype=torch.float64)).slopes(s)
    assert float(quality[0]) == pytest.approx(-4 * (math.cos(theta - 0.4 * z) - 0.4 - 0.4 * z))
    assert float(quality[1]) == pytest.approx(-4 * math.sin(theta - 0.4 * z) / math.sin(theta))  # type: ignore[arg-type]


def test_rounding_past_a_cosine_of_one() -> None:
    """Products of float32 unit vectors may exceed 1 by a little; a NaN must not come of it."""
    above = torch.tensor([[1.0]]).nextafter(torch.tensor([[2.0]]))
    curricular = losses.CurricularFaceLoss(2, 4, margin=0.4)
    for cosine in (above[0], -above[0]):
        with mock.patch.object(curricular, "_own_cosines", return_value=cosine):
            (border,) = curricular.row_parameters(mock.Mock(), torch.ones(1, 4), torch.zeros(1, dtype=torch.long))
        assert float(border) == pytest.approx(math.cos(math.acos(max(-1, min(1, float(cosine)))) + 0.4))
    for map_ in (
        angles.ArcMargin(4.0, 0.5),
        angles.AngularSlack(4.0, 0.1),
        angles.CombinedMargin(4.0, 1.4, 0.3, 0.2),
        maps.Distance("l2"),
    ):
        value, slope = map_.slopes(torch.cat([above, -above]))
        assert bool(value.isfinite().all()) and bool(torch.as_tensor(slope).isfinite().all()), map_
