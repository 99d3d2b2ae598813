"""Unified and Circle loss, of samples × samples, or, given `num_classes`, of samples × classes."""

from typing import Any

from torch import Tensor

from nearfar.errors import InputError
from nearfar.losses.engine.maps import Linear, Row, SelfPaced
from nearfar.losses.engine.pairs import Pairs
from nearfar.losses.engine.spec import LossSpec
from nearfar.losses.hyperparameters import check_positive
from nearfar.losses.loss import Loss
from nearfar.losses.registry import register


@register(
    "pair or class",
    "Sun et al., Circle Loss, CVPR 2020, arXiv:2002.10857, Eq. 1",
    "log(1 + Σ_n Σ_p exp(γ(s_n − s_p + m)))",
)
class UnifiedLoss(Loss):
    """The unified pair-similarity loss, of which AM-Softmax, NormFace and (as γ grows) the hard triplet are cases.

        l = log(1 + sum_n exp(gamma (s_n + m)) * sum_p exp(-gamma s_p))

    Cosine similarities; every row with a positive and a negative counts.

    Args:
        m: margin between the similarities.
        gamma: scale.
        num_classes, embedding_size: give both for the class-level form, which compares samples with learned class
            weights.

    References: Y. Sun et al., "Circle Loss: A Unified Perspective of Pair Similarity Optimization", CVPR 2020,
    arXiv:2002.10857, Eq. 1.
    """

    row_local = True

    def __init__(
        self,
        m: float = 0.25,
        gamma: float = 64.0,
        *,
        num_classes: int | None = None,
        embedding_size: int | None = None,
        **options: Any,
    ):
        super().__init__(**options)
        check_positive("gamma", gamma)
        self.m, self.gamma = m, gamma
        if num_classes is not None or embedding_size is not None:
            self.add_classes(num_classes, embedding_size)

    def spec(self) -> LossSpec:
        return LossSpec(positive=Linear(-self.gamma), negative=Linear(self.gamma, self.gamma * self.m))


@register(
    "pair or class",
    "Sun et al., Circle Loss, CVPR 2020, arXiv:2002.10857, Eq. 6",
    "log(1 + Σ_n exp(γ[s_n−O_n]₊(s_n−Δ_n)) · Σ_p exp(−γ[O_p−s_p]₊(s_p−Δ_p)))",
)
class CircleLoss(Loss):
    """Circle loss: every similarity is pulled the harder, the further it is from its optimum.

        l = log(1 + sum_n exp(gamma a_n (s_n - delta_n)) * sum_p exp(-gamma a_p (s_p - delta_p)))
        a_p = [O_p - s_p]_+,  a_n = [s_n - O_n]_+,  constants in the gradient

    with O_p = 1 + m, O_n = -m, delta_p = 1 - m, delta_n = m unless given. The decision boundary is then the circle
    s_n^2 + (1 - s_p)^2 = 2 m^2. Where the weights have slopes of their own, slope_p a_p and slope_n a_n, it is the
    ellipse slope_n (s_n^2 - m^2) + slope_p ((1 - s_p)^2 - m^2) = 0. Cosine similarities; every row with a positive and
    a negative counts.

    Args:
        m: relaxation; the paper has 0.25 for faces and re-identification, 0.4 for fine-grained retrieval. At class
            level also a tensor (num_classes,): of a sample's class.
        gamma: scale; the paper has 256 for faces, 128 for re-identification, 80 for fine-grained retrieval.
        O_p, O_n, delta_p, delta_n: the optima and margins, each instead of what m gives.
        slope_p, slope_n: of the weights a_p and a_n; 1 in the paper.
        num_classes, embedding_size: give both for the class-level form, which compares samples with learned class
            weights.

    References: Y. Sun et al., "Circle Loss: A Unified Perspective of Pair Similarity Optimization", CVPR 2020,
    arXiv:2002.10857, Eq. 6 and 8-10.
    """

    row_local = True

    def __init__(
        self,
        m: float | Tensor = 0.4,
        gamma: float = 80.0,
        *,
        O_p: float | None = None,
        O_n: float | None = None,
        delta_p: float | None = None,
        delta_n: float | None = None,
        slope_p: float = 1.0,
        slope_n: float = 1.0,
        num_classes: int | None = None,
        embedding_size: int | None = None,
        **options: Any,
    ):
        super().__init__(**options)
        check_positive("gamma", gamma)
        check_positive("slope_p", slope_p)
        check_positive("slope_n", slope_n)
        self.slope_p, self.slope_n = slope_p, slope_n
        self.m: float | Tensor
        self.number_by_class("m", m, num_classes)
        self.needs_class_ids = isinstance(m, Tensor)
        self.gamma, self.O_p, self.O_n, self.delta_p, self.delta_n = gamma, O_p, O_n, delta_p, delta_n
        if not isinstance(m, Tensor):
            self.O_p = 1 + m if O_p is None else O_p
            self.O_n = -m if O_n is None else O_n
            self.delta_p = 1 - m if delta_p is None else delta_p
            self.delta_n = m if delta_n is None else delta_n
        elif not O_p is O_n is delta_p is delta_n is None:
            raise InputError("with m by class, the optima and margins follow from it: leave O_p, O_n, delta_p, delta_n")
        if num_classes is not None or embedding_size is not None:
            self.add_classes(num_classes, embedding_size)

    def row_parameters(self, pairs: Pairs, embeddings: Tensor, labels: Tensor | None) -> tuple[Tensor, ...]:
        if not isinstance(self.m, Tensor):
            return ()
        if labels is None or labels.ndim != 1:
            raise InputError("m by class is that of a sample's one class: CircleLoss then needs class ids as labels")
        m = self.with_own_class(self.m, labels, lambda own: own)
        return 1 + m, 1 - m, -m, m

    def spec(self) -> LossSpec:
        if isinstance(self.m, Tensor):
            return LossSpec(
                positive=SelfPaced(self.gamma * self.slope_p, Row(0), Row(1), positive=True),
                negative=SelfPaced(self.gamma * self.slope_n, Row(2), Row(3), positive=False),
            )
        return LossSpec(
            positive=SelfPaced(self.gamma * self.slope_p, self.O_p, self.delta_p, positive=True),
            negative=SelfPaced(self.gamma * self.slope_n, self.O_n, self.delta_n, positive=False),
        )
