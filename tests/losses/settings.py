"""Every registered loss, in the settings that the tests try, and the same loss as its naive reference sees it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from nearfar import losses
from tests.reference import REFERENCES, Case

CLASSES, SIZE = 5, 6


def by_class(classes: int) -> Tensor:
    """A number for every class."""
    return torch.linspace(0.1, 0.6, classes, dtype=torch.float64)


# Arguments besides the defaults, which are always tried too.
ARGUMENTS: dict[str, list[dict[str, Any]]] = {
    "AngularLoss": [{"alpha": 0.9, "npair_weight": 2.0}],
    "CenterLoss": [{"loss_weight": 0.003}],
    "DynamicSoftMarginLoss": [{"num_bins": 3, "momentum": 0.5, "min_val": -1.5}],
    "GeneralizedLiftedStructureLoss": [{"neg_margin": 0.5, "pos_margin": 0.7}],
    "HistogramLoss": [{"n_bins": 7}],
    "IntraPairVarianceLoss": [{"pos_eps": 0.3, "neg_eps": 0.2}],
    "LiftedStructureLoss": [{"neg_margin": 0.5, "pos_margin": 0.7}],
    "NCALoss": [{"softmax_scale": 9.0}],
    "SignalToNoiseRatioContrastiveLoss": [{"pos_margin": 0.2, "neg_margin": 1.7}],
    "ThresholdConsistentMarginLoss": [
        {"lambda_plus": 2.0, "lambda_minus": 0.5, "margin_plus": 0.7, "margin_minus": 0.1}
    ],
    "TupletMarginLoss": [{"margin": 0.3, "scale": 8.0}],
    "AMSoftmaxLoss": [{"margin": 0.2}, {"scale": 8.0, "margin": by_class}],
    "AdaFaceLoss": [{"margin": 0.3, "scale": 8.0, "h": 3.0}],
    "ArcFaceLoss": [
        {"margin": 2.0, "scale": 8.0},
        {"easy_margin": True},
        {"margin": 0.0},
        {"margin": by_class, "label_smoothing": 0.2},
    ],
    "CircleLoss": [
        {"m": 0.25, "gamma": 1024.0},
        {"O_p": 0.9, "O_n": 0.1, "delta_p": 0.6, "delta_n": 0.3, "gamma": 10.0},
        {"slope_p": 0.5, "slope_n": 3.0, "gamma": 20.0},
        {"num_classes": CLASSES, "embedding_size": SIZE, "m": 0.25, "gamma": 256.0},
        {"num_classes": CLASSES, "embedding_size": SIZE, "m": by_class, "gamma": 16.0},
    ],
    "CombinedMarginLoss": [{"m1": 1.35, "m2": 0.0}, {"m1": 3.0, "m2": 0.3, "m3": 0.2, "scale": 16.0}],
    "ContrastiveLoss": [
        {"power": 1},
        {"pos_margin": 0.3, "neg_margin": 1.2, "power": 2, "distance": "squared_l2"},
        {"pos_margin": 0.2, "neg_margin": 0.9, "power": 1, "distance": "cosine"},
    ],
    "CosFaceLoss": [
        {"scale": 1024.0},
        {"scale": 8.0, "margin": by_class},
        {"scale": 8.0, "learnable": True, "label_smoothing": 0.1},
        {"scale": 8.0, "learnable": True, "margin": by_class},
    ],
    "CurricularFaceLoss": [{"margin": 1.0, "scale": 8.0}],
    "FastAPLoss": [{"num_bins": 3}],
    "L2SoftmaxLoss": [{"scale": 4.0, "learnable": True}, {"scale": 4.0, "bias": False}],
    "LargeMarginSoftmaxLoss": [{"margin": 2.0, "base": 0.0}, {"margin": 1.35, "scale": 2.0, "base": 1.0}],
    "MagFaceLoss": [{"l_a": 1.0, "u_a": 4.0, "l_margin": 0.2, "u_margin": 1.5, "scale": 8.0, "lambda_g": 2.0}],
    "MarginLoss": [
        {"beta": 0.9, "nu": 0.3, "learn_beta": True},
        {"num_classes": CLASSES, "learn_beta": True, "nu": 0.1},
    ],
    "MultiSimilarityLoss": [
        {"epsilon": None},
        {"learn_base": True},
        {"alpha": 4.0, "beta": 20.0, "base": 0.3, "epsilon": -0.05},
    ],
    "NPairsLoss": [{"l2_weight": 0.0}],
    "NTXentLoss": [{"temperature": 0.001}, {"temperature": 0.2, "learnable": True}],
    "NormFaceLoss": [{"scale": 1024.0}, {"scale": 8.0, "learnable": True, "label_smoothing": 0.1}],
    "PNPLoss": [
        {"variant": "Ds"},
        {"variant": "Dq", "alpha": 2.0},
        {"variant": "Iu"},
        {"variant": "Ib", "anneal": 0.1},
    ],
    "ProxyAnchorLoss": [{"margin": 0.3, "alpha": 1024.0}, {"proxies_per_class": 3}],
    "ProxyNCALoss": [{"exclude_positive": True}, {"softmax_scale": 9.0}],
    "RankedListLoss": [{"margin": 0.6, "Tn": 2.0, "imbalance": 0.3, "alpha": 1.4, "Tp": 1.0}],
    "RecallAtKLoss": [{"ks": (1, 3), "rank_temperature": 0.1, "k_temperature": 0.5}],
    "SmoothAPLoss": [{"temperature": 0.2}],
    "SoftTripleLoss": [{"centers_per_class": 1}, {"centers_per_class": 3, "la": 5.0, "margin": 0.2, "tau": 0.0}],
    "SoftmaxLoss": [{"bias": False}, {"label_smoothing": 0.3}],
    "SphereFaceLoss": [{"margin": 1.0}, {"margin": 3.5, "scale": 2.0, "base": 0.0, "lambda_min": 0.0}],
    "SubCenterArcFaceLoss": [{"sub_centers": 1, "scale": 8.0}],
    "SupConLoss": [{"temperature": 0.01}, {"temperature": 0.2, "learnable": True}],
    "TripletMarginLoss": [
        {"mining": "all"},
        {"mining": "all", "distance": "cosine", "smooth_loss": True},
        {"mining": "semihard", "margin": 0.4},
        {"mining": "semihard", "smooth_loss": True, "distance": "squared_l2"},
        {"mining": "easy_positive"},
        {"distance": "squared_l2"},
        {"distance": "cosine", "smooth_loss": True},
        {"margin": 0.0, "smooth_loss": True},
    ],
    "UnifiedLoss": [{"gamma": 1024.0}, {"num_classes": CLASSES, "embedding_size": SIZE}],
}


@dataclass(frozen=True)
class Setting:
    name: str
    arguments: dict[str, Any]

    def __str__(self) -> str:
        shown = {k: v.__name__ if callable(v) else v for k, v in self.arguments.items() if k != "embedding_size"}
        return ",".join([self.name, *(f"{k}={v}" for k, v in shown.items())])

    @property
    def info(self) -> losses.LossInfo:
        return next(info for info in losses.list_losses() if info.name == self.name)

    @property
    def class_level(self) -> bool:
        level = self.info.level
        return level in ("class", "proxy") or (level == "pair or class" and "num_classes" in self.arguments)

    @property
    def needs_class_ids(self) -> bool:
        """A number of the sample's class, or exactly one target per row."""
        return self.make().needs_class_ids

    @property
    def one_number(self) -> bool:
        """A loss of the batch as a whole, without rows and weights."""
        return self.info.whole_batch

    @property
    def reductions(self) -> tuple[str, ...]:
        return ("mean",) if self.one_number else ("mean", "sum", "none")

    @property
    def takes_references(self) -> bool:
        """Whether samples may be compared with another set."""
        return not self.class_level and self.info.takes_references

    def make(
        self, seed: int = 0, num_classes: int = CLASSES, embedding_size: int = SIZE, **options: Any
    ) -> losses.Loss:
        arguments = dict(self.arguments)
        if self.class_level:
            arguments |= {"num_classes": num_classes, "embedding_size": embedding_size}
        arguments = {k: v(num_classes) if callable(v) else v for k, v in arguments.items()}
        torch.manual_seed(seed)
        loss = self.info.loss(**arguments, **options).double()
        if loss.bias is not None:
            torch.nn.init.normal_(loss.bias)
        return loss

    def reference(self, loss: losses.Loss, labels: Tensor | None = None) -> Callable[[Case], tuple[Tensor, Tensor]]:
        """The naive reference with the same arguments, and with the loss's own state."""
        ours_alone = ("num_classes", "embedding_size", "bias", "learnable", "learn_beta", "learn_base")
        arguments = {k: v for k, v in self.arguments.items() if k not in ours_alone}
        arguments = {k: getattr(loss, k) if callable(v) else v for k, v in arguments.items()}
        if loss.logit_scale is not None:
            inverse = "temperature" in arguments
            arguments["temperature" if inverse else "scale"] = (loss.logit_scale * (-1 if inverse else 1)).exp()
        if "learn_base" in self.arguments:
            arguments["base"] = loss.base
        if isinstance(loss, losses.L2SoftmaxLoss):
            arguments["scale"] = loss.scale
        elif isinstance(loss, losses.RankedListLoss):
            arguments = {"margin": 0.4, "Tn": 10.0} | arguments
        elif isinstance(loss, losses.AdaFaceLoss):
            arguments |= {"mean": loss.batch_mean, "std": loss.batch_std}
        elif isinstance(loss, losses.CurricularFaceLoss):
            arguments["t"] = loss.t
        elif isinstance(loss, losses.CenterLoss):
            weight = arguments.pop("loss_weight", 1.0)
            return lambda case: tuple(weight * t for t in REFERENCES[self.name](case, **arguments))  # type: ignore[return-value]
        elif isinstance(loss, losses.DynamicSoftMarginLoss):
            arguments["histogram"] = loss.histogram.clone() if bool(loss.histogram.any()) else None
        elif isinstance(loss, losses.MarginLoss):
            arguments |= {"beta": loss.beta, "labels": labels if self.needs_class_ids else None}
        return lambda case: REFERENCES[self.name](case, **arguments)

    def case(self, loss: losses.Loss, x: Tensor, labels: Tensor, sample_weight: Tensor | None = None) -> Case:
        """What the loss sees, spelt out pair by pair."""
        n = len(x)
        if isinstance(loss, losses.CenterLoss):
            positive = labels[:, None] == torch.arange(len(loss.centers))
            return Case(x, loss.centers, positive, ~positive, sample_weight)
        if self.class_level:
            assert loss.weight is not None
            positive = labels[:, None] == torch.arange(len(loss.weight) // loss.vectors_per_class)
            return Case(x, loss.weight, positive, ~positive, sample_weight, loss.bias)
        positive = torch.tensor(
            [[bool(labels[i] == labels[j]) and i != j for j in range(n)] for i in range(n)]
        ).reshape(n, n)
        negative = torch.tensor([[bool(labels[i] != labels[j]) for j in range(n)] for i in range(n)]).reshape(n, n)
        return Case(x, x, positive, negative, sample_weight)


SETTINGS = [
    Setting(info.name, arguments)
    for info in losses.list_losses()
    if info.level != "towers"
    for arguments in [{}, *ARGUMENTS.get(info.name, [])]
]
REDUCED = [(s, reduction) for s in SETTINGS for reduction in s.reductions if reduction != "sum"]
DEFAULTS = [s for s in SETTINGS if not s.arguments or (s.class_level and "num_classes" in s.arguments)]
PAIRED = [s for s in DEFAULTS if s.name != "CenterLoss"]  # whose samples are compared with something
ANY_PAIRS = [s for s in SETTINGS if not s.needs_class_ids]


def parameters(loss: losses.Loss, x: Tensor) -> list[Tensor]:
    """Everything that takes a gradient."""
    return [x, *loss.parameters()]


def unit(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def inputs() -> dict[str, tuple[Tensor, Tensor]]:
    """Embeddings and class ids below CLASSES: ordinary, ragged and adversarial."""
    identical = unit(1, SIZE).repeat(6, 1)
    opposite = torch.cat([unit(3, SIZE), -unit(3, SIZE)])
    zero = unit(6, SIZE)
    zero[2] = 0
    return {
        "random": (unit(12, SIZE), torch.arange(12) // 3),
        "ragged": (unit(11, SIZE, seed=1), torch.tensor([4, 0, 0, 1, 0, 2, 1, 0, 0, 4, 0])),
        "tiny norms": (unit(6, SIZE, seed=2) * 1e-9, torch.tensor([0, 0, 1, 1, 2, 2])),
        "large norms": (unit(6, SIZE, seed=3) * 30, torch.tensor([0, 1, 0, 1, 2, 2])),
        "identical": (identical, torch.tensor([0, 0, 0, 1, 1, 2])),
        "opposite": (opposite, torch.tensor([0, 0, 1, 0, 1, 1])),
        "zero": (zero, torch.tensor([0, 0, 1, 1, 2, 2])),
        "one class": (unit(5, SIZE, seed=4), torch.full((5,), 3)),
        "all single": (unit(5, SIZE, seed=5), torch.tensor([4, 2, 0, 1, 3])),
        "two alike": (unit(2, SIZE, seed=6), torch.tensor([1, 1])),
        "two apart": (unit(2, SIZE, seed=6), torch.tensor([1, 2])),
        "one": (unit(1, SIZE, seed=7), torch.tensor([2])),
    }


# Up to these sizes there are shorter ways, and beyond them others.
LIMITS = ("catalogue.triplets.MANY", "catalogue.triplets.TOGETHER", "catalogue.ranking.TOGETHER")


def as_if_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the losses treat few samples as they treat many."""
    for limit in LIMITS:
        monkeypatch.setattr(f"nearfar.losses.{limit}", 0)
