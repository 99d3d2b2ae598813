"""The softmax family: samples × classes, one learned weight vector per class."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from nearfar.losses.engine.maps import ArcMargin, Column, CombinedMargin, Linear, MultiplicativeMargin, Row
from nearfar.losses.engine.pairs import Pairs
from nearfar.losses.engine.spec import LossSpec
from nearfar.losses.engine.vectors import norms, unit
from nearfar.losses.hyperparameters import check_angle, check_multiplier, check_not_negative, check_positive
from nearfar.losses.loss import Loss
from nearfar.losses.registry import register


def _softmax(scale: float = 1.0, margin: float = 0.0, normalize: tuple[bool, bool] = (True, True)) -> LossSpec:
    """Cross-entropy of logits scale * s, the target's lowered by scale * margin."""
    return LossSpec(positive=Linear(-scale, scale * margin), negative=Linear(scale), normalize=normalize)


@register("class", "Bridle 1990; cross-entropy of a linear layer", "log(1 + Σ_{j≠y} exp(z_j − z_y)), z = W·x + b")
class SoftmaxLoss(Loss):
    """Softmax cross-entropy of a linear layer, z = W x + b.

        l = -log( exp(z_y) / sum_j exp(z_j) )

    Args:
        num_classes, embedding_size: shape of the class weights.
        bias: whether the logits have a bias.
    """

    def __init__(self, num_classes: int, embedding_size: int, *, bias: bool = True, **options: Any):
        super().__init__(**options)
        self.add_classes(num_classes, embedding_size, bias=bias)

    def spec(self) -> LossSpec:
        return _softmax(normalize=(False, False))


@register("class", "Liu et al., SphereFace, CVPR 2017, arXiv:1704.08063, Eq. 4", "softmax of ‖x‖cosθ_j")
class ModifiedSoftmaxLoss(Loss):
    """SphereFace's modified softmax: ‖W‖ = 1, no bias, the feature's norm kept. It is SphereFace with margin 1.

        l = -log( exp(|x| cos theta_y) / sum_j exp(|x| cos theta_j) )

    Args:
        num_classes, embedding_size: shape of the class weights.

    References: W. Liu et al., "SphereFace: Deep Hypersphere Embedding for Face Recognition", CVPR 2017,
    arXiv:1704.08063, Eq. 4.
    """

    def __init__(self, num_classes: int, embedding_size: int, **options: Any):
        super().__init__(**options)
        self.add_classes(num_classes, embedding_size)

    def spec(self) -> LossSpec:
        return _softmax(normalize=(False, True))


@register("class", "Ranjan et al., L2-constrained Softmax Loss, 2017, arXiv:1703.09507", "softmax of α W_j·x/‖x‖ + b_j")
class L2SoftmaxLoss(Loss):
    """L2-constrained softmax: features on a sphere of radius α, class weights free.

        l = -log( exp(z_y) / sum_j exp(z_j) ),   z = scale * W x / |x| + b

    Args:
        num_classes, embedding_size: shape of the class weights.
        scale: the radius α; None takes the paper's lower bound for a probability of 0.9, log(0.9 (C - 2) / 0.1), and
            at least 1.
        learnable: whether the radius is a parameter.
        bias: whether the logits have a bias.

    References: R. Ranjan, C. Castillo, R. Chellappa, "L2-constrained Softmax Loss for Discriminative Face
    Verification", 2017, arXiv:1703.09507.
    """

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        *,
        scale: float | None = None,
        learnable: bool = False,
        bias: bool = True,
        **options: Any,
    ):
        super().__init__(**options)
        if scale is None:
            scale = max(1.0, math.log(max(1.0, 0.9 * (num_classes - 2) / 0.1)))
        check_positive("scale", scale)
        self.add_classes(num_classes, embedding_size, bias=bias)
        self.scale: Tensor
        if learnable:
            self.scale = nn.Parameter(torch.tensor(float(scale)))
        else:
            self.register_buffer("scale", torch.tensor(float(scale)))

    def prepare(self, embeddings: Tensor) -> Tensor:
        return unit(embeddings.to(torch.promote_types(embeddings.dtype, torch.float32)), self.scale)

    def spec(self) -> LossSpec:
        return _softmax(normalize=(False, False))


@register("class", "Wang et al., NormFace, ACM MM 2017, arXiv:1704.06369", "softmax of γ s_j")
class NormFaceLoss(Loss):
    """NormFace: softmax of scaled cosines.

        l = -log( exp(scale s_y) / sum_j exp(scale s_j) )

    Args:
        num_classes, embedding_size: shape of the class weights.
        scale: γ.

    References: F. Wang et al., "NormFace: L2 Hypersphere Embedding for Face Verification", ACM MM 2017,
    arXiv:1704.06369.
    """

    def __init__(self, num_classes: int, embedding_size: int, scale: float = 30.0, **options: Any):
        super().__init__(**options)
        check_positive("scale", scale)
        self.scale = scale
        self.add_classes(num_classes, embedding_size)

    def spec(self) -> LossSpec:
        return _softmax(self.scale)


@register(
    "class", "Zhai, Wu, Classification is a Strong Baseline for DML, BMVC 2019, arXiv:1811.12649", "softmax of s_j/τ"
)
class NormalizedSoftmaxLoss(Loss):
    """Normalised softmax: NormFace by its temperature, 1 / scale.

        l = -log( exp(s_y / temperature) / sum_j exp(s_j / temperature) )

    Args:
        num_classes, embedding_size: shape of the class weights.
        temperature: τ.

    References: A. Zhai, H.-Y. Wu, "Classification is a Strong Baseline for Deep Metric Learning", BMVC 2019,
    arXiv:1811.12649.
    """

    def __init__(self, num_classes: int, embedding_size: int, temperature: float = 0.05, **options: Any):
        super().__init__(**options)
        check_positive("temperature", temperature)
        self.temperature = temperature
        self.add_classes(num_classes, embedding_size)

    def spec(self) -> LossSpec:
        return _softmax(1 / self.temperature)


@register("class", "Wang et al., CosFace, CVPR 2018, arXiv:1801.09414", "softmax of γ s_j, target γ(s_y − m)")
class CosFaceLoss(Loss):
    """CosFace: a margin subtracted from the target's cosine.

        l = -log( exp(scale (s_y - margin)) / (exp(scale (s_y - margin)) + sum_{j != y} exp(scale s_j)) )

    Args:
        num_classes, embedding_size: shape of the class weights.
        margin: m.
        scale: γ.

    References: H. Wang et al., "CosFace: Large Margin Cosine Loss for Deep Face Recognition", CVPR 2018,
    arXiv:1801.09414, Eq. 4.
    """

    def __init__(
        self, num_classes: int, embedding_size: int, margin: float = 0.35, scale: float = 64.0, **options: Any
    ):
        super().__init__(**options)
        check_positive("scale", scale)
        self.margin, self.scale = margin, scale
        self.add_classes(num_classes, embedding_size)

    def spec(self) -> LossSpec:
        return _softmax(self.scale, self.margin)


@register(
    "class", "Wang et al., Additive Margin Softmax, 2018, arXiv:1801.05599", "softmax of γ s_j, target γ(s_y − m)"
)
class AMSoftmaxLoss(Loss):
    """AM-Softmax: CosFace under its other name, with that paper's scale.

        l = -log( exp(scale (s_y - margin)) / (exp(scale (s_y - margin)) + sum_{j != y} exp(scale s_j)) )

    Args:
        num_classes, embedding_size: shape of the class weights.
        margin: m.
        scale: γ.

    References: F. Wang et al., "Additive Margin Softmax for Face Verification", IEEE SPL 2018, arXiv:1801.05599.
    """

    def __init__(
        self, num_classes: int, embedding_size: int, margin: float = 0.35, scale: float = 30.0, **options: Any
    ):
        super().__init__(**options)
        check_positive("scale", scale)
        self.margin, self.scale = margin, scale
        self.add_classes(num_classes, embedding_size)

    def spec(self) -> LossSpec:
        return _softmax(self.scale, self.margin)


@register("class", "Deng et al., ArcFace, CVPR 2019, arXiv:1801.07698", "softmax of γ s_j, target γ cos(θ_y + m)")
class ArcFaceLoss(Loss):
    """ArcFace: a margin added to the target's angle.

        l = -log( exp(scale cos(theta_y + margin)) / (exp(scale cos(theta_y + margin)) + sum_{j != y} exp(scale s_j)) )

    Where theta + margin passes π the target is scale (s - margin sin(margin)): a step down for margins below 2.33,
    then falling on. The slope by s is capped at s = ±1, where 1 - s² is floored at machine epsilon: an exact match
    has a finite gradient.

    Args:
        num_classes, embedding_size: shape of the class weights.
        margin: m, in radians.
        scale: γ.
        easy_margin: apply the margin only where s > 0.

    References: J. Deng et al., "ArcFace: Additive Angular Margin Loss for Deep Face Recognition", CVPR 2019,
    arXiv:1801.07698, Eq. 3.
    """

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        margin: float = 0.5,
        scale: float = 64.0,
        *,
        easy_margin: bool = False,
        **options: Any,
    ):
        super().__init__(**options)
        check_angle("margin", margin)
        check_positive("scale", scale)
        self.margin, self.scale, self.easy_margin = margin, scale, easy_margin
        self.add_classes(num_classes, embedding_size)

    def spec(self) -> LossSpec:
        return LossSpec(positive=ArcMargin(self.scale, self.margin, self.easy_margin), negative=Linear(self.scale))


@register(
    "class",
    "Deng et al., ArcFace, CVPR 2019, arXiv:1801.07698, Eq. 4",
    "softmax of γ s_j, target γ(cos(m1 θ_y + m2) − m3)",
)
class CombinedMarginLoss(Loss):
    """The margins of SphereFace, ArcFace and CosFace together.

        target logit: scale (cos(m1 theta_y + m2) - m3)

    The cosine is continued monotonically past π: (-1)^k cos(φ) - 2k, k = floor(φ / π).

    Args:
        num_classes, embedding_size: shape of the class weights.
        m1: multiplies the angle, at least 1.
        m2: added to the angle, in radians.
        m3: subtracted from the cosine.
        scale: γ.

    References: J. Deng et al., "ArcFace: Additive Angular Margin Loss for Deep Face Recognition", CVPR 2019,
    arXiv:1801.07698, Eq. 4.
    """

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        m1: float = 1.0,
        m2: float = 0.5,
        m3: float = 0.0,
        scale: float = 64.0,
        **options: Any,
    ):
        super().__init__(**options)
        check_multiplier("m1", m1)
        check_angle("m2", m2)
        check_positive("scale", scale)
        self.m1, self.m2, self.m3, self.scale = m1, m2, m3, scale
        self.add_classes(num_classes, embedding_size)

    def spec(self) -> LossSpec:
        return LossSpec(positive=CombinedMargin(self.scale, self.m1, self.m2, self.m3), negative=Linear(self.scale))


def _annealed(iteration: Tensor, base: float, decay: float, power: float, lambda_min: float) -> float:
    """The weight λ of the plain target logit, which falls as training goes on."""
    return max(lambda_min, base * math.pow(1 + decay * int(iteration), -power))


@register(
    "class",
    "Liu et al., SphereFace, CVPR 2017, arXiv:1704.08063",
    "softmax of ‖x‖cosθ_j, target ‖x‖(λcosθ_y + ψ(θ_y))/(1+λ)",
)
class SphereFaceLoss(Loss):
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

    References: W. Liu et al., "SphereFace: Deep Hypersphere Embedding for Face Recognition", CVPR 2017,
    arXiv:1704.08063, Eq. 7.
    """

    iteration: Tensor

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        margin: float = 4.0,
        scale: float = 1.0,
        *,
        base: float = 1000.0,
        decay: float = 0.12,
        power: float = 1.0,
        lambda_min: float = 5.0,
        **options: Any,
    ):
        super().__init__(**options)
        check_multiplier("margin", margin)
        check_positive("scale", scale)
        self.margin, self.scale = margin, scale
        check_not_negative("decay", decay)
        self.base, self.decay, self.power, self.lambda_min = base, decay, power, lambda_min
        self.register_buffer("iteration", torch.zeros((), dtype=torch.long))
        self.add_classes(num_classes, embedding_size)

    def spec(self) -> LossSpec:
        lam = _annealed(self.iteration, self.base, self.decay, self.power, self.lambda_min)
        return LossSpec(
            positive=MultiplicativeMargin(self.scale, self.margin, lam, norm=Row(0)),
            negative=Linear(self.scale),
            normalize=(False, True),
        )

    def row_parameters(self, pairs: Pairs, embeddings: Tensor, labels: Tensor | None) -> tuple[Tensor, ...]:
        return (norms(embeddings),)

    def after_step(self) -> None:
        self.iteration += 1


@register(
    "class",
    "Liu et al., Large-Margin Softmax, ICML 2016, arXiv:1612.02295",
    "softmax of ‖W_j‖‖x‖cosθ_j, target ‖W_y‖‖x‖(λcosθ_y + ψ(θ_y))/(1+λ)",
)
class LargeMarginSoftmaxLoss(Loss):
    """L-Softmax: a margin that multiplies the target's angle, with features and class weights of any norm.

        target logit: scale |W_y| |x| (lambda cos(theta_y) + psi(theta_y)) / (1 + lambda)

    ψ and λ as in SphereFace, with the annealing of this paper's code (`lambda_min` 5 to 10 for hard data).

    Args:
        num_classes, embedding_size: shape of the class weights.
        margin: m, multiplies the angle.
        scale: multiplies all logits.
        base, decay, power, lambda_min: the annealing; `lambda_min=0, base=0` is the loss without it.

    References: W. Liu et al., "Large-Margin Softmax Loss for Convolutional Neural Networks", ICML 2016,
    arXiv:1612.02295, Eq. 4-6.
    """

    iteration: Tensor

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        margin: float = 4.0,
        scale: float = 1.0,
        *,
        base: float = 1000.0,
        decay: float = 2.5e-5,
        power: float = 35.0,
        lambda_min: float = 0.0,
        **options: Any,
    ):
        super().__init__(**options)
        check_multiplier("margin", margin)
        check_positive("scale", scale)
        self.margin, self.scale = margin, scale
        check_not_negative("decay", decay)
        self.base, self.decay, self.power, self.lambda_min = base, decay, power, lambda_min
        self.register_buffer("iteration", torch.zeros((), dtype=torch.long))
        self.add_classes(num_classes, embedding_size)

    def spec(self) -> LossSpec:
        lam = _annealed(self.iteration, self.base, self.decay, self.power, self.lambda_min)
        return LossSpec(
            positive=MultiplicativeMargin(self.scale, self.margin, lam, norm=Row(0), class_norm=Column(0)),
            negative=Linear(self.scale),
            normalize=(False, False),
        )

    def row_parameters(self, pairs: Pairs, embeddings: Tensor, labels: Tensor | None) -> tuple[Tensor, ...]:
        return (norms(embeddings),)

    def column_parameters(self, pairs: Pairs, columns: Tensor) -> tuple[Tensor, ...]:
        return (norms(columns),)

    def after_step(self) -> None:
        self.iteration += 1


@register(
    "class",
    "Zheng et al., Dual-Path Convolutional Image-Text Embeddings with Instance Loss, ACM TOMM 2020, arXiv:1711.05535",
    "softmax of γ s_j, a class for every instance",
)
class InstanceLoss(NormFaceLoss):
    """Instance loss: a softmax that takes every instance (an image with its captions) for a class of its own.

        l = -log( exp(gamma s_y) / sum_j exp(gamma s_j) )

    Samples of both towers are given together, or one after the other, with the instances as labels: their weights are
    shared, which is what brings the towers together.

    Args:
        num_classes: how many instances there are.
        embedding_size: the dimension.
        gamma: of the cosines.

    References: Z. Zheng et al., "Dual-Path Convolutional Image-Text Embeddings with Instance Loss", ACM TOMM 2020,
    arXiv:1711.05535, Eq. 3.
    """

    def __init__(self, num_classes: int, embedding_size: int, gamma: float = 64.0, **options: Any):
        check_positive("gamma", gamma)
        super().__init__(num_classes, embedding_size, gamma, **options)
