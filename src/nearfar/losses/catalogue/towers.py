"""Losses of two towers: row i of `a` and row i of `b` are two views of one thing, as an image and its caption."""

import functools
import math
from dataclasses import KW_ONLY, InitVar
from typing import Any

import torch
from torch import Tensor, nn

from nearfar.errors import InputError
from nearfar.losses import inputs
from nearfar.losses.calling import eager
from nearfar.losses.engine.maps import Linear, Softplus
from nearfar.losses.engine.pairs import ClassPairs, TowerPairs
from nearfar.losses.engine.spec import LossSpec, plain_sums
from nearfar.losses.engine.vectors import unit
from nearfar.losses.loss import Loss
from nearfar.losses.registry import register
from nearfar.losses.settings import Positive


class TwoTowerLoss(Loss):
    """The call of a loss of two towers."""

    takes_references = False

    @eager
    def forward(
        self, a: Tensor, b: Tensor, negatives: Tensor | None = None, *, sample_weight: Tensor | None = None
    ) -> Tensor:
        """
        Args:
            a, b: (N, D) each, of any norm; row i of one belongs to row i of the other.
            negatives: not taken: the other rows of the batch are the negatives. The error says what takes others.
            sample_weight: (N,) weights of the pairs in the mean.
        """
        if negatives is not None:
            raise InputError(
                f"{type(self).__name__} takes its negatives from the batch. NTXentLoss compares with others, too: "
                "i = torch.arange(len(a)); NTXentLoss(temperature)(a, i, ref_emb=torch.cat([b, negatives]), "
                "ref_labels=torch.cat([i, torch.full((len(negatives),), len(a))]))"
            )
        a = self.watched(a)
        inputs.check_embeddings(a, None, "a", finite=self.check_finite)
        inputs.check_embeddings(b, a.shape[1], "b", finite=self.check_finite)
        if len(a) != len(b):
            raise InputError(f"{len(a)} rows of a for {len(b)} of b: row i of one belongs to row i of the other")
        inputs.check_sample_weight(sample_weight, len(a), self)
        if self._statistics is not None:
            n = len(a)
            self._statistics.add_similarities(ClassPairs.to_classes(torch.arange(n, device=a.device), n), a, b)
        dtype = functools.reduce(torch.promote_types, (a.dtype, b.dtype, torch.float32))
        if self.distribution is not None:
            return self.distribution.evaluate_towers(self, a.to(dtype), b.to(dtype), sample_weight)
        return self.of_towers(a.to(dtype), b.to(dtype), sample_weight)

    def of_towers(self, a: Tensor, b: Tensor, sample_weight: Tensor | None) -> Tensor:
        """The loss of checked towers, in float32 or float64."""
        if not len(a):
            return self.zero(a, b, shape=(0,) if self.reduction == "none" else ())
        pairs = ClassPairs.to_classes(torch.arange(len(a), device=a.device), len(a))
        return self.of_rows((a, b), (a, b), pairs, sample_weight)

    def of_rows(
        self, rows: tuple[Tensor, Tensor], towers: tuple[Tensor, Tensor], pairs: ClassPairs, weight: Tensor | None
    ) -> Tensor:
        """The part of these `rows` of both towers, all or one rank's, in the loss of the `towers`; `pairs` are the rows
        of one × all rows of the other. A loss that is not `row_local` defines `of_towers` instead.
        """
        raise TypeError(f"{type(self).__name__} does not say what its loss is: define of_rows() or of_towers()")


@register("towers", "½(log Σ_j exp((s_ij − s_ii)/τ) + log Σ_j exp((s_ji − s_ii)/τ))")
class InfoNCELoss(TwoTowerLoss):
    """InfoNCE of two towers, in both directions, with a learned temperature (CLIP's loss).

        l_i = 1/2 (log sum_j exp((s_ij - s_ii) / temperature) + log sum_j exp((s_ji - s_ii) / temperature))

    Cosine similarities of a_i and b_j, all pairs of the batch. Both directions share the three matrix products.

    Args:
        temperature: τ, the initial value if it is learned.
        learnable: whether it is learned, as the parameter `logit_scale` = log 1/τ.
        max_scale: 1/τ stays below this.

    Example:
        >>> import torch
        >>> images, texts = torch.randn(8, 16), torch.randn(8, 16)
        >>> InfoNCELoss()(images, texts).shape
        torch.Size([])

    References: A. van den Oord et al., "Representation Learning with Contrastive Predictive Coding", 2018,
    arXiv:1807.03748; A. Radford et al., "Learning Transferable Visual Models From Natural Language Supervision", ICML
    2021, arXiv:2103.00020.
    """

    row_local = True
    temperature: Positive = 0.07
    _: KW_ONLY
    learnable: InitVar[bool] = True
    max_scale: Positive = 100.0

    def set_up(self, learnable: bool) -> None:
        self.learn_scale(1 / self.temperature)
        assert self.logit_scale is not None
        self.logit_scale.requires_grad_(learnable)

    def scales(self, scale: float) -> tuple[Any, Any]:
        assert self.logit_scale is not None
        current = self.logit_scale.clamp_max(math.log(self.max_scale)).exp()
        return current, -current

    def spec(self) -> LossSpec:
        # SupCon with one positive, compared with all rows of the other tower.
        return LossSpec(
            positive=Linear(-1.0),
            negative=Linear(1.0),
            gather=("mean", "lse"),
            act="identity",
            others=True,
            average="positive",
            normalize=(False, False),
        )

    def of_towers(self, a: Tensor, b: Tensor, sample_weight: Tensor | None) -> Tensor:
        n = len(a)
        if not n:
            return super().of_towers(a, b, sample_weight)
        # One set of 2N rows, compared only across the towers: a tile of similarities serves both directions.
        both = torch.cat([unit(a), unit(b)]) * self.scales(1.0)[0].sqrt()
        weight = None if sample_weight is None else sample_weight.repeat(2)
        loss = self.evaluate(self.spec(), TowerPairs(n, a.device), both, None, row_weight=weight)
        return loss.view(2, n).mean(0) if self.reduction == "none" else loss / 2 if self.reduction == "sum" else loss

    def of_rows(
        self, rows: tuple[Tensor, Tensor], towers: tuple[Tensor, Tensor], pairs: ClassPairs, weight: Tensor | None
    ) -> Tensor:
        scale, spec = self.scales(1.0)[0].sqrt(), self.spec()
        forth, back = (
            self.evaluate(spec, pairs, unit(x) * scale, unit(y) * scale, row_weight=weight)
            for x, y in zip(rows, reversed(towers), strict=True)
        )
        return (forth + back) / 2


@register("towers", "log(1 + exp(−(t s_ii + b))) + Σ_{j≠i} log(1 + exp(t s_ij + b))")
class SigLIPLoss(TwoTowerLoss):
    """Sigmoid loss of two towers: a binary classification of every pair, as a match or not.

        l_i = log(1 + exp(-(t s_ii + b))) + sum_{j != i} log(1 + exp(t s_ij + b))

    Cosine similarities of a_i and b_j; t and b are learned.

    Args:
        temperature: the initial t, which multiplies, as in the paper; learned as the parameter `logit_scale` = log t.
        bias: the initial b, which makes up for the many negatives.
        learnable: whether both are learned.

    Example:
        >>> import torch
        >>> loss = SigLIPLoss(bias=-5)
        >>> round(loss(torch.eye(4), torch.eye(4).flip(0)).item(), 3)
        10.027

    References: X. Zhai et al., "Sigmoid Loss for Language Image Pre-Training", ICCV 2023, arXiv:2303.15343, Eq. 1.
    """

    row_local = True
    temperature: InitVar[Positive] = 10.0
    bias: InitVar[float] = -10.0
    _: KW_ONLY
    learnable: InitVar[bool] = True

    def set_up(self, temperature: float, bias: float, learnable: bool) -> None:
        self.logit_scale = nn.Parameter(torch.tensor(math.log(temperature)), requires_grad=learnable)
        self.logit_bias = nn.Parameter(torch.tensor(float(bias)), requires_grad=learnable)

    def spec(self) -> LossSpec:
        return plain_sums(Softplus(-1), Softplus(1), average="all", normalize=(False, False))

    def of_rows(
        self, rows: tuple[Tensor, Tensor], towers: tuple[Tensor, Tensor], pairs: ClassPairs, weight: Tensor | None
    ) -> Tensor:
        assert self.logit_scale is not None
        a, b = rows[0], towers[1]
        # One more dimension carries the bias.
        x = torch.cat([unit(a) * self.logit_scale.exp(), self.logit_bias.expand(len(a), 1).to(a.dtype)], 1)
        y = torch.cat([unit(b), b.new_ones(len(b), 1)], 1)
        return self.evaluate(self.spec(), pairs, x, y, row_weight=weight)


@register("towers", "λ mean (a − b)² + Σ_towers (μ/2 mean_d [1 − σ_d]₊ + ν/D Σ_{d≠e} cov_de²)")
class VICRegLoss(TwoTowerLoss):
    """VICReg: two views agree, every dimension varies, and no two dimensions vary together.

        L = invariance_lambda mean (a - b)^2
            + variance_mu/2 mean_d [1 - sqrt(var_d + eps)]_+ + covariance_v/D sum_{d != e} cov_de^2    of both towers

    of vectors that are not normalised; it has no negatives. It is one number for the batch, of at least two rows.

    Args:
        invariance_lambda, variance_mu, covariance_v: weights of the three terms.
        eps: under the root of the variance.

    Example:
        >>> import torch
        >>> loss = VICRegLoss(variance_mu=10)
        >>> round(loss(torch.eye(4), torch.eye(4).flip(0)).item(), 3)
        17.541

    References: A. Bardes, J. Ponce, Y. LeCun, "VICReg: Variance-Invariance-Covariance Regularization for
    Self-Supervised Learning", ICLR 2022, arXiv:2105.04906, Eq. 1-6; the half is in its code.
    """

    whole_batch = True
    invariance_lambda: float = 25.0
    variance_mu: float = 25.0
    covariance_v: float = 1.0
    eps: Positive = 1e-4

    def of_towers(self, a: Tensor, b: Tensor, sample_weight: Tensor | None) -> Tensor:
        if len(a) < 2:
            raise InputError(f"VICRegLoss needs the variances of a batch: {len(a)} rows have none")
        return self.invariance_lambda * (a - b).square().mean() + self._spread(a) + self._spread(b)

    def _spread(self, tower: Tensor) -> Tensor:
        centred = tower - tower.mean(0)
        covariance = centred.t() @ centred / (len(tower) - 1)
        variance = covariance.diagonal()
        together = (covariance.square().sum() - variance.square().sum()) / tower.shape[1]
        return self.variance_mu / 2 * torch.relu(1 - (variance + self.eps).sqrt()).mean() + self.covariance_v * together
