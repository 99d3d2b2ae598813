"""The sizes of a training run and of its hardware."""

import math
from dataclasses import dataclass
from typing import Literal

from nearfar.errors import InputError

Kind = Literal["softmax", "proxy", "pair"]
Optimiser = Literal["adamw", "adam", "sgd", "rmsprop"]
FLOAT, LONG = 4, 8  # bytes


@dataclass(frozen=True)
class Item:
    """A line of a plan: bytes or seconds, and what they are used for."""

    name: str
    amount: float


@dataclass(frozen=True)
class Total:
    """Lines of a plan and their sum."""

    items: tuple[Item, ...]

    @property
    def sum(self) -> float:
        return sum(item.amount for item in self.items)


@dataclass(frozen=True)
class Job:
    """The sizes of a training run that determine its memory and traffic.

    Args:
        classes: C; ignored by pair losses.
        dimension: D.
        batch: B, the global batch.
        world: N.
        kind: "softmax": samples are compared with class vectors (ArcFace, NormFace, Circle, Proxy-NCA, SoftTriple ...).
            "proxy": class vectors with samples (Proxy-Anchor). "pair": samples with each other.
        sharded: whether the class vectors are divided among the processes; otherwise each process has all of them.
        sample_rate: fraction of the negative classes that a step compares with.
        vectors_per_class: K.
        optimiser: the optimiser of the network and of the class vectors.
        parameters: P.
        activations: bytes that the network keeps for a sample until its backward pass.
        operations: floating-point operations of the network's forward pass for a sample.
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
    activations: float = 90e6  # ResNet-50 at 224 x 224 in float32
    operations: float = 8.2e9

    def __post_init__(self) -> None:
        for name in ("classes", "dimension", "batch", "world", "vectors_per_class"):
            if getattr(self, name) < 1:
                raise InputError(f"{name}={getattr(self, name)} must be at least 1")
        for name in ("parameters", "activations", "operations"):
            if getattr(self, name) < 0:
                raise InputError(f"{name}={getattr(self, name)} must not be negative")
        if not 0 < self.sample_rate <= 1:
            raise InputError(f"sample_rate={self.sample_rate} must be a fraction of the classes, above 0 and up to 1")
        if self.batch < self.world:
            raise InputError(f"batch={self.batch:,} must be at least one sample for each of {self.world:,} processes")

    @property
    def samples(self) -> int:
        """The largest number of samples of a process in a batch."""
        return math.ceil(self.batch / self.world)

    @property
    def rows(self) -> int:
        """The largest number of class vectors that a process holds."""
        if self.kind == "pair":
            return 0
        return (math.ceil(self.classes / self.world) if self.sharded else self.classes) * self.vectors_per_class

    @property
    def table(self) -> int:
        """The bytes of these class vectors."""
        return self.rows * self.dimension * FLOAT

    @property
    def rows_in_step(self) -> int:
        """Class vectors that a process compares with in a step: its share, also if it holds all of them."""
        if self.kind == "pair":
            return 0
        share = math.ceil(self.classes / self.world) * self.vectors_per_class
        if self.sample_rate == 1:
            return share
        positives = min(share, self.samples * self.vectors_per_class)  # classes of the batch
        return min(share, positives + math.ceil(share * self.sample_rate))


@dataclass(frozen=True)
class Hardware:
    """The hardware of a process. The defaults are the sustained rates of one A100 with 80 GB and a 200 Gbit/s adapter.

    Args:
        memory: bytes.
        operations: floating-point operations per second of matrix products (TF32).
        bandwidth: bytes per second of its memory.
        link: bytes per second that it sends to other processes.
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
