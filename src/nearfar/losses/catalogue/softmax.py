"""The softmax family: samples × classes, one learned weight vector per class."""

import math
from dataclasses import KW_ONLY, InitVar
from typing import Any

import torch
from torch import Tensor, nn

from nearfar.losses.engine.maps import Linear
from nearfar.losses.engine.spec import LossSpec
from nearfar.losses.engine.vectors import unit, wide
from nearfar.losses.loss import ClassLevelLoss
from nearfar.losses.registry import register
from nearfar.losses.settings import BelowOne, Positive


def _softmax(
    scale: Any = 1.0, lowered: Any = 0.0, normalize: tuple[bool, bool] = (True, True), smoothing: float = 0.0
) -> LossSpec:
    """Cross-entropy of logits scale * s, the target's lowered by a number."""
    positive, negative = Linear(-scale, lowered), Linear(scale)
    return LossSpec(positive=positive, negative=negative, normalize=normalize, smoothing=smoothing)


@register("class", "log(1 + Σ_{j≠y} exp(z_j − z_y)), z = W·x + b")
class SoftmaxLoss(ClassLevelLoss):
    """Softmax cross-entropy of a linear layer, z = W x + b.

        l = -log( exp(z_y) / sum_j exp(z_j) )

    Args:
        num_classes, embedding_size: shape of the class weights.
        bias: whether the logits have a bias.
        label_smoothing: how much of the target's probability all classes share.

    Example:
        >>> import torch
        >>> loss = SoftmaxLoss(num_classes=10, embedding_size=16, bias=False)
        >>> loss(torch.randn(8, 16), torch.arange(8)).backward()
        >>> loss.weight.grad.shape
        torch.Size([10, 16])

    References: J. Bridle, "Training Stochastic Model Recognition Algorithms as Networks can Lead to Maximum Mutual
    Information Estimation of Parameters", NIPS 1989; the cross-entropy of a linear layer.
    """

    free_norm = True
    _: KW_ONLY
    bias: InitVar[bool] = True
    label_smoothing: BelowOne = 0.0

    def spec(self) -> LossSpec:
        return _softmax(normalize=(False, False), smoothing=self.label_smoothing)


@register("class", "softmax of ‖x‖cosθ_j")
class ModifiedSoftmaxLoss(ClassLevelLoss):
    """SphereFace's modified softmax: ‖W‖ = 1, no bias, the feature's norm kept. It is SphereFace with margin 1.

        l = -log( exp(|x| cos theta_y) / sum_j exp(|x| cos theta_j) )

    Args:
        num_classes, embedding_size: shape of the class weights.

    Example:
        >>> import torch
        >>> loss = ModifiedSoftmaxLoss(num_classes=10, embedding_size=16)
        >>> loss(torch.randn(8, 16), torch.arange(8)).backward()
        >>> loss.weight.grad.shape
        torch.Size([10, 16])

    References: W. Liu et al., "SphereFace: Deep Hypersphere Embedding for Face Recognition", CVPR 2017,
    arXiv:1704.08063, Eq. 4.
    """

    free_norm = True

    def spec(self) -> LossSpec:
        return _softmax(normalize=(False, True))


@register("class", "softmax of α W_j·x/‖x‖ + b_j")
class L2SoftmaxLoss(ClassLevelLoss):
    """L2-constrained softmax: features on a sphere of radius α, class weights free.

        l = -log( exp(z_y) / sum_j exp(z_j) ),   z = scale * W x / |x| + b

    Args:
        num_classes, embedding_size: shape of the class weights.
        scale: the radius α; None takes the paper's lower bound for a probability of 0.9, log(0.9 (C - 2) / 0.1), and
            at least 1.
        learnable: whether the radius is a parameter.
        bias: whether the logits have a bias.

    Example:
        >>> import torch
        >>> loss = L2SoftmaxLoss(num_classes=10, embedding_size=16, scale=16)
        >>> loss(torch.randn(8, 16), torch.arange(8)).backward()
        >>> loss.weight.grad.shape
        torch.Size([10, 16])

    References: R. Ranjan, C. Castillo, R. Chellappa, "L2-constrained Softmax Loss for Discriminative Face
    Verification", 2017, arXiv:1703.09507.
    """

    _: KW_ONLY
    scale: InitVar[Positive | None] = None
    learnable: InitVar[bool] = False
    bias: InitVar[bool] = True

    def set_up(self, scale: float | None, learnable: bool, bias: bool, **sizes: Any) -> None:
        self.add_classes(**sizes, bias=bias)
        if scale is None:
            scale = max(1.0, math.log(max(1.0, 0.9 * (self.num_classes - 2) / 0.1)))
        if learnable:
            self.scale = nn.Parameter(torch.tensor(float(scale)))
        else:
            self.register_buffer("scale", torch.tensor(float(scale)))

    def prepare(self, embeddings: Tensor) -> Tensor:
        assert isinstance(self.scale, Tensor)
        return unit(wide(embeddings), self.scale)

    def spec(self) -> LossSpec:
        return _softmax(normalize=(False, False))


@register("class", "softmax of γ s_j")
class NormFaceLoss(ClassLevelLoss):
    """NormFace: softmax of scaled cosines.

        l = -log( exp(scale s_y) / sum_j exp(scale s_j) )

    Args:
        num_classes, embedding_size: shape of the class weights.
        scale: γ; where it begins, if it is learned.
        learnable: learn it, as the parameter `logit_scale` = log γ.
        label_smoothing: how much of the target's probability all classes share.

    Example:
        >>> import torch
        >>> loss = NormFaceLoss(num_classes=10, embedding_size=16, label_smoothing=0.1)
        >>> loss(torch.randn(8, 16), torch.arange(8)).backward()
        >>> loss.weight.grad.shape
        torch.Size([10, 16])

    References: F. Wang et al., "NormFace: L2 Hypersphere Embedding for Face Verification", ACM MM 2017,
    arXiv:1704.06369.
    """

    scale: Positive = 30.0
    _: KW_ONLY
    learnable: InitVar[bool] = False
    label_smoothing: BelowOne = 0.0

    def spec(self) -> LossSpec:
        return _softmax(self.scales(self.scale)[0], smoothing=self.label_smoothing)


@register("class", "softmax of s_j/τ")
class NormalizedSoftmaxLoss(ClassLevelLoss):
    """Normalised softmax: NormFace by its temperature, 1 / scale.

        l = -log( exp(s_y / temperature) / sum_j exp(s_j / temperature) )

    Args:
        num_classes, embedding_size: shape of the class weights.
        temperature: τ.

    Example:
        >>> import torch
        >>> loss = NormalizedSoftmaxLoss(num_classes=10, embedding_size=16, temperature=0.1)
        >>> loss(torch.randn(8, 16), torch.arange(8)).backward()
        >>> loss.weight.grad.shape
        torch.Size([10, 16])

    References: A. Zhai, H.-Y. Wu, "Classification is a Strong Baseline for Deep Metric Learning", BMVC 2019,
    arXiv:1811.12649.
    """

    temperature: Positive = 0.05

    def spec(self) -> LossSpec:
        return _softmax(1 / self.temperature)


@register("class", "softmax of γ s_j, target γ(s_y − m)")
class CosFaceLoss(ClassLevelLoss):
    """CosFace: a margin subtracted from the target's cosine.

        l = -log( exp(scale (s_y - margin)) / (exp(scale (s_y - margin)) + sum_{j != y} exp(scale s_j)) )

    Args:
        num_classes, embedding_size: shape of the class weights.
        margin: m; or a tensor (num_classes,), one for every class.
        scale: γ; where it begins, if it is learned.
        learnable: learn it, as the parameter `logit_scale` = log γ.
        label_smoothing: how much of the target's probability all classes share.

    Example:
        >>> import torch
        >>> loss = CosFaceLoss(num_classes=10, embedding_size=16, scale=30, learnable=True)
        >>> loss(torch.randn(8, 16), torch.arange(8)).backward()
        >>> loss.weight.grad.shape
        torch.Size([10, 16])

    References: H. Wang et al., "CosFace: Large Margin Cosine Loss for Deep Face Recognition", CVPR 2018,
    arXiv:1801.09414, Eq. 4.
    """

    margin: float | Tensor = 0.35
    scale: Positive = 64.0
    _: KW_ONLY
    learnable: InitVar[bool] = False
    label_smoothing: BelowOne = 0.0

    def spec(self) -> LossSpec:
        scale, _ = self.scales(self.scale)
        return _softmax(scale, scale * self.margin, smoothing=self.label_smoothing)


@register("class", "softmax of γ s_j, target γ(s_y − m)")
class AMSoftmaxLoss(ClassLevelLoss):
    """AM-Softmax: CosFace under its other name, with that paper's scale.

        l = -log( exp(scale (s_y - margin)) / (exp(scale (s_y - margin)) + sum_{j != y} exp(scale s_j)) )

    Args:
        num_classes, embedding_size: shape of the class weights.
        margin: m; or a tensor (num_classes,), one for every class.
        scale: γ.

    Example:
        >>> import torch
        >>> loss = AMSoftmaxLoss(num_classes=10, embedding_size=16, margin=0.3)
        >>> loss(torch.randn(8, 16), torch.arange(8)).backward()
        >>> loss.weight.grad.shape
        torch.Size([10, 16])

    References: F. Wang et al., "Additive Margin Softmax for Face Verification", IEEE SPL 2018, arXiv:1801.05599.
    """

    margin: float | Tensor = 0.35
    scale: Positive = 30.0

    def spec(self) -> LossSpec:
        return _softmax(self.scale, self.scale * self.margin)


@register("class", "softmax of γ s_j, a class for every instance")
class InstanceLoss(ClassLevelLoss):
    """Instance loss: a softmax that takes every instance (an image with its captions) for a class of its own.

        l = -log( exp(gamma s_y) / sum_j exp(gamma s_j) )

    Give the samples of both towers together, or one after the other, with the instances as labels: the towers meet
    because they share the class vectors.

    Args:
        num_classes: how many instances there are.
        embedding_size: the dimension.
        gamma: scale of the cosines.

    Example:
        >>> import torch
        >>> loss = InstanceLoss(num_classes=10, embedding_size=16, gamma=32)
        >>> loss(torch.randn(8, 16), torch.arange(8)).backward()
        >>> loss.weight.grad.shape
        torch.Size([10, 16])

    References: Z. Zheng et al., "Dual-Path Convolutional Image-Text Embeddings with Instance Loss", ACM TOMM 2020,
    arXiv:1711.05535, Eq. 3.
    """

    gamma: Positive = 64.0

    def spec(self) -> LossSpec:
        return _softmax(self.gamma)
