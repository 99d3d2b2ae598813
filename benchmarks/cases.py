"""The cases: how many rows, columns and dimensions, and the data."""

import functools
import re
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import normalize

PER_CLASS = 4  # samples of each class in a pair-level batch
NORM = 4.0  # of the embeddings, for the losses that keep it


@dataclass(frozen=True)
class Case:
    """Samples × classes ("class") or samples × samples ("pair")."""

    level: Literal["class", "pair"]
    rows: int
    columns: int
    dimension: int

    @property
    def name(self) -> str:
        """As in the CSV file and on the command line: class-256x11318x512, pair-1024x512."""
        sizes = (self.rows, self.columns, self.dimension) if self.level == "class" else (self.rows, self.dimension)
        return f"{self.level}-" + "x".join(map(str, sizes))

    @classmethod
    def parse(cls, name: str) -> "Case":
        if match := re.fullmatch(r"class-(\d+)x(\d+)x(\d+)", name):
            rows, columns, dimension = map(int, match.groups())
            return cls("class", rows, columns, dimension)
        if match := re.fullmatch(r"pair-(\d+)x(\d+)", name):
            rows, dimension = map(int, match.groups())
            return cls("pair", rows, rows, dimension)
        raise ValueError(f"{name!r} is no case: write class-ROWSxCLASSESxDIMENSION or pair-ROWSxDIMENSION")


def _class(rows: int, classes: int, dimension: int = 512) -> Case:
    return Case("class", rows, classes, dimension)


def _pair(rows: int, dimension: int = 512) -> Case:
    return Case("pair", rows, rows, dimension)


STANDARD = [
    _class(180, 100),
    _class(256, 11_318),
    _class(256, 100_000),
    _class(1024, 100_000),
    _pair(256),
    _pair(1024),
    _pair(4096),
]
# Of which a peer takes seconds, too: from few samples to many.
SMALL = [
    _class(8, 10, 64),
    _class(32, 100, 128),
    _class(180, 100),
    _class(256, 11_318),
    _pair(8, 64),
    _pair(32, 128),
    _pair(64, 128),
    _pair(256),
    _pair(1024),
]
QUICK = [_class(180, 100), _pair(256)]
CHECK = [_class(256, 11_318), _pair(1024)]
# The sweeps, which end in the largest cases.
BATCHES = [_pair(2**k, 128) for k in range(8, 16)]
CLASSES = [_class(256, c, 128) for c in (1_000, 3_000, 10_000, 30_000, 100_000, 300_000, 1_000_000)]
SCALE: list[tuple[Case, list[str]]] = [
    *((case, ["CircleLoss"]) for case in BATCHES),
    *((case, ["CosFaceLoss", "ProxyAnchorLoss"]) for case in CLASSES[:-1]),
    (CLASSES[-1], ["CosFaceLoss", "ProxyAnchorLoss", "CircleLoss"]),
]


@dataclass(frozen=True)
class Problem:
    """The data of a case: embeddings (N, D), class ids (N,), and class weights (C, D) or None."""

    case: Case
    embeddings: Tensor
    labels: Tensor
    weight: Tensor | None

    @functools.cached_property
    def view(self) -> Tensor:
        """Another view (N, D) of the same samples, for losses of two towers; it takes gradients too."""
        noise = torch.randn(self.embeddings.shape, generator=torch.Generator().manual_seed(1))
        return (NORM * normalize(normalize(self.embeddings.detach()) + normalize(noise))).requires_grad_()

    def vectors(self, per_class: int) -> Tensor:
        """Class weights (C · per_class, D) for losses with several to a class, which come one after the other."""
        assert self.weight is not None
        if per_class == 1:
            return self.weight
        several = self.weight.repeat_interleave(per_class, 0)
        noise = torch.randn(several.shape, generator=torch.Generator().manual_seed(per_class))
        return several.add_(noise, alpha=0.5 * (2 / self.case.columns) ** 0.5)


def problem(case: Case, seed: int = 0) -> Problem:
    """As in the midst of training: a cosine of about 0.7 with the own class's weight, of 0.5 between two samples of
    a class, and of 0 else.
    """
    generator = torch.Generator().manual_seed(seed)

    def gaussian(rows: int) -> Tensor:
        return torch.randn(rows, case.dimension, generator=generator)

    weight = None
    if case.level == "class":
        weight = gaussian(case.columns).mul_((2 / case.columns) ** 0.5)
        labels = torch.randint(case.columns, (case.rows,), generator=generator)
        centres = weight[labels]
    else:
        labels = torch.arange(case.rows) // PER_CLASS
        centres = gaussian(-(-case.rows // PER_CLASS))[labels]
    embeddings = NORM * normalize(normalize(centres) + normalize(gaussian(case.rows)))
    return Problem(case, embeddings.requires_grad_(), labels, weight)
