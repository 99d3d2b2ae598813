"""The softmax family's margins of the angle: added to it, or multiplied with it."""

import math
from dataclasses import KW_ONLY
from typing import Any

import torch
from torch import Tensor

from nearfar.losses.engine.angles import ArcMargin, CombinedMargin, MultiplicativeMargin
from nearfar.losses.engine.maps import Column, Linear, Row
from nearfar.losses.engine.pairs import Pairs
from nearfar.losses.engine.spec import LossSpec
from nearfar.losses.engine.vectors import norms
from nearfar.losses.loss import ClassLevelLoss
from nearfar.losses.registry import register
from nearfar.losses.settings import Angle, AngleFactor, Angles, BelowOne, NotNegative, Positive


@register("class", "softmax of γ s_j, target γ cos(θ_y + m)")
class ArcFaceLoss(ClassLevelLoss):
    """ArcFace: a margin added to the target's angle.

        l = -log( exp(scale cos(theta_y + margin)) / (exp(scale cos(theta_y + margin)) + sum_{j != y} exp(scale s_j)) )

    Where theta + margin passes π the target is scale (s - margin sin(margin)): a step down for margins below 2.33,
    and decreasing from there. The slope by s is capped at s = ±1, where 1 - s² is floored at machine epsilon, so an
    exact match has a finite gradient.

    Args:
        num_classes, embedding_size: shape of the class weights.
        margin: m, in radians; or a tensor (num_classes,), one for every class.
        scale: γ.
        easy_margin: apply the margin only where s > 0.
        label_smoothing: how much of the target's probability all classes share.

    Example:
        >>> import torch
        >>> loss = ArcFaceLoss(num_classes=10, embedding_size=16, margin=0.3)
        >>> loss(torch.randn(8, 16), torch.arange(8)).backward()
        >>> loss.weight.grad.shape
        torch.Size([10, 16])

    References: J. Deng et al., "ArcFace: Additive Angular Margin Loss for Deep Face Recognition", CVPR 2019,
    arXiv:1801.07698, Eq. 3.
    """

    margin: Angles = 0.5
    scale: Positive = 64.0
    _: KW_ONLY
    easy_margin: bool = False
    label_smoothing: BelowOne = 0.0

    def spec(self) -> LossSpec:
        return LossSpec(
            positive=ArcMargin(self.scale, self.margin, self.easy_margin),
            negative=Linear(self.scale),
            smoothing=self.label_smoothing,
        )


@register("class", "softmax of γ s_j, target γ(cos(m1 θ_y + m2) − m3)")
class CombinedMarginLoss(ClassLevelLoss):
    """The margins of SphereFace, ArcFace and CosFace together.

        target logit: scale (cos(m1 theta_y + m2) - m3)

    The cosine is continued monotonically past π: (-1)^k cos(φ) - 2k, k = floor(φ / π).

    Args:
        num_classes, embedding_size: shape of the class weights.
        m1: multiplies the angle, at least 1.
        m2: added to the angle, in radians.
        m3: subtracted from the cosine.
        scale: γ.

    Example:
        >>> import torch
        >>> loss = CombinedMarginLoss(num_classes=10, embedding_size=16, m2=0.3, m3=0.2)
        >>> loss(torch.randn(8, 16), torch.arange(8)).backward()
        >>> loss.weight.grad.shape
        torch.Size([10, 16])

    References: J. Deng et al., "ArcFace: Additive Angular Margin Loss for Deep Face Recognition", CVPR 2019,
    arXiv:1801.07698, Eq. 4.
    """

    m1: AngleFactor = 1.0
    m2: Angle = 0.5
    m3: float = 0.0
    scale: Positive = 64.0

    def spec(self) -> LossSpec:
        return LossSpec(positive=CombinedMargin(self.scale, self.m1, self.m2, self.m3), negative=Linear(self.scale))


class _AnnealedMarginLoss(ClassLevelLoss):
    """A margin that multiplies the angle. The target is a mean of the logits with the margin and, with weight λ,
    without; λ falls as training proceeds.
    """

    free_norm = True
    margin: AngleFactor = 4.0
    scale: Positive = 1.0
    _: KW_ONLY
    base: float = 1000.0
    decay: NotNegative
    power: float
    lambda_min: float

    def set_up(self, **sizes: Any) -> None:
        self.add_classes(**sizes)
        self.iteration: Tensor
        self.register_buffer("iteration", torch.zeros((), dtype=torch.long))

    @property
    def plain_weight(self) -> float:
        """λ = max(lambda_min, base (1 + decay iteration)^-power)."""
        return max(self.lambda_min, self.base * math.pow(1 + self.decay * int(self.iteration), -self.power))

    def row_parameters(self, pairs: Pairs, embeddings: Tensor, labels: Tensor | None) -> tuple[Tensor, ...]:
        return (norms(embeddings),)

    def after_step(self) -> None:
        self.iteration += 1


@register("class", "softmax of ‖x‖cosθ_j, target ‖x‖(λcosθ_y + ψ(θ_y))/(1+λ)")
class SphereFaceLoss(_AnnealedMarginLoss):
    """SphereFace (A-Softmax): a margin that multiplies the target's angle; ‖W‖ = 1, no bias, the feature's norm kept.

        target logit: scale |x| (lambda cos(theta_y) + psi(theta_y)) / (1 + lambda)
        psi(theta) = (-1)^k cos(margin theta) - 2k   on [k pi / margin, (k+1) pi / margin]
        lambda = max(lambda_min, base (1 + decay iteration)^-power)

    The iteration counts the training steps and is saved in the state_dict; ψ falls monotonically for any real margin
    ≥ 1. The gradient is the true one (the official code rescales it).

    Args:
        num_classes, embedding_size: shape of the class weights.
        margin: m, multiplies the angle.
        scale: multiplies all logits.
        base, decay, power, lambda_min: the annealing; `lambda_min=0, base=0` is the loss without it.

    Example:
        >>> import torch
        >>> loss = SphereFaceLoss(num_classes=10, embedding_size=16, margin=2)
        >>> loss(torch.randn(8, 16), torch.arange(8)).backward()
        >>> loss.weight.grad.shape
        torch.Size([10, 16])

    References: W. Liu et al., "SphereFace: Deep Hypersphere Embedding for Face Recognition", CVPR 2017,
    arXiv:1704.08063, Eq. 7.
    """

    _: KW_ONLY
    decay: NotNegative = 0.12
    power: float = 1.0
    lambda_min: float = 5.0

    def spec(self) -> LossSpec:
        target = MultiplicativeMargin(self.scale, self.margin, self.plain_weight, norm=Row(0))
        return LossSpec(positive=target, negative=Linear(self.scale), normalize=(False, True))


@register("class", "softmax of ‖W_j‖‖x‖cosθ_j, target ‖W_y‖‖x‖(λcosθ_y + ψ(θ_y))/(1+λ)")
class LargeMarginSoftmaxLoss(_AnnealedMarginLoss):
    """L-Softmax: a margin that multiplies the target's angle, with features and class weights of any norm.

        target logit: scale |W_y| |x| (lambda cos(theta_y) + psi(theta_y)) / (1 + lambda)

    ψ and λ as in SphereFace, with the annealing of this paper's code (`lambda_min` 5 to 10 for hard data).

    Args:
        num_classes, embedding_size: shape of the class weights.
        margin: m, multiplies the angle.
        scale: multiplies all logits.
        base, decay, power, lambda_min: the annealing; `lambda_min=0, base=0` is the loss without it.

    Example:
        >>> import torch
        >>> loss = LargeMarginSoftmaxLoss(num_classes=10, embedding_size=16, margin=2, lambda_min=5)
        >>> loss(torch.randn(8, 16), torch.arange(8)).backward()
        >>> loss.weight.grad.shape
        torch.Size([10, 16])

    References: W. Liu et al., "Large-Margin Softmax Loss for Convolutional Neural Networks", ICML 2016,
    arXiv:1612.02295, Eq. 4-6.
    """

    _: KW_ONLY
    decay: NotNegative = 2.5e-5
    power: float = 35.0
    lambda_min: float = 0.0

    def spec(self) -> LossSpec:
        target = MultiplicativeMargin(self.scale, self.margin, self.plain_weight, norm=Row(0), class_norm=Column(0))
        return LossSpec(positive=target, negative=Linear(self.scale), normalize=(False, False))

    def column_parameters(self, pairs: Pairs, columns: Tensor) -> tuple[Tensor, ...]:
        return (norms(columns),)
