"""Pair-level losses: samples × samples (or × `ref_emb`)."""

from dataclasses import KW_ONLY, InitVar
from typing import Literal

import torch
from torch import Tensor, nn

from nearfar.errors import InputError
from nearfar.losses.catalogue.distances import DistanceKind, DistanceLoss
from nearfar.losses.engine.maps import Hinge, Linear
from nearfar.losses.engine.pairs import ClassPairs, Pairs
from nearfar.losses.engine.spec import LossSpec, plain_sums
from nearfar.losses.engine.vectors import unit, wide
from nearfar.losses.inputs import Batch
from nearfar.losses.labels import class_ids
from nearfar.losses.loss import Loss
from nearfar.losses.registry import register
from nearfar.losses.settings import Positive


@register("pair", "mean [d_p − m_p]₊² + mean [m_n − d_n]₊², over the pairs that are not zero")
class ContrastiveLoss(DistanceLoss):
    """Contrastive loss: positives nearer than one margin, negatives further than another.

        L = mean_p [d - pos_margin]_+ ^ power + mean_n [neg_margin - d]_+ ^ power

    each mean over the pairs whose term is not zero.

    Args:
        pos_margin, neg_margin: in the distance's unit.
        power: 2 as in the paper; 1 gives unsquared hinges, as pytorch-metric-learning has them.
        distance: "l2", "squared_l2" or "cosine" (1 - s).
        normalize: compare normalised vectors; False compares them as they are.

    Example:
        >>> import torch
        >>> loss = ContrastiveLoss(pos_margin=0.2, neg_margin=1.5)
        >>> round(loss(torch.eye(4), torch.tensor([0, 0, 1, 1])).item(), 3)
        1.482

    References: R. Hadsell, S. Chopra, Y. LeCun, "Dimensionality Reduction by Learning an Invariant Mapping", CVPR
    2006, Eq. 4.
    """

    row_local = True
    pos_margin: float = 0.0
    neg_margin: float = 1.0
    _: KW_ONLY
    power: Literal[1, 2] = 2
    distance: DistanceKind = "l2"

    def spec(self) -> LossSpec:
        positive = Hinge(self.distance_map(self.distance, 1, -self.pos_margin), self.power)
        negative = Hinge(self.distance_map(self.distance, -1, self.neg_margin), self.power)
        return plain_sums(positive, negative, average="active", normalize=self.normalized)


def _one_per_class(labels: Tensor) -> tuple[Tensor, Tensor]:
    """The first samples of the classes that have two, and their second ones."""
    first: dict[int, int] = {}
    second: dict[int, int] = {}
    for sample, label in enumerate(labels.tolist()):
        if first.setdefault(label, sample) != sample:
            second.setdefault(label, sample)
    rows, columns = [first[label] for label in second], list(second.values())
    chosen = torch.tensor([rows, columns], dtype=torch.long, device=labels.device)
    return chosen[0], chosen[1]


@register("pair", "log(1 + Σ_n exp(x·x_n − x·x_p)), for every positive")
class NPairsLoss(Loss):
    """Multi-class N-pair loss: a softmax of dot products, one positive against all negatives.

        l = mean_p log(1 + sum_n exp(x.x_n - x.x_p)) + l2_weight |x|^2

    of vectors that are not normalised, averaged over positive pairs. All samples of other classes are negatives. In the
    paper's form, `pairs="one_per_class"`, the first sample of every class in the batch is an anchor, the second its
    positive, and the positives of the other classes are the negatives; the rest of the batch is ignored.

    Args:
        pairs: "all" or "one_per_class".
        l2_weight: weight of the squared norms, which keeps them from growing (the paper's 0.02 times the 1/4 of its
            code).

    Example:
        >>> import torch
        >>> loss = NPairsLoss(pairs="one_per_class")
        >>> round(loss(torch.eye(4), torch.tensor([0, 0, 1, 1])).item(), 3)
        0.698

    References: K. Sohn, "Improved Deep Metric Learning with Multi-class N-pair Loss Objective", NeurIPS 2016.
    """

    free_norm = True
    _: KW_ONLY
    pairs: Literal["all", "one_per_class"] = "all"
    l2_weight: float = 0.005

    def set_up(self) -> None:
        self.row_local = self.takes_references = self.pairs == "all"

    def spec(self) -> LossSpec:
        positive, negative = Linear(-1.0), Linear(1.0)
        if self.pairs == "one_per_class":  # with one positive, its term is the row's loss
            return LossSpec(positive=positive, negative=negative, normalize=(False, False))
        return LossSpec(positive=positive, negative=negative, combine="each", average="pairs", normalize=(False, False))

    def over_pairs(self, pairs: Pairs, batch: Batch) -> Tensor:
        if self.pairs == "all":
            return super().over_pairs(pairs, batch)
        x, weight = batch.embeddings, batch.sample_weight
        labels = class_ids(batch.labels, 'NPairsLoss with pairs="one_per_class"')
        if batch.indices_tuple is not None:
            raise InputError('NPairsLoss with pairs="one_per_class" takes no indices_tuple')
        anchors, positives = _one_per_class(labels)
        pairs = ClassPairs.to_classes(torch.arange(len(anchors), device=labels.device), len(positives))
        by_row = self.reduction == "none"
        if not self.any_row_counts(pairs, "both"):
            return self.zero(x, shape=(len(labels),) if by_row else ())
        weight = None if weight is None else weight[anchors]
        loss = self.evaluate(self.spec(), pairs, x[anchors], x[positives], row_weight=weight)
        return loss.new_zeros(len(labels)).index_copy(0, anchors, loss) if by_row else loss

    def penalty(self, embeddings: Tensor, labels: Tensor | None) -> Tensor | None:
        return self.l2_weight * wide(embeddings).square().sum(1) if self.l2_weight else None


@register("pair", "1/α log(1 + Σ_p exp(−α(s_p−λ))) + 1/β log(1 + Σ_n exp(β(s_n−λ))), mined")
class MultiSimilarityLoss(Loss):
    """Multi-Similarity loss, with its mining.

        l = 1/alpha log(1 + sum_p exp(-alpha (s_p - base))) + 1/beta log(1 + sum_n exp(beta (s_n - base)))

    over the pairs kept by mining: negatives with s > min s_p - epsilon, positives with s < max s_n + epsilon. The
    mean is over all rows.

    Args:
        alpha, beta: scales of the positive and the negative side.
        base: the similarity λ at which a pair's exponent is zero.
        epsilon: the mining's slack; None keeps all pairs.
        learn_base: learn λ, as the parameter `base`.

    Example:
        >>> import torch
        >>> loss = MultiSimilarityLoss(alpha=2, beta=40)
        >>> round(loss(torch.eye(4), torch.tensor([0, 0, 1, 1])).item(), 3)
        0.657

    References: X. Wang et al., "Multi-Similarity Loss with General Pair Weighting for Deep Metric Learning", CVPR
    2019, arXiv:1904.06627.
    """

    row_local = True
    alpha: Positive = 2.0
    beta: Positive = 50.0
    base: float | Tensor = 0.5
    _: KW_ONLY
    epsilon: float | None = 0.1
    learn_base: InitVar[bool] = False

    def set_up(self, learn_base: bool) -> None:
        if learn_base:
            self.base = nn.Parameter(torch.tensor(float(self.base)))

    def spec(self) -> LossSpec:
        return LossSpec(
            positive=Linear(-self.alpha, self.alpha * self.base),
            negative=Linear(self.beta, -self.beta * self.base),
            combine="split",
            side_scale=(1 / self.alpha, 1 / self.beta),
            mining=self.epsilon,
            average="all",
        )


@register("pair", "log(1 + Σ_n exp((s_n − s_p)/τ)), for every positive")
class NTXentLoss(Loss):
    """Normalised-temperature cross-entropy: every positive pair against all negatives of its row.

        l = mean_p log(1 + sum_n exp((s_n - s_p) / temperature))

    Cosine similarities, averaged over positive pairs.

    Args:
        temperature: τ; where it begins, if it is learned.
        learnable: learn it, as the parameter `logit_scale` = log 1/τ.

    Example:
        >>> import torch
        >>> loss = NTXentLoss(temperature=0.5, learnable=True)
        >>> round(loss(torch.eye(4), torch.tensor([0, 0, 1, 1])).item(), 3)
        1.099

    References: T. Chen et al., "A Simple Framework for Contrastive Learning of Visual Representations", ICML 2020,
    arXiv:2002.05709, Eq. 1.
    """

    row_local = True
    temperature: Positive = 0.07
    _: KW_ONLY
    learnable: InitVar[bool] = False

    def spec(self) -> LossSpec:
        scale, negative = self.scales(1 / self.temperature)
        return LossSpec(positive=Linear(negative), negative=Linear(scale), combine="each", average="pairs")


@register("pair", "−mean_p s_p/τ + log Σ_{a≠self} exp(s_a/τ)")
class SupConLoss(Loss):
    """Supervised contrastive loss (its L_out): the mean log-probability of the positives among all other samples.

        l = -mean_p log( exp(s_p / temperature) / sum_a exp(s_a / temperature) ),   a over all other samples

    Cosine similarities; every row with a positive counts.

    Args:
        temperature: τ; where it begins, if it is learned.
        learnable: learn it, as the parameter `logit_scale` = log 1/τ.

    Example:
        >>> import torch
        >>> loss = SupConLoss(temperature=0.5)
        >>> round(loss(torch.eye(4), torch.tensor([0, 0, 1, 1])).item(), 3)
        1.099

    References: P. Khosla et al., "Supervised Contrastive Learning", NeurIPS 2020, arXiv:2004.11362, Eq. 2.
    """

    row_local = True
    temperature: Positive = 0.1
    _: KW_ONLY
    learnable: InitVar[bool] = False

    def spec(self) -> LossSpec:
        scale, negative = self.scales(1 / self.temperature)
        return LossSpec(
            positive=Linear(negative),
            negative=Linear(scale),
            gather=("mean", "lse"),
            act="identity",
            others=True,
            average="positive",
        )


@register("pair", "−log(Σ_p exp(−γd²_p) / Σ_a exp(−γd²_a))")
class NCALoss(Loss):
    """Neighbourhood components analysis: the probability that a random neighbour is of another class.

        l = -log( sum_p exp(-softmax_scale d_p^2) / sum_a exp(-softmax_scale d_a^2) ),   a over all other samples

    d^2 = 2 - 2s is the squared distance of normalised vectors. One near positive is enough: it suits classes of several
    modes.

    Args:
        softmax_scale: γ; 1 as in the paper, whose vectors are not normalised. About 10 separates more.

    Example:
        >>> import torch
        >>> loss = NCALoss(softmax_scale=10)
        >>> round(loss(torch.eye(4), torch.tensor([0, 0, 1, 1])).item(), 3)
        1.099

    References: J. Goldberger et al., "Neighbourhood Components Analysis", NIPS 2004.
    """

    row_local = True
    softmax_scale: Positive = 1.0

    def spec(self) -> LossSpec:
        # -log(P / (P + N)) = log(1 + N / P).
        scale = 2 * self.softmax_scale
        return LossSpec(positive=Linear(-scale, scale), negative=Linear(scale, -scale), gather=("softmin", "lse"))


@register("pair", "mean [d_p − m_p]₊ + mean [m_n − d_n]₊ of d = var(x − y)/var(x), over the pairs that are not zero")
class SignalToNoiseRatioContrastiveLoss(Loss):
    """Contrastive loss of the signal-to-noise ratio: the variance of a pair's difference over that of the anchor.

        d(x, y) = var(x - y) / var(x)        over the coordinates of the normalised vectors, x the anchor
        L = mean_p [d - pos_margin]_+ + mean_n [neg_margin - d]_+

    each mean over the pairs whose term is not zero. An anchor whose coordinates are all alike has no such ratio: its
    weight is zero.

    Args:
        pos_margin, neg_margin: in units of the ratio.

    Example:
        >>> import torch
        >>> loss = SignalToNoiseRatioContrastiveLoss(neg_margin=3.0)
        >>> round(loss(torch.eye(4), torch.tensor([0, 0, 1, 1])).item(), 3)
        3.0

    References: T. Yuan et al., "Signal-To-Noise Ratio: A Robust Distance Metric for Deep Metric Learning", CVPR 2019,
    arXiv:1904.02616.
    """

    row_local = True
    only_products = False
    pos_margin: float = 0.0
    neg_margin: float = 1.0

    def spec(self) -> LossSpec:
        positive = Hinge(Linear(1.0, 1 - self.pos_margin), 1)
        negative = Hinge(Linear(-1.0, self.neg_margin - 1), 1)
        return plain_sums(positive, negative, average="active", normalize=(False, False))

    def over_pairs(self, pairs: Pairs, batch: Batch) -> Tensor:
        # With centred vectors z, d = 1 + (|z_y|^2 - 2 z_x.z_y) / |z_x|^2: one product of different rows and columns.
        z, power = _centred(batch.embeddings)
        silent = power.detach() <= torch.finfo(power.dtype).eps ** 2
        rows = torch.cat([-2 * z, torch.ones_like(power)], 1) / power.masked_fill(silent, 1)
        columns = torch.cat((z, power) if batch.ref_emb is None else _centred(batch.ref_emb), 1)
        if not self.any_row_counts(pairs, "all"):
            return self.zero(rows, columns, shape=(len(rows),) if self.reduction == "none" else ())
        weight = batch.sample_weight
        if torch.compiler.is_compiling() or bool(silent.any()):
            weight = (torch.ones_like(power[:, 0]) if weight is None else weight).masked_fill(silent[:, 0], 0)
        return self.evaluate(self.spec(), pairs, rows, columns, row_weight=weight)


def _centred(vectors: Tensor) -> tuple[Tensor, Tensor]:
    """The unit vectors less the mean of their coordinates, and the squared norms of these differences (n, 1)."""
    x = unit(wide(vectors))
    z = x - x.mean(1, keepdim=True)
    return z, z.square().sum(1, keepdim=True)


@register("pair", "λ⁺ mean [m⁺ − s_p]₊ + λ⁻ mean [s_n − m⁻]₊, over the pairs that are not zero")
class ThresholdConsistentMarginLoss(Loss):
    """Threshold-consistent margin loss: positives above one similarity, negatives below another, the same for all.

        L = lambda_plus mean_p [margin_plus - s_p]_+ + lambda_minus mean_n [s_n - margin_minus]_+

    each mean over the pairs whose term is not zero. A regulariser: add it to a loss, so that one threshold of
    similarity fits all classes.

    Args:
        lambda_plus, lambda_minus: weights of the two sides.
        margin_plus, margin_minus: the similarities.

    Example:
        >>> import torch
        >>> from nearfar.losses import SupConLoss
        >>> loss = SupConLoss() + ThresholdConsistentMarginLoss(margin_plus=0.9)
        >>> round(loss(torch.eye(4), torch.tensor([0, 0, 1, 1])).item(), 3)
        1.999

    References: Q. Zhang et al., "Threshold-Consistent Margin Loss for Open-World Deep Metric Learning", ICLR 2024,
    arXiv:2307.04047.
    """

    row_local = True
    lambda_plus: float = 1.0
    lambda_minus: float = 1.0
    margin_plus: float = 0.9
    margin_minus: float = 0.5

    def spec(self) -> LossSpec:
        positive = Hinge(Linear(-1.0, self.margin_plus), 1)
        negative = Hinge(Linear(1.0, -self.margin_minus), 1)
        weights = self.lambda_plus, self.lambda_minus
        return plain_sums(positive, negative, average="active", side_scale=weights)
