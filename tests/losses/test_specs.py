"""The contract of a spec: every executor computes it alike, or it is refused before anything is computed.

Random specs go through the oracle, `engine.dense`, and through the engine in one tile and in many, with any budget and
reduction. `NEARFAR_LONG=1` tries ten thousand.
"""

import os
import random
from collections.abc import Callable, Sequence
from typing import Any, get_args

import pytest
import torch
from torch import Tensor

from nearfar.errors import InputError
from nearfar.losses import engine
from nearfar.losses.engine import dense, maps
from nearfar.losses.engine.maps import Column, Row
from nearfar.losses.engine.memory import Spare
from nearfar.losses.engine.pairs import ClassPairs, MaskPairs, Pairs
from nearfar.losses.engine.plan import Plan, Sizes
from nearfar.losses.engine.pools import Nearest, Relaxed
from nearfar.losses.engine.reductions import Gather
from nearfar.losses.engine.spec import Act, Average, Combine, LossSpec, refusals

NUMBER = 10_000 if os.environ.get("NEARFAR_LONG") else 400
CLASSES, SIZE = 7, 6


def draw_maps(draw: random.Random) -> tuple[maps.Map, maps.Map]:
    """Two maps of one loss, with or without numbers of the rows and columns."""
    choices: Sequence[tuple[maps.Map, maps.Map]] = [
        (maps.Linear(-3.0), maps.Linear(3.0, 0.3)),
        (maps.Linear(-3.0, Column(0)), maps.Linear(3.0)),
        (maps.Linear(Row(1), 0.5), maps.Linear(Row(0), Row(1))),
        (maps.SelfPaced(8.0, 1.25, 0.75, True), maps.SelfPaced(8.0, -0.25, 0.25, False)),
        (maps.SelfPaced(8.0, 1.25, Row(0), True), maps.SelfPaced(8.0, -0.25, Row(1), False)),
        (maps.ArcMargin(4.0, 0.5), maps.Linear(4.0)),
        (maps.ArcMargin(4.0, Column(0)), maps.Linear(4.0)),
        (maps.Distance("l2"), maps.Distance("l2", -1, 0.7)),
        (maps.Hinge(maps.Linear(-1.0, 0.9), 2), maps.Hinge(maps.Linear(1.0, 0.1), 1)),
        (maps.Softplus(-1), maps.Softplus(1)),
        (maps.Linear(-2.0, 1.0), maps.Square()),
    ]
    return draw.choice(choices)


def draw_spec(draw: random.Random, classes: bool, pools: bool = True) -> LossSpec:
    """Any spec, with a meaning or without."""
    pool = draw.choice([None, None, Nearest(2), Relaxed(2, 0.2, 0.05)]) if classes and pools else None
    combine: Any = draw.choice(get_args(Combine))
    averages = get_args(Average) if draw.random() < 0.7 else ("both", "all")
    return LossSpec(
        *draw_maps(draw),
        gather=(draw.choice(get_args(Gather)), draw.choice(get_args(Gather))),
        combine=combine,
        act=draw.choice(get_args(Act)),
        side_scale=draw.choice([(1.0, 1.0), (0.5, 2.0)]) if combine == "split" else (1.0, 1.0),
        scale=draw.choice([1.0, 0.3]),
        others=draw.random() < 0.3,
        mining=draw.choice([None, None, 0.1, -0.2]),
        average=draw.choice(averages),
        normalize=draw.choice([(True, True), (True, True), (False, True), (False, False)]),
        pool=pool,
        smoothing=draw.choice([0.0] * 9 + [0.1]),
    )


class Problem:
    """Tensors and pairs of one kind: samples × samples, × references or × classes; from class ids or from masks."""

    def __init__(self, draw: random.Random, number: int):
        generator = torch.Generator().manual_seed(number)
        self.kind = draw.choice(["samples", "references", "classes"])
        n = draw.choice([5, 12, 40])
        self.x = torch.randn(n, SIZE, generator=generator, dtype=torch.float64)
        self.labels = torch.randint(0, CLASSES, (n,), generator=generator)
        columns = {"samples": n, "references": 9, "classes": CLASSES}[self.kind]
        self.spec = draw_spec(draw, self.kind == "classes")
        if isinstance(self.spec.positive, maps.Distance):  # of normalised vectors; of others, ties at its floor
            self.spec = self.spec._replace(normalize=(True, True))
        if self.kind == "samples":  # one set, one normalisation
            self.spec = self.spec._replace(normalize=(self.spec.normalize[0],) * 2)
        k = 1 if self.spec.pool is None else 2
        y = torch.randn(columns * k, SIZE, generator=generator, dtype=torch.float64)
        self.y = None if self.kind == "samples" else y
        self.ids = {
            "samples": self.labels,
            "references": torch.arange(columns) % (CLASSES - 2),
            "classes": torch.arange(columns),
        }[self.kind]
        positive = self.labels[:, None] == self.ids
        itself = torch.eye(n, dtype=torch.bool) if self.y is None else torch.zeros_like(positive)
        self.positive, self.negative = positive & ~itself, ~positive
        self.masked = draw.random() < 0.3
        if self.masked:
            kind = torch.randint(0, 4, positive.shape, generator=generator)
            self.positive, self.negative = (kind == 0) & ~itself, (kind > 1) & ~itself
        weighted = draw.random() < 0.3
        numbers = torch.rand(4, max(n, columns), generator=generator, dtype=torch.float64) + 0.2
        self.weight = numbers[3, :n] if weighted else None
        self.column_weight = numbers[3, :columns].flip(0) if draw.random() < 0.2 else None
        self.numbers = [numbers[0, :n], numbers[1, :n], numbers[2, :columns]]
        self.bias = None
        if self.y is not None and self.spec.pool is None and draw.random() < 0.3:
            self.bias = torch.randn(columns, generator=generator, dtype=torch.float64)
        self.upstream = torch.randn(n, generator=generator, dtype=torch.float64)

    def pairs(self) -> Pairs:
        if self.masked:
            return MaskPairs(lambda i, j: (self.positive[i, j], self.negative[i, j]), *self.positive.shape, block=7)
        if self.kind == "samples":
            return ClassPairs.among_samples(self.labels)
        if self.kind == "references":
            return ClassPairs.to_references(self.labels, self.ids)
        return ClassPairs.to_classes(self.labels, CLASSES)

    def gradients(self, run: Callable[..., Tensor]) -> list[Tensor]:
        """The value, and the gradients by everything that takes one."""
        given = [self.x, self.y, self.bias, *self.numbers]
        leaves = [None if t is None else t.clone().requires_grad_() for t in given]
        value = run(*leaves)
        tensors = [t for t in leaves if t is not None]
        upstream = self.upstream if value.ndim else torch.tensor(1.7, dtype=torch.float64)
        if not value.requires_grad:
            return [value, *(torch.zeros_like(t) for t in tensors)]
        grads = torch.autograd.grad(value, tensors, upstream, allow_unused=True, materialize_grads=True)
        return [value.detach(), *grads]

    def by_oracle(self, reduction: str) -> list[Tensor]:
        def run(x: Tensor, y: Tensor | None, bias: Tensor | None, *numbers: Tensor) -> Tensor:
            return dense.evaluate(
                self.spec,
                x,
                y,
                self.positive,
                self.negative,
                bias=bias,
                row_numbers=numbers[:2],
                column_numbers=numbers[2:],
                row_weight=self.weight,
                column_weight=self.column_weight,
                reduction=reduction,
            )

        return self.gradients(run)

    def by_engine(self, reduction: Any, sizes: Sizes, budget: int) -> list[Tensor]:
        plan = Plan(
            self.spec,
            self.pairs(),
            Spare(),
            self.weight,
            self.column_weight,
            reduction,
            budget,
            sizes,
            row_parameters=2,
        )
        return self.gradients(lambda x, y, bias, *numbers: engine.evaluate(plan, x, y, bias, *numbers))


def disagreement(ours: list[Tensor], expected: list[Tensor]) -> str:
    for k, (a, b) in enumerate(zip(ours, expected, strict=True)):
        if not torch.allclose(a, b, rtol=1e-8, atol=1e-9, equal_nan=True):
            return f"{'value' if k == 0 else f'gradient {k}'} differs by {float((a - b).abs().max()):.3g}"
    return ""


def test_every_executor_computes_a_spec_alike_or_refuses_it() -> None:
    draw = random.Random(1)
    refused, wrong = 0, []
    for number in range(NUMBER):
        problem = Problem(draw, number)
        reduction = draw.choice(["mean", "sum", "none"])
        sizes = draw.choice(
            [Sizes(), Sizes(tile=1), Sizes(tile=16, square=4, widest=5, fewest_rows=3, whole=draw.choice([0, 2**22]))]
        )
        budget = draw.choice([0, 700, 10**8])
        if refusals(problem.spec, 2, 1):
            refused += 1
            with pytest.raises(InputError, match="LossSpec"):
                problem.by_engine(reduction, sizes, budget)
            continue
        told = disagreement(problem.by_engine(reduction, sizes, budget), problem.by_oracle(reduction))
        if told:
            wrong.append(
                f"{number} {problem.kind} masked={problem.masked} {reduction} {sizes} {budget}: {told}\n{problem.spec}"
            )
    assert not wrong, f"{len(wrong)} of {NUMBER} disagree\n" + "\n".join(wrong[:9])
    assert refused <= NUMBER / 3


def test_what_has_no_meaning_is_refused_with_what_there_is_instead() -> None:
    linear = maps.Linear(-1.0), maps.Linear(1.0)
    spec = LossSpec(*linear)
    cases: list[tuple[LossSpec, str]] = [
        (spec._replace(average="sides"), 'only combine="split"'),
        (spec._replace(average="active", combine="split"), "over single terms"),
        (spec._replace(side_scale=(1.0, 2.0)), "take scale"),
        (spec._replace(smoothing=0.1, others=True), "smoothing is of"),
        (spec._replace(smoothing=0.1, mining=0.1), "mining leaves some out"),
        (spec._replace(smoothing=1.0), "below 1"),
        (spec._replace(smoothing=0.1, negative=maps.Square()), "linear in the similarities"),
        (spec._replace(negative=maps.Linear(Column(0))), "numbers of rows only"),
        (spec._replace(positive=maps.Hinge(maps.Linear(Row(0)), 1)), "constants only"),
        (spec._replace(positive=maps.Linear(Row(2))), "evaluated with 2 such numbers"),
        (spec._replace(pool=Nearest(2), anchors="proxies"), "write a StripSpec"),
        (spec._replace(pool=Nearest(2), normalize=(True, False)), "a pool is of cosines"),
        (spec._replace(combine="product"), "combine must be one of 'joint'"),  # type: ignore[arg-type]
        (spec._replace(gather=("lse", "median")), "gather must be two of"),  # type: ignore[arg-type]
    ]
    for wrong, message in cases:
        for run in (engine.evaluate, engine.evaluate_densely):
            plan = Plan(wrong, ClassPairs.to_classes(torch.arange(3), 3), Spare(), row_parameters=2)
            with pytest.raises(InputError, match=message):
                run(plan, torch.eye(3), torch.eye(3), None, *torch.ones(3, 3).unbind())
    plan = Plan(spec, ClassPairs.among_samples(torch.arange(3)), Spare())
    with pytest.raises(InputError, match="a bias is of columns"):
        engine.evaluate(plan, torch.eye(3), None, torch.ones(3))
    with pytest.raises(InputError, match="normalised alike"):
        engine.evaluate(plan._replace(spec=spec._replace(normalize=(True, False))), torch.eye(3), None)
    plan = Plan(spec._replace(pool=Nearest(1)), ClassPairs.to_classes(torch.arange(3), 3), Spare())
    with pytest.raises(InputError, match="a pool is of class vectors"):
        engine.evaluate(plan, torch.eye(3), torch.eye(3), torch.ones(3))
