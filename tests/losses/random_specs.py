"""Random settings of the formula, and the ways to compute them: the oracle, the engine in one process, and on ranks.

Shapes: N rows, M columns as the pairs count them, K vectors of each, D dimensions.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import torch
from torch import Tensor

from nearfar.losses import engine
from nearfar.losses.distributed.sharing import Shard, Spread
from nearfar.losses.engine import angles, dense, maps
from nearfar.losses.engine.maps import Column, Row
from nearfar.losses.engine.memory import Spare
from nearfar.losses.engine.pairs import ClassPairs, MaskPairs, Pairs, TowerPairs
from nearfar.losses.engine.plan import Plan, Sizes
from nearfar.losses.engine.pools import Nearest, Relaxed
from nearfar.losses.engine.reductions import Gather
from nearfar.losses.engine.spec import Act, Average, Combine, LossSpec, innermost
from tests.losses.rank_threads import RankThread, on_ranks

CLASSES, DIMENSION, REFERENCES = 7, 6, 9
ROW_NUMBERS, COLUMN_NUMBERS = 2, 1
KINDS = ("samples", "references", "classes", "proxies", "towers")
Run = Callable[..., Tensor]


def draw_maps(draw: random.Random) -> tuple[maps.Map, maps.Map]:
    """Two maps of one loss, with or without numbers of the rows and columns."""
    borders = torch.linspace(0.5, -0.5, 5, dtype=torch.float64)
    drift = torch.tensor(0.3, dtype=torch.float64)
    choices: Sequence[tuple[maps.Map, maps.Map]] = [
        (maps.Linear(-3.0), maps.Linear(3.0, 0.3)),
        (maps.Linear(-3.0, Column(0)), maps.Linear(3.0)),
        (maps.Linear(Row(1), 0.5), maps.Linear(Row(0), Row(1))),
        (maps.Linear(Row(1), Column(0)), maps.Linear(Row(1))),
        (maps.SelfPaced(8.0, 1.25, 0.75, True), maps.SelfPaced(8.0, -0.25, 0.25, False)),
        (maps.SelfPaced(8.0, 1.25, Row(0), True), maps.SelfPaced(8.0, -0.25, Row(1), False)),
        (maps.SelfPaced(8.0, Column(0), Row(0), True), maps.SelfPaced(8.0, Row(1), 0.1, False)),
        (angles.ArcMargin(4.0, 0.5), maps.Linear(4.0)),
        (angles.ArcMargin(4.0, Column(0)), maps.Curriculum(4.0, 0.2, Row(0))),
        (angles.ArcMargin(4.0, Row(1), easy=True), maps.Linear(4.0)),
        (angles.AngularSlack(4.0, 0.1), maps.Linear(4.0)),
        (angles.CombinedMargin(4.0, 1.2, 0.3, 0.1), maps.Linear(4.0)),
        (angles.MultiplicativeMargin(0.5, 3.0, 0.4, Row(0), Column(0)), maps.Linear(0.5)),
        (angles.QualityMargin(4.0, 0.3, Row(1)), maps.Linear(4.0)),
        (maps.Distance("l2"), maps.Distance("l2", -1, 0.7)),
        (maps.Distance("squared_l2"), maps.Distance("cosine", -1, 0.7)),
        (maps.Hinge(maps.Distance("l2", 1, -0.4), 2), maps.Hinge(maps.Distance("l2", -1, 1.3), 1)),
        (maps.Hinge(maps.Linear(-1.0, 0.9), 2), maps.Hinge(maps.Linear(1.0, 0.1), 1)),
        (maps.Interpolated(borders), maps.Interpolated(-borders)),
        (maps.ShiftedHinge(-1, borders[0], drift), maps.ShiftedHinge(1, borders[3], drift)),
        (maps.Softplus(-1), maps.Softplus(1)),
        (maps.Linear(-2.0, 1.0), maps.Square()),
    ]
    return draw.choice(choices)


def draw_spec(draw: random.Random, kind: str) -> LossSpec:
    """Any spec, with a meaning or without."""
    pools = [None, None, Nearest(2), Relaxed(2, 0.2, 0.05)] if kind == "classes" else [None]
    normalize = [(True, True)] * 4 + [(False, False)]
    if kind not in ("samples", "towers"):  # one set has one normalisation
        normalize += [(False, True)]
    combine: Any = draw.choice(get_args(Combine))
    averages = get_args(Average) if draw.random() < 0.7 else ("both", "all")
    gather: Any = draw.choice(get_args(Gather)), draw.choice(get_args(Gather))
    if draw.random() < 0.1:  # of two picks nothing is kept
        gather = draw.choice(("max", "min")), draw.choice(("max", "min"))
    spec = LossSpec(
        *draw_maps(draw),
        gather=gather,
        combine=combine,
        act=draw.choice(get_args(Act)),
        side_scale=draw.choice([(1.0, 1.0), (0.5, 2.0)]) if combine == "split" else (1.0, 1.0),
        scale=draw.choice([1.0, 0.3]),
        others=draw.random() < 0.3,
        mining=draw.choice([None, None, 0.1, -0.2]),
        average=draw.choice(averages),
        normalize=draw.choice(normalize),
        pool=draw.choice(pools),
    )
    if spec.average in ("sides", "active") and draw.random() < 0.6:  # which only this setting allows
        spec = spec._replace(combine="split")
        if spec.average == "active":
            spec = spec._replace(gather=("sum", "sum"), act="identity")
    if _of_cosines(spec) and draw.random() < 0.9:
        spec = spec._replace(normalize=(True, True))
    if draw.random() < 0.1:  # label smoothing, which few settings have a meaning with
        spec = spec._replace(smoothing=0.1, average=draw.choice(("all", "both", "positive")))
        if draw.random() < 0.7:
            spec = spec._replace(
                combine="joint", gather=("lse", "lse"), others=False, mining=None, side_scale=(1.0, 1.0)
            )
    return spec


def _of_cosines(spec: LossSpec) -> bool:
    return any(innermost(function).of_cosines for function in (spec.positive, spec.negative))


def draw_sizes(draw: random.Random, pairs: int) -> Sizes:
    """Of blocks: as they are, small and ragged, or, of few pairs, one each."""
    ragged = Sizes(
        tile=16, square=4, widest=5, fewest_rows=3, whole=draw.choice([0, 2**22]), turned=draw.choice([1, 9])
    )
    return draw.choice([Sizes(), ragged, Sizes(tile=1, whole=0) if pairs <= 150 else ragged])


@dataclass
class Part:
    """The rows and the columns of the whole problem that a rank has."""

    rows: slice
    columns: slice


class Problem:
    """Tensors and pairs of one kind: from class ids or from masks, perhaps with a bias and with weights."""

    def __init__(self, number: int):
        draw, generator = random.Random(number), torch.Generator().manual_seed(number)
        self.draw = draw
        self.kind = draw.choice(KINDS)
        self.spec = draw_spec(draw, self.kind)
        self.reduction: Any = draw.choice(["mean", "sum", "none"])
        samples = draw.choice([5, 12, 23])
        labels = torch.randint(0, CLASSES, (samples,), generator=generator)
        self.ids, self.column_ids = {
            "samples": (labels, labels),
            "references": (labels, torch.arange(REFERENCES) % (CLASSES - 2)),
            "classes": (labels, torch.arange(CLASSES)),
            "proxies": (torch.arange(CLASSES), labels),
            "towers": (torch.arange(2 * samples) % samples,) * 2,
        }[self.kind]
        n, m = len(self.ids), len(self.column_ids)
        self.one_set = self.kind in ("samples", "towers")
        self.k = 1 if self.spec.pool is None else self.spec.pool.size

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator, dtype=torch.float64)

        self.x = normal(n, DIMENSION)
        self.y = None if self.one_set else normal(m * self.k, DIMENSION)
        positive = self.ids[:, None] == self.column_ids
        compared = ~torch.eye(n, dtype=torch.bool) if self.one_set else torch.ones_like(positive)
        if self.kind == "towers":
            compared = (torch.arange(n) < samples)[:, None] != (torch.arange(n) < samples)
        self.masked = self.kind != "towers" and draw.random() < 0.3
        self.positive, self.negative = positive & compared, ~positive & compared
        if self.masked:
            number_of_pair = torch.randint(0, 4, positive.shape, generator=generator)
            self.positive, self.negative = (number_of_pair == 0) & compared, (number_of_pair > 1) & compared
        weights = torch.rand(2, max(n, m), generator=generator, dtype=torch.float64) + 0.2
        self.row_weight = weights[0, :n] if draw.random() < 0.3 else None
        if self.row_weight is not None and draw.random() < 0.5:
            self.row_weight = self.row_weight * (torch.rand(n, generator=generator) > 0.3)
        self.column_weight = weights[1, :m] if draw.random() < 0.2 else None
        numbers = torch.rand(3, max(n, m), generator=generator, dtype=torch.float64) + 0.2
        self.numbers = [numbers[0, :n], numbers[1, :n], numbers[2, :m]]
        biased = not self.one_set and self.spec.pool is None and not _of_cosines(self.spec)
        self.bias = normal(m) if biased and draw.random() < 0.3 else None
        self.upstream = normal(n)
        self.sizes, self.budget = draw_sizes(draw, n * m), draw.choice([0, 700, 10**8])
        self.world = draw.choice([2, 3, 5])

    @property
    def leaves(self) -> list[Tensor]:
        """Copies of everything that takes a gradient."""
        tensors = [self.x, *(t for t in (self.y, self.bias) if t is not None), *self.numbers]
        return [t.clone().requires_grad_() for t in tensors]

    def split(self, leaves: Sequence[Tensor]) -> tuple[Tensor, Tensor | None, Tensor | None, list[Tensor]]:
        """Of such copies: rows, columns, bias and numbers."""
        rest = list(leaves)
        return (
            rest.pop(0),
            None if self.y is None else rest.pop(0),
            None if self.bias is None else rest.pop(0),
            rest,
        )

    def differentiated(self, run: Run, part: slice = slice(None)) -> list[Tensor]:
        """The value that `run` makes of the leaves, and the gradients by them; the rows of reduction "none" are a
        part.
        """
        leaves = self.leaves
        value = run(leaves)
        upstream = self.upstream[part] if value.ndim else torch.tensor(1.7, dtype=torch.float64)
        if not value.requires_grad:
            return [value, *(torch.zeros_like(t) for t in leaves)]
        grads = torch.autograd.grad(value, leaves, upstream, allow_unused=True, materialize_grads=True)
        return [value.detach(), *grads]

    def by_oracle(self) -> list[Tensor]:
        def run(leaves: Sequence[Tensor]) -> Tensor:
            x, y, bias, numbers = self.split(leaves)
            return dense.evaluate(
                self.spec,
                x,
                y,
                self.positive,
                self.negative,
                bias=bias,
                row_numbers=numbers[:ROW_NUMBERS],
                column_numbers=numbers[ROW_NUMBERS:],
                row_weight=self.row_weight,
                column_weight=self.column_weight,
                reduction=self.reduction,
            )

        return self.differentiated(run)

    # In one process

    def pairs(self) -> Pairs:
        if self.masked:
            return self._mask_pairs(Part(slice(0, len(self.ids)), slice(0, len(self.column_ids))))
        if self.kind == "towers":
            return TowerPairs(len(self.ids) // 2, torch.device("cpu"))
        if self.kind == "samples":
            return ClassPairs.among_samples(self.ids)
        if self.kind == "references":
            return ClassPairs.to_references(self.ids, self.column_ids)
        if self.kind == "proxies":
            return ClassPairs.of_classes(self.column_ids, CLASSES)
        return ClassPairs.to_classes(self.ids, CLASSES)

    def _mask_pairs(self, part: Part) -> MaskPairs:
        positive, negative = (mask[part.rows, part.columns] for mask in (self.positive, self.negative))
        return MaskPairs(lambda i, j: (positive[i, j], negative[i, j]), *positive.shape, block=7)

    def plan(self, pairs: Pairs, part: Part | None = None) -> Plan:
        row_weight, column_weight = self.row_weight, self.column_weight
        if part is not None:
            row_weight = None if row_weight is None else row_weight[part.rows]
            column_weight = None if column_weight is None else column_weight[part.columns]
        return Plan(
            self.spec,
            pairs,
            Spare(),
            row_weight,
            column_weight,
            self.reduction,
            self.budget,
            self.sizes,
            ROW_NUMBERS,
        )

    def by_engine(self, evaluate: Run = engine.evaluate) -> list[Tensor]:
        def run(leaves: Sequence[Tensor]) -> Tensor:
            x, y, bias, numbers = self.split(leaves)
            return evaluate(self.plan(self.pairs()), x, y, bias, *numbers)

        return self.differentiated(run)

    def by_plain_plan(self) -> list[Tensor]:
        """By the oracle, with the masks that the pairs tell."""
        return self.by_engine(engine.evaluate_densely)

    # On ranks

    def by_ranks_with_rows(self) -> list[Tensor]:
        """Gathered: every rank has some of the rows, perhaps none, and all columns."""
        cuts = sorted(self.draw.randint(0, len(self.ids)) for _ in range(self.world - 1))
        edges = [0, *cuts, len(self.ids)]

        def of_rank(ranks: RankThread) -> list[Tensor]:
            part = Part(slice(edges[ranks.rank], edges[ranks.rank + 1]), slice(0, len(self.column_ids)))
            if self.masked:
                pairs: Any = self._mask_pairs(part)
            elif self.kind == "samples":
                pairs = ClassPairs.of_part(self.ids, part.rows)
            elif self.kind == "classes":
                pairs = ClassPairs.to_classes(self.ids[part.rows], CLASSES)
            else:
                pairs = ClassPairs.to_references(self.ids[part.rows], self.column_ids)
            spread: Any = ranks
            pairs.spread = Spread(spread, "rows")
            return self.differentiated(lambda leaves: self._of_part(leaves, pairs, part), part.rows)

        values, *grads = zip(*on_ranks(self.world, of_rank), strict=True)
        value = torch.cat(values) if self.reduction == "none" else torch.stack(values).sum()
        return [value, *(torch.stack(parts).sum(0) for parts in grads)]

    def by_ranks_with_columns(self) -> list[Tensor]:
        """Sharded: every rank has all rows and some of the columns, perhaps none."""

        def of_rank(ranks: RankThread) -> list[Tensor]:
            communicator: Any = ranks
            shard = Shard(communicator, len(self.column_ids))
            part = Part(slice(0, len(self.ids)), slice(shard.first, shard.stop))
            positives, negatives = self.positive.sum(1), self.negative.sum(1)
            if self.masked:
                pairs: Any = self._mask_pairs(part)
            else:  # as nearfar.losses.distributed makes them
                present = shard.held(self.ids)
                column = torch.where(present, self.ids - shard.first, 0)
                pairs = ClassPairs(column, column + present.long(), shard.stop - shard.first)
            pairs.positives, pairs.negatives = positives, negatives
            pairs.spread = Spread(communicator, "columns", shard)
            return self.differentiated(lambda leaves: self._of_part(leaves, pairs, part))

        values, *grads = zip(*on_ranks(self.world, of_rank), strict=True)
        assert all(torch.equal(value, values[0]) or bool(value.isnan().any()) for value in values)
        return [values[0], *(torch.stack(parts).sum(0) for parts in grads)]

    def _of_part(self, leaves: Sequence[Tensor], pairs: Pairs, part: Part) -> Tensor:
        x, y, bias, numbers = self.split(leaves)
        columns = x if y is None else y
        vectors = slice(part.columns.start * self.k, part.columns.stop * self.k)
        row_numbers = [number[part.rows] for number in numbers[:ROW_NUMBERS]]
        column_numbers = [number[part.columns] for number in numbers[ROW_NUMBERS:]]
        return engine.evaluate(
            self.plan(pairs, part),
            x[part.rows],
            columns[vectors],
            None if bias is None else bias[part.columns],
            *row_numbers,
            *column_numbers,
        )

    def executors(self) -> list[Callable[[], list[Tensor]]]:
        """All that can compute a problem of this kind."""
        result = [self.by_engine, self.by_plain_plan]
        if self.kind != "towers":
            result.append(self.by_ranks_with_rows)
        if self.kind == "classes" or (self.masked and not self.one_set):
            result.append(self.by_ranks_with_columns)
        return result

    def __str__(self) -> str:
        return (
            f"{self.kind} {len(self.ids)} x {len(self.column_ids)} masked={self.masked} bias={self.bias is not None} "
            f"weights={self.row_weight is not None, self.column_weight is not None} {self.reduction} {self.sizes} "
            f"budget={self.budget} world={self.world}\n{self.spec}"
        )


def disagreement(results: list[Tensor], expected: list[Tensor]) -> str:
    """What of (value, gradients) differs, or nothing."""
    for k, (a, b) in enumerate(zip(results, expected, strict=True)):
        if not torch.allclose(a, b, rtol=1e-8, atol=1e-9, equal_nan=True):
            return f"{'value' if k == 0 else f'gradient {k}'} differs by {float((a - b).abs().max()):.3g}"
    return ""
