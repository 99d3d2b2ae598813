"""Newer face losses: margins that depend on the sample, and squared cosines."""

from dataclasses import KW_ONLY
from typing import Any

import torch
from torch import Tensor

from nearfar.errors import InputError
from nearfar.losses.engine.angles import ArcMargin, QualityMargin
from nearfar.losses.engine.maps import Curriculum, Linear, Row, Square
from nearfar.losses.engine.pairs import Pairs
from nearfar.losses.engine.spec import LossSpec, plain_sums
from nearfar.losses.engine.vectors import norms, unit, wide
from nearfar.losses.labels import class_ids
from nearfar.losses.loss import ClassLevelLoss
from nearfar.losses.registry import register
from nearfar.losses.settings import Angle, Fraction, Positive


@register("class", "softmax of γ s_j, target γ(cos(θ_y − m z) − m − m z), z the feature norm's standing in the batch")
class AdaFaceLoss(ClassLevelLoss):
    """AdaFace: the margin follows the image's quality, which the feature's norm indicates.

        z = clip((|x| - mean) / (std + 0.001) h, -1, 1)
        target logit: scale (cos(theta_y - margin z) - margin - margin z)

    mean and std of |x| (clipped to [0.001, 100]) are running averages, updated by every training step and saved; z is a
    constant in the gradient, and the shifted angle is clipped to [0.001, π - 0.001].

    Args:
        num_classes, embedding_size: shape of the class weights.
        margin: m.
        scale: γ.
        h: concentration of z.
        t_alpha: the weight of a new batch in the running averages.

    Example:
        >>> import torch
        >>> loss = AdaFaceLoss(num_classes=10, embedding_size=16, h=0.3)
        >>> loss(torch.randn(8, 16), torch.arange(8)).backward()
        >>> loss.weight.grad.shape
        torch.Size([10, 16])

    References: M. Kim, A. Jain, X. Liu, "AdaFace: Quality Adaptive Margin for Face Recognition", CVPR 2022,
    arXiv:2204.00964.
    """

    free_norm = True
    takes_soft_labels = False  # its averages are over samples
    margin: Angle = 0.4
    scale: Positive = 64.0
    _: KW_ONLY
    h: float = 0.333
    t_alpha: Fraction = 0.01

    def set_up(self, **sizes: Any) -> None:
        self.add_classes(**sizes)
        self.batch_mean: Tensor
        self.batch_std: Tensor
        self.register_buffer("batch_mean", torch.tensor(20.0))
        self.register_buffer("batch_std", torch.tensor(100.0))

    def before_step(self, embeddings: Tensor, labels: Tensor | None) -> None:
        if len(embeddings) > 1:
            norm = norms(embeddings).clamp(1e-3, 100)
            self.batch_mean.lerp_(norm.mean().to(self.batch_mean.dtype), self.t_alpha)
            self.batch_std.lerp_(norm.std().to(self.batch_std.dtype), self.t_alpha)

    def spec(self) -> LossSpec:
        return LossSpec(positive=QualityMargin(self.scale, self.margin, z=Row(0)), negative=Linear(self.scale))

    @torch.no_grad()
    def row_parameters(self, pairs: Pairs, embeddings: Tensor, labels: Tensor | None) -> tuple[Tensor, ...]:
        """z of every sample."""
        norm, mean, std = norms(embeddings).clamp(1e-3, 100), float(self.batch_mean), float(self.batch_std)
        return (((norm - mean) / (std + 1e-3) * self.h).clamp_(-1, 1),)


@register("class", "softmax of γ s_j, target γ cos(θ_y + m(‖x‖)); + λ_g(a/u_a² + 1/a)")
class MagFaceLoss(ClassLevelLoss):
    """MagFace: a margin that grows with the feature's norm, and a term that rewards long features.

        a = |x| clipped to [l_a, u_a],   m(a) linear from l_margin to u_margin
        target logit: scale cos(theta_y + m(a)),   l += lambda_g (a / u_a^2 + 1 / a)

    The norm is differentiated in both; past π the target continues as in ArcFace.

    Args:
        num_classes, embedding_size: shape of the class weights.
        l_a, u_a: the norms between which the margin grows.
        l_margin, u_margin: its values there, in radians.
        scale: γ.
        lambda_g: weight of the norm's term.

    Example:
        >>> import torch
        >>> loss = MagFaceLoss(num_classes=10, embedding_size=16, l_a=1, u_a=10)
        >>> loss(torch.randn(8, 16), torch.arange(8)).backward()
        >>> loss.weight.grad.shape
        torch.Size([10, 16])

    References: Q. Meng et al., "MagFace: A Universal Representation for Face Recognition and Quality Assessment",
    CVPR 2021, arXiv:2103.06627.
    """

    needs_class_ids = True
    free_norm = True
    _: KW_ONLY
    l_a: float = 10.0
    u_a: float = 110.0
    l_margin: Angle = 0.45
    u_margin: Angle = 0.8
    scale: Positive = 64.0
    lambda_g: float = 35.0

    def set_up(self, **sizes: Any) -> None:
        if not 0 < self.l_a < self.u_a:
            raise InputError(f"l_a and u_a must be norms with 0 < l_a < u_a, not {self.l_a} and {self.u_a}")
        self.add_classes(**sizes)

    def spec(self) -> LossSpec:
        return LossSpec(positive=ArcMargin(self.scale, margin=Row(0)), negative=Linear(self.scale))

    def row_parameters(self, pairs: Pairs, embeddings: Tensor, labels: Tensor | None) -> tuple[Tensor, ...]:
        """m(a) of every sample."""
        growth = (self.u_margin - self.l_margin) / (self.u_a - self.l_a)
        return (self.l_margin + growth * (norms(embeddings).clamp(self.l_a, self.u_a) - self.l_a),)

    def penalty(self, embeddings: Tensor, labels: Tensor | None) -> Tensor | None:
        a = norms(embeddings).clamp(self.l_a, self.u_a)
        return self.lambda_g * (a / self.u_a**2 + 1 / a)


@register("class", "ArcFace whose negatives with s_j > cos(θ_y + m) become s_j(t + s_j)")
class CurricularFaceLoss(ClassLevelLoss):
    """CurricularFace: ArcFace that weights hard negatives more as the model improves.

        target logit: scale cos(theta_y + margin)
        other logits: scale s_j,   or scale s_j (t + s_j) where s_j > cos(theta_y + margin)

    t is the running mean of cos(theta_y), updated by every training step and saved.

    Args:
        num_classes, embedding_size: shape of the class weights.
        margin: m, in radians.
        scale: γ.

    Example:
        >>> import torch
        >>> loss = CurricularFaceLoss(num_classes=10, embedding_size=16, margin=0.4)
        >>> loss(torch.randn(8, 16), torch.arange(8)).backward()
        >>> loss.weight.grad.shape
        torch.Size([10, 16])

    References: Y. Huang et al., "CurricularFace: Adaptive Curriculum Learning Loss for Deep Face Recognition",
    CVPR 2020, arXiv:2004.00288, Eq. 5-8.
    """

    needs_class_ids = True
    takes_soft_labels = False  # so is the running mean of its targets
    margin: Angle = 0.5
    scale: Positive = 64.0

    def set_up(self, **sizes: Any) -> None:
        self.add_classes(**sizes)
        self.t: Tensor
        self.register_buffer("t", torch.zeros(()))

    def before_step(self, embeddings: Tensor, labels: Tensor | None) -> None:
        if labels is not None and labels.ndim == 1 and len(labels):
            self.t.lerp_(self._own_cosines(embeddings, labels).mean().to(self.t.dtype), 0.01)

    def spec(self) -> LossSpec:
        return LossSpec(
            positive=ArcMargin(self.scale, self.margin),
            negative=Curriculum(self.scale, float(self.t), border=Row(0)),
        )

    def row_parameters(self, pairs: Pairs, embeddings: Tensor, labels: Tensor | None) -> tuple[Tensor, ...]:
        """cos(theta_y + margin), above which negatives are hard."""
        return (torch.cos(torch.acos(self._own_cosines(embeddings, labels).clamp(-1, 1)) + self.margin),)

    @torch.no_grad()
    def _own_cosines(self, embeddings: Tensor, labels: Tensor | None) -> Tensor:
        assert self.weight is not None
        x, ids = unit(wide(embeddings)), class_ids(labels, "CurricularFaceLoss")
        return self.with_own_class(self.weight, ids, lambda w: (x * unit(wide(w))).sum(1))


@register("class", "mean_c (s_c − [c = y])²")
class P2SGradLoss(ClassLevelLoss):
    """P2SGrad: squared errors of the cosines, whose gradient has no scale or margin to tune.

        l = 1/C sum_c (s_c - [c == y])^2

    A state_dict of pytorch-metric-learning, whose weight is (dimension, classes), is transposed when it is loaded,
    unless it is square: transpose that yourself.

    Args:
        num_classes, embedding_size: shape of the class weights.

    Example:
        >>> import torch
        >>> loss = P2SGradLoss(num_classes=10, embedding_size=16)
        >>> loss(torch.randn(8, 16), torch.arange(8)).backward()
        >>> loss.weight.grad.shape
        torch.Size([10, 16])

    References: X. Zhang et al., "P2SGrad: Refined Gradients for Optimizing Deep Face Models", CVPR 2019,
    arXiv:1905.02479, Eq. 11.
    """

    needs_class_ids = True

    def spec(self) -> LossSpec:
        # (s - 1)^2 = s^2 + (1 - 2s): the squares of all classes, and the rest for the sample's own.
        return plain_sums(Linear(-2, 1), Square(), scale=1 / self.num_classes, others=True)
