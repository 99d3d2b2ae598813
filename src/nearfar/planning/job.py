"""What is trained, and on what."""

import math
from dataclasses import dataclass
from typing import Literal

from nearfar.errors import InputError

Kind = Literal["softmax", "proxy", "pair"]
Optimiser = Literal["adamw", "adam", "sgd", "rmsprop"]
FLOAT, LONG = 4, 8  # bytes


@dataclass(frozen=True)
class Item:
    """A line of a plan: bytes, or seconds, and what for."""

    name: str
    amount: float


@dataclass(frozen=True)
class Total:
    """Lines and their sum."""

    items: tuple[Item, ...]

    @property
    def sum(self) -> float:
        """Of all lines."""
        return sum(item.amount for item in self.items)


@dataclass(frozen=True)
class Job:
    """A training run, as far as its memory and traffic go.

    Args:
        classes: C; of a loss of pairs, they do not matter.
        dimension: D.
        batch: B, of all processes together.
        world: N.
        kind: "softmax": samples are compared with class vectors (ArcFace, NormFace, Circle, Proxy-NCA, SoftTriple ...).
            "proxy": class vectors with samples (Proxy-Anchor). "pair": samples with each other.
        sharded: whether each process has a part of the class vectors, or all of them.
        sample_rate: share of the other classes that take part in a step.
        vectors_per_class: K.
        optimiser: of everything.
        parameters: P.
        activations: bytes that the network keeps for a sample until its backward pass.
        operations: of the network for a sample, forward (a multiplication and an addition are two).
    """

    classes: int
    dimension: int
    batch: int
    world: int = 1
    kind: Kind = "softmax"
    sharded: bool = True
    sample_rate: float = 1.0
    vectors_per_class: int = 1
    optimiser: Optimiser = "adamw"
    parameters: float = 25.6e6  # ResNet-50
    activations: float = 90e6  # of it, at 224 x 224, in float32
    operations: float = 8.2e9

    def __post_init__(self) -> None:
        for name in ("classes", "dimension", "batch", "world", "vectors_per_class"):
            if getattr(self, name) < 1:
                raise InputError(f"{name}={getattr(self, name)} must be at least 1")
        for name in ("parameters", "activations", "operations"):
            if getattr(self, name) < 0:
                raise InputError(f"{name}={getattr(self, name)} must not be negative")
        if not 0 < self.sample_rate <= 1:
            raise InputError(f"sample_rate={self.sample_rate} is a share of the classes, above 0 and up to 1")
        if self.batch < self.world:
            raise InputError(f"a batch of {self.batch:,} gives not every one of {self.world:,} processes a sample")

    @property
    def samples(self) -> int:
        """Of a process, in a batch; the most that one has."""
        return math.ceil(self.batch / self.world)

    @property
    def rows(self) -> int:
        """Class vectors that a process has; the most that one has."""
        if self.kind == "pair":
            return 0
        return (math.ceil(self.classes / self.world) if self.sharded else self.classes) * self.vectors_per_class

    @property
    def table(self) -> int:
        """Bytes of them."""
        return self.rows * self.dimension * FLOAT

    @property
    def rows_in_step(self) -> int:
        """Class vectors that a process compares with in a step: its share, whether it has others too or not."""
        if self.kind == "pair":
            return 0
        share = math.ceil(self.classes / self.world) * self.vectors_per_class
        if self.sample_rate == 1:
            return share
        own = min(share, math.ceil(self.batch / self.world) * self.vectors_per_class)  # classes of the batch
        return min(share, own + math.ceil(share * self.sample_rate))


@dataclass(frozen=True)
class Hardware:
    """What a process has: by default, one A100 of 80 GB in a machine with a 200 Gbit/s adapter for each, at rates that
    programs sustain rather than those of the data sheet.

    Args:
        memory: bytes.
        operations: a second, of matrix products in float32 (TF32).
        bandwidth: bytes a second, of its memory.
        link: bytes a second that it sends to others.
        latency: seconds of a message between two processes.
    """

    memory: float = 80e9
    operations: float = 60e12
    bandwidth: float = 1.3e12
    link: float = 20e9
    latency: float = 20e-6

    def __post_init__(self) -> None:
        for name in ("memory", "operations", "bandwidth", "link"):
            if not getattr(self, name) > 0:
                raise InputError(f"{name}={getattr(self, name)} must be positive")
        if self.latency < 0:
            raise InputError(f"latency={self.latency} must not be negative")
