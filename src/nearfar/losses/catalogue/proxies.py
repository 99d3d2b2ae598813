"""Proxy losses: a learned vector per class stands for the class's samples."""

from dataclasses import KW_ONLY, InitVar
from typing import Any

from torch import Tensor

from nearfar.losses.catalogue.strip_loss import masked_logsumexp
from nearfar.losses.engine.maps import Linear, softplus
from nearfar.losses.engine.pools import relaxed_similarity
from nearfar.losses.engine.spec import LossSpec, StripSpec
from nearfar.losses.loss import ClassLevelLoss
from nearfar.losses.registry import register
from nearfar.losses.settings import Positive, PositiveInt


@register("proxy", "−log(exp(−d²_y) / Σ_j exp(−d²_j)), original: j ≠ y")
class ProxyNCALoss(ClassLevelLoss):
    """Proxy-NCA, and its ++ form.

        l = -log( exp(-softmax_scale d(x, p_y)) / sum_j exp(-softmax_scale d(x, p_j)) )
        d(x, p) = |x/|x| - p/|p||^2 = 2 - 2s

    The sum is over all proxies (Proxy-NCA++, and pytorch-metric-learning), or with `exclude_positive` over the others
    (the original paper).

    Args:
        num_classes, embedding_size: shape of the proxies.
        softmax_scale: multiplies the distances; Proxy-NCA++ has 9 (its T = 1/9).
        exclude_positive: leave the positive proxy out of the denominator.

    Example:
        >>> import torch
        >>> loss = ProxyNCALoss(num_classes=10, embedding_size=16, softmax_scale=9)
        >>> loss(torch.randn(8, 16), torch.arange(8)).backward()
        >>> loss.weight.grad.shape
        torch.Size([10, 16])

    References: Y. Movshovitz-Attias et al., "No Fuss Distance Metric Learning using Proxies", ICCV 2017,
    arXiv:1703.07464, Eq. 4; E. Teh, T. DeVries, G. Taylor, "ProxyNCA++", ECCV 2020, arXiv:2004.01113.
    """

    softmax_scale: Positive = 1.0
    _: KW_ONLY
    exclude_positive: bool = False

    def spec(self) -> LossSpec:
        scale = 2 * self.softmax_scale
        return LossSpec(
            positive=Linear(-scale), negative=Linear(scale), act="identity" if self.exclude_positive else "softplus"
        )


@register("proxy", "1/|P⁺| Σ log(1 + Σ_p exp(−α(s_p−δ))) + 1/|P| Σ log(1 + Σ_n exp(α(s_n+δ)))")
class ProxyAnchorLoss(ClassLevelLoss):
    """Proxy-Anchor: each proxy is an anchor, and the batch's samples are its positives and negatives.

        L = 1/|P+| sum_{p in P+} log(1 + sum_{x in X_p+} exp(-alpha (s - margin)))
          + 1/|P|  sum_{p in P}  log(1 + sum_{x in X_p-} exp( alpha (s + margin)))

    P+ are the proxies with a positive in the batch, P all of them. Rows are proxies: `reduction="none"` gives one
    value each, whose mean is L. Train the proxies faster than the network (the paper: 100 times).

    With several proxies a class, s is SoftTriple's relaxed similarity, sum_k softmax_k(s_k / gamma) s_k, and the rows
    are classes.

    Args:
        num_classes, embedding_size: shape of the proxies.
        margin: δ.
        alpha: scale.
        proxies_per_class: K; class c has the rows c K … c K + K - 1 of `weight`.
        gamma: temperature of the softmax over a class's proxies.

    Example:
        >>> import torch
        >>> loss = ProxyAnchorLoss(num_classes=10, embedding_size=16, alpha=16)
        >>> loss(torch.randn(8, 16), torch.arange(8)).backward()
        >>> loss.weight.grad.shape
        torch.Size([10, 16])

    References: S. Kim et al., "Proxy Anchor Loss for Deep Metric Learning", CVPR 2020, arXiv:2003.13911, Eq. 4.
    """

    proxies_are_rows = True
    takes_soft_labels = False
    margin: float = 0.1
    alpha: Positive = 32.0
    _: KW_ONLY
    proxies_per_class: InitVar[PositiveInt] = 1
    gamma: Positive = 0.1

    def set_up(self, proxies_per_class: int, **sizes: Any) -> None:
        self.add_classes(**sizes, vectors_per_class=proxies_per_class)

    def _terms(self, s: Tensor, positive: Tensor, negative: Tensor, log_weight: Tensor) -> tuple[Tensor, Tensor]:
        """The positive and the negative term of every class, from its K proxies' similarities (b K, N)."""
        by_class = s.reshape(-1, self.vectors_per_class, s.shape[1]).transpose(1, 2)
        similarity = relaxed_similarity(by_class, self.gamma, -1)
        pull = masked_logsumexp(-self.alpha * (similarity - self.margin) + log_weight, positive)
        push = masked_logsumexp(self.alpha * (similarity + self.margin) + log_weight, negative)
        return softplus(pull), softplus(push)

    def spec(self) -> LossSpec | StripSpec:
        k = self.vectors_per_class
        if k > 1:
            return StripSpec(self._terms, average="sides", anchors="proxies", vectors_per_class=k)
        return LossSpec(
            positive=Linear(-self.alpha, self.alpha * self.margin),
            negative=Linear(self.alpha, self.alpha * self.margin),
            combine="split",
            average="sides",
            anchors="proxies",
        )
