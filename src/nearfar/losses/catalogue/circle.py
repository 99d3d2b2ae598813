"""Unified and Circle loss, of samples × samples, or, given `num_classes`, of samples × classes."""

from dataclasses import KW_ONLY, InitVar
from typing import Any

from torch import Tensor

from nearfar.errors import InputError
from nearfar.losses.engine.maps import Linear, Row, SelfPaced
from nearfar.losses.engine.pairs import Pairs
from nearfar.losses.engine.spec import LossSpec
from nearfar.losses.labels import class_ids
from nearfar.losses.loss import Loss
from nearfar.losses.registry import register
from nearfar.losses.settings import Positive, PositiveInt


@register("pair or class", "log(1 + Σ_n Σ_p exp(γ(s_n − s_p + m)))")
class UnifiedLoss(Loss):
    """The unified pair-similarity loss, of which AM-Softmax, NormFace and (as γ grows) the hard triplet are cases.

        l = log(1 + sum_n exp(gamma (s_n + m)) * sum_p exp(-gamma s_p))

    Cosine similarities; every row with a positive and a negative counts.

    Args:
        m: margin between the similarities.
        gamma: scale.
        num_classes, embedding_size: give both for the class-level form, which compares samples with learned class
            weights.

    Example:
        >>> import torch
        >>> loss = UnifiedLoss(m=0.25, gamma=16)
        >>> round(loss(torch.eye(4), torch.tensor([0, 0, 1, 1])).item(), 3)
        4.702

    References: Y. Sun et al., "Circle Loss: A Unified Perspective of Pair Similarity Optimization", CVPR 2020,
    arXiv:2002.10857, Eq. 1.
    """

    row_local = True
    takes_soft_labels = True
    m: float = 0.25
    gamma: Positive = 64.0
    _: KW_ONLY
    num_classes: InitVar[PositiveInt | None] = None
    embedding_size: InitVar[PositiveInt | None] = None

    def spec(self) -> LossSpec:
        return LossSpec(positive=Linear(-self.gamma), negative=Linear(self.gamma, self.gamma * self.m))


@register("pair or class", "log(1 + Σ_n exp(γ[s_n−O_n]₊(s_n−Δ_n)) · Σ_p exp(−γ[O_p−s_p]₊(s_p−Δ_p)))")
class CircleLoss(Loss):
    """Circle loss: every similarity is pulled the harder, the further it is from its optimum.

        l = log(1 + sum_n exp(gamma a_n (s_n - delta_n)) * sum_p exp(-gamma a_p (s_p - delta_p)))
        a_p = [O_p - s_p]_+,  a_n = [s_n - O_n]_+,  constants in the gradient

    with O_p = 1 + m, O_n = -m, delta_p = 1 - m, delta_n = m by default. The decision boundary is then the circle
    s_n^2 + (1 - s_p)^2 = 2 m^2. Where the weights have slopes of their own, slope_p a_p and slope_n a_n, it is the
    ellipse slope_n (s_n^2 - m^2) + slope_p ((1 - s_p)^2 - m^2) = 0. Cosine similarities; every row with a positive and
    a negative counts.

    Args:
        m: relaxation; the paper has 0.25 for faces and re-identification, 0.4 for fine-grained retrieval. At class
            level also a tensor (num_classes,), one for every class.
        gamma: scale; the paper has 256 for faces, 128 for re-identification, 80 for fine-grained retrieval.
        O_p, O_n, delta_p, delta_n: the optima and margins, each instead of what m gives.
        slope_p, slope_n: slopes of the weights a_p and a_n; 1 in the paper.
        num_classes, embedding_size: give both for the class-level form, which compares samples with learned class
            weights.

    Example:
        >>> import torch
        >>> loss = CircleLoss(m=0.25, gamma=64)
        >>> round(loss(torch.eye(4), torch.tensor([0, 0, 1, 1])).item(), 3)
        56.693

    References: Y. Sun et al., "Circle Loss: A Unified Perspective of Pair Similarity Optimization", CVPR 2020,
    arXiv:2002.10857, Eq. 6 and 8-10.
    """

    row_local = True
    takes_soft_labels = True
    m: float | Tensor = 0.4
    gamma: Positive = 80.0
    _: KW_ONLY
    O_p: float | None = None
    O_n: float | None = None
    delta_p: float | None = None
    delta_n: float | None = None
    slope_p: Positive = 1.0
    slope_n: Positive = 1.0
    num_classes: InitVar[PositiveInt | None] = None
    embedding_size: InitVar[PositiveInt | None] = None

    def set_up(self, num_classes: int | None, embedding_size: int | None) -> None:
        super().set_up(num_classes=num_classes, embedding_size=embedding_size)
        if isinstance(self.m, Tensor):
            self.needs_class_ids = True
            self.number_by_class("m", self.m, num_classes)
            if not self.O_p is self.O_n is self.delta_p is self.delta_n is None:
                raise InputError(
                    "with m by class, the optima and margins follow from it: leave O_p, O_n, delta_p, delta_n out"
                )

    def row_parameters(self, pairs: Pairs, embeddings: Tensor, labels: Tensor | None) -> tuple[Tensor, ...]:
        if not isinstance(self.m, Tensor):
            return ()
        ids = class_ids(labels, "CircleLoss with m by class")
        m = self.with_own_class(self.m, ids, lambda m: m)
        return 1 + m, -m, 1 - m, m

    @property
    def optima_and_margins(self) -> tuple[Any, ...]:
        """O_p, O_n, delta_p and delta_n: those given, or what m gives."""
        if isinstance(self.m, Tensor):
            return Row(0), Row(1), Row(2), Row(3)
        from_m = 1 + self.m, -self.m, 1 - self.m, self.m
        settings = self.O_p, self.O_n, self.delta_p, self.delta_n
        return tuple(m if value is None else value for m, value in zip(from_m, settings, strict=True))

    def spec(self) -> LossSpec:
        O_p, O_n, delta_p, delta_n = self.optima_and_margins
        return LossSpec(
            positive=SelfPaced(self.gamma * self.slope_p, O_p, delta_p, positive=True),
            negative=SelfPaced(self.gamma * self.slope_n, O_n, delta_n, positive=False),
        )
