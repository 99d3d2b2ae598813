"""Losses with several vectors, or a running mean, for every class."""

import math
from dataclasses import KW_ONLY, InitVar
from typing import Any

import torch
from torch import Tensor

from nearfar.losses import inputs
from nearfar.losses.engine.angles import ArcMargin
from nearfar.losses.engine.maps import Linear
from nearfar.losses.engine.pairs import Pairs
from nearfar.losses.engine.pools import Nearest, Relaxed
from nearfar.losses.engine.spec import LossSpec
from nearfar.losses.engine.vectors import unit, wide
from nearfar.losses.inputs import Batch
from nearfar.losses.labels import check_class_ids, class_ids
from nearfar.losses.loss import ClassLevelLoss
from nearfar.losses.registry import register
from nearfar.losses.settings import ANGLE, Angle, Fraction, Positive, PositiveInt


@register("class", "softmax of λ S_c, target λ(S_y − δ), S_c = Σ_k softmax_k(s_ck/γ) s_ck; + τ Σ‖w_t − w_s‖")
class SoftTripleLoss(ClassLevelLoss):
    """SoftTriple: a softmax over classes that have several centres each, which a regulariser lets merge.

        S_c = sum_k softmax_k(s_ck / gamma) s_ck
        l = -log( exp(la (S_y - margin)) / (exp(la (S_y - margin)) + sum_{j != y} exp(la S_j)) )
        L = mean l + tau / (C K (K - 1)) sum_c sum_{t < s} sqrt(2 - 2 w_ct.w_cs)

    Args:
        num_classes, embedding_size: classes and dimension.
        centers_per_class: K; class c has the rows c K … c K + K - 1 of `weight`.
        la: λ, scale of the logits.
        gamma: temperature of the softmax over centres.
        margin: δ.
        tau: weight of the regulariser.

    Example:
        >>> import torch
        >>> loss = SoftTripleLoss(num_classes=10, embedding_size=16, centers_per_class=2)
        >>> loss(torch.randn(8, 16), torch.arange(8)).backward()
        >>> loss.weight.grad.shape
        torch.Size([20, 16])

    References: Q. Qian et al., "SoftTriple Loss: Deep Metric Learning Without Triplet Sampling", ICCV 2019,
    arXiv:1909.05235, Eq. 10.
    """

    centers_per_class: InitVar[PositiveInt] = 10
    la: Positive = 20.0
    gamma: Positive = 0.1
    margin: float = 0.01
    _: KW_ONLY
    tau: float = 0.2

    def set_up(self, centers_per_class: int, **sizes: Any) -> None:
        self.add_classes(**sizes, vectors_per_class=centers_per_class)

    def spec(self) -> LossSpec:
        k = self.vectors_per_class
        return LossSpec(
            positive=Linear(-self.la, self.la * self.margin),
            negative=Linear(self.la),
            pool=Relaxed(k, self.gamma, share=self.tau / (self.num_classes * k * max(1, k - 1))),
        )


@register("class", "softmax of γ S_j, target γ cos(θ_y + m), S_c = max_k s_ck")
class SubCenterArcFaceLoss(ClassLevelLoss):
    """ArcFace over classes with several sub-centres, of which the nearest counts, so that noise gathers at the others.

        S_c = max_k s_ck,   target logit: scale cos(arccos(S_y) + margin)

    Args:
        num_classes, embedding_size: classes and dimension.
        margin: m, in radians.
        scale: γ.
        sub_centers: K; class c has the rows c K … c K + K - 1 of `weight`.

    Example:
        >>> import torch
        >>> loss = SubCenterArcFaceLoss(num_classes=10, embedding_size=16, sub_centers=2)
        >>> loss(torch.randn(8, 16), torch.arange(8)).backward()
        >>> loss.weight.grad.shape
        torch.Size([20, 16])

    References: J. Deng et al., "Sub-center ArcFace: Boosting Face Recognition by Large-Scale Noisy Web Faces",
    ECCV 2020.
    """

    margin: Angle = 0.5
    scale: Positive = 64.0
    sub_centers: InitVar[PositiveInt] = 3

    def set_up(self, sub_centers: int, **sizes: Any) -> None:
        self.add_classes(**sizes, vectors_per_class=sub_centers)

    def spec(self) -> LossSpec:
        return LossSpec(
            positive=ArcMargin(self.scale, self.margin),
            negative=Linear(self.scale),
            pool=Nearest(self.vectors_per_class),
        )

    @torch.no_grad()
    def get_outliers(
        self, embeddings: Tensor, labels: Tensor, threshold: float = math.radians(75)
    ) -> tuple[Tensor, Tensor]:
        """Samples further than `threshold` (radians) from their class's dominant sub-centre, the one that most of the
        class's samples are nearest to: likely noise, to be removed before training again with one centre a class.

        Returns:
            The indices of the outliers, and the dominant centres (classes, dimension).
        """
        ANGLE.check("threshold", threshold)
        centers = self.class_vectors().reshape(self.num_classes, self.vectors_per_class, -1)
        cosines = torch.einsum("nd,nkd->nk", unit(embeddings.to(centers.dtype)), centers[labels])
        votes = torch.zeros(centers.shape[:2], dtype=torch.long, device=labels.device)
        votes.index_put_((labels, cosines.argmax(1)), torch.ones_like(labels), accumulate=True)
        dominant = votes.argmax(1)
        angle = torch.arccos(cosines.gather(1, dominant[labels, None])[:, 0].clamp(-1, 1))
        classes = torch.arange(len(centers), device=labels.device)
        return (angle > threshold).nonzero()[:, 0], centers[classes, dominant]


@register("class", "λ/2 ‖x − c_y‖²")
class CenterLoss(ClassLevelLoss):
    """Centre loss: every sample to the running mean of its class; added to a softmax.

        l = loss_weight/2 |x - c_y|^2
        c_j <- c_j - alpha sum_{y_i = j} (c_j - x_i) / (1 + n_j)        n_j samples of class j in the batch

    of vectors that are not normalised. The centres are buffers: training steps move them by the paper's rule, whatever
    the weight of the loss is, and no optimiser does.

        loss = SoftmaxLoss(C, D) + CenterLoss(C, D, loss_weight=0.003)

    Args:
        num_classes, embedding_size: classes and dimension.
        alpha: how fast the centres follow, from 0 to 1.
        loss_weight: λ; the paper has 0.003 for faces.

    Example:
        >>> import torch
        >>> loss = CenterLoss(num_classes=10, embedding_size=16, alpha=0.3)
        >>> value = loss(torch.randn(8, 16), torch.arange(8))
        >>> loss.centers.shape
        torch.Size([10, 16])

    References: Y. Wen et al., "A Discriminative Feature Learning Approach for Deep Face Recognition", ECCV 2016,
    Eq. 2-4.
    """

    class_level = True
    needs_class_ids = True
    takes_soft_labels = False
    takes_references = False
    free_norm = True
    alpha: Fraction = 0.5
    _: KW_ONLY
    loss_weight: float = 1.0

    def set_up(self, num_classes: int, embedding_size: int) -> None:
        device = torch.device("meta") if self.sharded else None
        self.centers: Tensor
        self.register_buffer("centers", torch.empty(num_classes, embedding_size, device=device))
        torch.nn.init.xavier_uniform_(self.centers)

    @property
    def class_table(self) -> Tensor:
        return self.centers

    def logits(self, embeddings: Tensor) -> Tensor:
        """-loss_weight/2 |x - c|^2 (N, C)."""
        return torch.cdist(wide(embeddings), self.class_vectors()).square() * (-self.loss_weight / 2)

    def over_pairs(self, pairs: Pairs, batch: Batch) -> Tensor:
        embeddings, labels = batch.embeddings, class_ids(batch.labels, "CenterLoss")
        check_class_ids(labels, self.num_classes)
        inputs.check_embeddings(embeddings, self.centers.shape[1])
        x = embeddings.to(torch.promote_types(embeddings.dtype, self.centers.dtype))
        # The centres as they are before this step, which moves them before the gradient is computed.
        distances = self.with_own_class(self.centers, labels, lambda centers: (x - centers).square().sum(1))
        if self.training and torch.is_grad_enabled():
            self._move_centers(x.detach(), labels)
        return self.reduced(distances * (self.loss_weight / 2), pairs, batch.sample_weight)

    @torch.no_grad()
    def _move_centers(self, x: Tensor, labels: Tensor) -> None:
        centers = self.centers
        if self.distribution is not None:  # only those of this rank's classes
            centers, labels, held = self.distribution.held(centers, labels)
            x, labels = x[held], labels[held]
        present, index, number = torch.unique(labels, return_inverse=True, return_counts=True)
        before = centers[present]
        away = torch.zeros_like(before).index_add_(0, index, (before[index] - x).to(before.dtype))
        centers[present] = before - self.alpha * away / (1 + number[:, None])
