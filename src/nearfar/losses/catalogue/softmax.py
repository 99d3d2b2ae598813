"""The softmax family: samples × classes, one learned weight vector per class."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from nearfar.losses.engine.maps import Column, Linear
from nearfar.losses.engine.pairs import Pairs
from nearfar.losses.engine.spec import LossSpec
from nearfar.losses.engine.vectors import unit
from nearfar.losses.hyperparameters import check_positive, check_share
from nearfar.losses.loss import Loss
from nearfar.losses.registry import register


def _softmax(
    scale: float = 1.0, margin: float = 0.0, normalize: tuple[bool, bool] = (True, True), smoothing: float = 0.0
) -> LossSpec:
    """Cross-entropy of logits scale * s, the target's lowered by scale * margin."""
    positive, negative = Linear(-scale, scale * margin), Linear(scale)
    return LossSpec(positive=positive, negative=negative, normalize=normalize, smoothing=smoothing)


@register("class", "Bridle 1990; cross-entropy of a linear layer", "log(1 + Σ_{j≠y} exp(z_j − z_y)), z = W·x + b")
class SoftmaxLoss(Loss):
    """Softmax cross-entropy of a linear layer, z = W x + b.

        l = -log( exp(z_y) / sum_j exp(z_j) )

    Args:
        num_classes, embedding_size: shape of the class weights.
        bias: whether the logits have a bias.
        label_smoothing: how much of the target's probability all classes share.
    """

    free_norm = True

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        *,
        bias: bool = True,
        label_smoothing: float = 0.0,
        **options: Any,
    ):
        super().__init__(**options)
        check_share("label_smoothing", label_smoothing)
        self.label_smoothing = label_smoothing
        self.add_classes(num_classes, embedding_size, bias=bias)

    def spec(self) -> LossSpec:
        return _softmax(normalize=(False, False), smoothing=self.label_smoothing)


@register("class", "Liu et al., SphereFace, CVPR 2017, arXiv:1704.08063, Eq. 4", "softmax of ‖x‖cosθ_j")
class ModifiedSoftmaxLoss(Loss):
    """SphereFace's modified softmax: ‖W‖ = 1, no bias, the feature's norm kept. It is SphereFace with margin 1.

        l = -log( exp(|x| cos theta_y) / sum_j exp(|x| cos theta_j) )

    Args:
        num_classes, embedding_size: shape of the class weights.

    References: W. Liu et al., "SphereFace: Deep Hypersphere Embedding for Face Recognition", CVPR 2017,
    arXiv:1704.08063, Eq. 4.
    """

    free_norm = True

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
        scale: γ; where it begins, if it is learned.
        learnable: learn it, as the parameter `logit_scale` = log γ.
        label_smoothing: how much of the target's probability all classes share.

    References: F. Wang et al., "NormFace: L2 Hypersphere Embedding for Face Verification", ACM MM 2017,
    arXiv:1704.06369.
    """

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        scale: float = 30.0,
        *,
        learnable: bool = False,
        label_smoothing: float = 0.0,
        **options: Any,
    ):
        super().__init__(**options)
        check_positive("scale", scale)
        check_share("label_smoothing", label_smoothing)
        self.scale, self.label_smoothing = scale, label_smoothing
        if learnable:
            self.learn_scale(scale)
        self.add_classes(num_classes, embedding_size)

    def spec(self) -> LossSpec:
        scale, negative = self.scales(self.scale)
        return LossSpec(positive=Linear(negative), negative=Linear(scale), smoothing=self.label_smoothing)


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
        margin: m; or a tensor (num_classes,), one for every class.
        scale: γ; where it begins, if it is learned.
        learnable: learn it, as the parameter `logit_scale` = log γ.
        label_smoothing: how much of the target's probability all classes share.

    References: H. Wang et al., "CosFace: Large Margin Cosine Loss for Deep Face Recognition", CVPR 2018,
    arXiv:1801.09414, Eq. 4.
    """

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        margin: float | Tensor = 0.35,
        scale: float = 64.0,
        *,
        learnable: bool = False,
        label_smoothing: float = 0.0,
        **options: Any,
    ):
        super().__init__(**options)
        check_positive("scale", scale)
        check_share("label_smoothing", label_smoothing)
        self.margin: float | Tensor
        self.number_by_class("margin", margin, num_classes)
        self.scale, self.label_smoothing = scale, label_smoothing
        if learnable:
            self.learn_scale(scale)
        self.add_classes(num_classes, embedding_size)

    @property
    def _by_class(self) -> bool:
        return self.logit_scale is not None or isinstance(self.margin, Tensor)

    def column_parameters(self, pairs: Pairs, columns: Tensor) -> tuple[Tensor, ...]:
        """What margins lower the targets' logits by."""
        if not self._by_class:
            return ()
        scale: Tensor | float = self.scale if self.logit_scale is None else self.logit_scale.exp()
        lowered = torch.as_tensor(scale * self.margin, device=columns.device)
        return (self.part_here(pairs, lowered.expand(self.num_classes)),)

    def spec(self) -> LossSpec:
        scale, negative = self.scales(self.scale)
        lowered = Column(0) if self._by_class else self.scale * self.margin
        return LossSpec(positive=Linear(negative, lowered), negative=Linear(scale), smoothing=self.label_smoothing)


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
