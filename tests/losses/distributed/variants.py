"""Every registered loss, sums and wrappers, on all ranks of a world."""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from nearfar import losses
from tests.losses.distributed.comparing import CLASSES, SIZE, equal, in_double
from tests.losses.distributed.processes import Check
from tests.losses.settings import DEFAULTS, SETTINGS, Setting


def seeded(setting: Setting, **options: Any) -> Callable[[], nn.Module]:
    return lambda: setting.make(seed=3, num_classes=CLASSES[dist.get_world_size()], embedding_size=SIZE, **options)


def every_loss() -> Iterator[tuple[str, Check]]:
    """Every registered loss: with its defaults in all worlds, with other arguments in one."""
    for setting in SETTINGS if dist.get_world_size() == 3 else DEFAULTS:
        if setting.class_level:
            yield f"{setting}, sharded", functools.partial(equal, seeded(setting), sharded=True)
            if dist.get_world_size() == 2:
                yield f"{setting}, replicated", functools.partial(equal, seeded(setting))
        else:
            yield f"{setting}", functools.partial(equal, seeded(setting))
        if dist.get_world_size() == 4 and "none" in setting.reductions and not setting.info.proxies_are_rows:
            rows = seeded(setting, reduction="none")
            yield f"{setting}, rows", functools.partial(equal, rows, sharded=setting.class_level)
    for info in losses.list_losses():
        if info.level == "towers":
            yield info.name, functools.partial(equal, lambda info=info: info.loss().double(), towers=True)
            if not info.whole_batch and dist.get_world_size() == 4:
                rows = functools.partial(info.loss, reduction="none")
                yield f"{info.name}, rows", functools.partial(equal, lambda rows=rows: rows().double(), towers=True)


def wrapped() -> Iterator[tuple[str, Check]]:
    """Sums and wrappers, over several steps, since memories remember."""
    c = CLASSES[dist.get_world_size()]
    made: dict[str, Callable[[], nn.Module]] = {
        "sum": lambda: 0.5 * losses.CircleLoss() + losses.CosFaceLoss(c, SIZE) + losses.CenterLoss(c, SIZE),
        "nested dimensions": lambda: losses.MatryoshkaLoss(losses.CosFaceLoss(c, SIZE), [2, SIZE]),
        "nested dimensions of centres": lambda: losses.MatryoshkaLoss(losses.SoftTripleLoss(c, SIZE, 3), [2, SIZE]),
        "nested dimensions of pairs": lambda: losses.MatryoshkaLoss(losses.MultiSimilarityLoss(), [2, SIZE]),
        "memory": lambda: losses.CrossBatchMemory(losses.ContrastiveLoss(), SIZE, 16),
        "memory of a whole": lambda: losses.CrossBatchMemory(losses.HistogramLoss(), SIZE, 16),
        "memory beside pairs": lambda: (
            losses.TripletMarginLoss() + losses.CrossBatchMemory(losses.NTXentLoss(), SIZE, 20)
        ),
        "memory with a miner": lambda: losses.CrossBatchMemory(losses.CircleLoss(), SIZE, 16, alike_and_not),
        "drawn negatives": lambda: losses.MarginLoss(sampling="distance_weighted", learn_beta=True, nu=0.1),
        "annealed": lambda: losses.SphereFaceLoss(c, SIZE, base=5.0),
        "one pair a class": lambda: losses.NPairsLoss(pairs="one_per_class"),
        "the hardest class": lambda: OfClasses(c, losses.TripletMarginLoss(margin=3.0)),
        "the easiest positive class": lambda: OfClasses(
            c, losses.TripletMarginLoss(mining="easy_positive", margin=3.0)
        ),
        "mined classes": lambda: OfClasses(c, losses.MultiSimilarityLoss()),
        "every positive class": lambda: OfClasses(c, losses.NTXentLoss()),
        "all classes": lambda: OfClasses(c, losses.SupConLoss()),
        "softly the nearest class": lambda: OfClasses(c, losses.NCALoss()),
        "active classes": lambda: OfClasses(c, losses.ContrastiveLoss()),
    }
    for name, make in made.items():
        yield name, functools.partial(equal, in_double(make), sharded=True, steps=3)
    views = in_double(lambda: losses.SelfSupervisedLoss(losses.NTXentLoss()))
    yield "two views", functools.partial(equal, views, towers=True)
    asymmetric = in_double(lambda: losses.SelfSupervisedLoss(losses.NTXentLoss(), symmetric=False))
    yield "two views, one way", functools.partial(equal, asymmetric, towers=True)
    yield (
        "a strip of all classes",
        functools.partial(equal, in_double(lambda: losses.StripLoss(softmax, num_classes=c, embedding_size=SIZE))),
    )


def alike_and_not(x: Tensor, labels: Tensor, memory: Tensor, memory_labels: Tensor) -> tuple[Tensor, ...]:
    """A miner that finds all pairs."""
    alike = labels[:, None] == memory_labels
    return *alike.nonzero(as_tuple=True), *(~alike).nonzero(as_tuple=True)


class OfClasses(losses.Loss):
    """What another loss makes of samples, of samples and classes: statistics of rows that no registered loss of classes
    has, but one of a user's may.
    """

    def __init__(self, classes: int, other: losses.Loss):
        super().__init__()
        self.add_classes(classes, SIZE)
        self.setting = other.spec()

    def spec(self) -> Any:
        return self.setting


def softmax(s: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
    return torch.logsumexp(s, 1) - (s * positive).sum(1)
