"""Lifted structures: a positive pair against all negatives of its two ends."""

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from nearfar.losses.catalogue.all_pairs import in_order, positive_pairs
from nearfar.losses.catalogue.distances import DistanceLoss
from nearfar.losses.engine.maps import through
from nearfar.losses.engine.pairs import Pairs
from nearfar.losses.engine.spec import LossSpec, over_negatives
from nearfar.losses.engine.vectors import ordered
from nearfar.losses.inputs import Batch
from nearfar.losses.mined import TuplePairs
from nearfar.losses.registry import register

LISTED = 2**21  # elements of the vectors of positive pairs that are compared together


@register("pair", "[log Σ_p exp(d_p − m_p) + log Σ_n exp(m_n − d_n)]₊")
class GeneralizedLiftedStructureLoss(DistanceLoss):
    """Generalised lifted structure loss: all positives of an anchor against all its negatives.

        l = [log sum_p exp(d_p - pos_margin) + log sum_n exp(neg_margin - d_n)]_+

    d is the Euclidean distance; the mean is over the anchors that have both kinds. A smooth form of the batch-hard
    triplet loss, which uses every pair.

    Args:
        neg_margin, pos_margin: in the distance's unit.
        normalize: compare normalised vectors; False compares them as they are, as the paper recommends.

    Example:
        >>> import torch
        >>> loss = GeneralizedLiftedStructureLoss(neg_margin=0.5)
        >>> round(loss(torch.eye(4), torch.tensor([0, 0, 1, 1])).item(), 3)
        1.193

    References: A. Hermans, L. Beyer, B. Leibe, "In Defense of the Triplet Loss for Person Re-Identification", 2017,
    arXiv:1703.07737, Eq. 10.
    """

    row_local = True
    neg_margin: float = 1.0
    pos_margin: float = 0.0

    def spec(self) -> LossSpec:
        return LossSpec(
            positive=self.distance_map("l2", 1, -self.pos_margin),
            negative=self.distance_map("l2", -1, self.neg_margin),
            act="relu",
            normalize=self.normalized,
        )


@register("pair", "1/2|P| Σ_ij [log(Σ_k exp(m_n − d_ik) + Σ_l exp(m_n − d_jl)) + d_ij − m_p]₊²")
class LiftedStructureLoss(DistanceLoss):
    """Lifted structure loss: every positive pair against the negatives of both its ends.

        J_ij = log(sum_k exp(neg_margin - d_ik) + sum_l exp(neg_margin - d_jl)) + d_ij - pos_margin
        L = 1/(2|P|) sum_ij [J_ij]_+^2

    over the positive pairs i < j of which at least one end has a negative; d is the Euclidean distance. The batch
    is only compared with itself, and the loss is one number. The generalised form is used more often.

    Args:
        neg_margin, pos_margin: in the distance's unit.
        normalize: compare normalised vectors, as pytorch-metric-learning does; False compares them as they are, as the
            authors' network does (its configuration of training has no normalisation).

    Example:
        >>> import torch
        >>> loss = LiftedStructureLoss(neg_margin=0.5)
        >>> round(loss(torch.eye(4), torch.tensor([0, 0, 1, 1])).item(), 3)
        1.779

    References: H. Oh Song et al., "Deep Metric Learning via Lifted Structured Feature Embedding", CVPR 2016,
    arXiv:1511.06452, Eq. 4.
    """

    whole_batch = True
    takes_references = False
    neg_margin: float = 1.0
    pos_margin: float = 0.0

    def over_pairs(self, pairs: Pairs, batch: Batch) -> Tensor:
        embeddings = batch.embeddings
        if not self.any_row_counts(pairs, "both"):
            return self.zero(embeddings)
        once = not isinstance(pairs, TuplePairs)  # listed pairs are taken from the end they are listed at
        # log sum_k exp(neg_margin - d_ik) of every sample, by the engine.
        spec = over_negatives(self.distance_map("l2", -1, self.neg_margin), "identity", self.normalized)
        push = self.evaluate(spec, pairs, embeddings, None, reduction="none")
        push = ordered(push, pairs.row_order).masked_fill(pairs.negatives == 0, -torch.inf)
        x = in_order(pairs, embeddings, None)[0] if self.normalize else ordered(embeddings, pairs.row_order)
        total, number = self.zero(x), 0
        for i, j in positive_pairs(pairs, LISTED // x.shape[1], above_diagonal=once):
            has_negative = torch.isfinite(torch.maximum(push.detach()[i], push.detach()[j]))
            i, j = i[has_negative], j[has_negative]
            # Computed again for the gradient: the vectors of all positive pairs take unbounded memory.
            total = total + checkpoint(self._of_pairs, x, push, i, j, use_reentrant=False)
            number += len(i)
        return total / (2 * max(1, number))

    def _of_pairs(self, x: Tensor, push: Tensor, i: Tensor, j: Tensor) -> Tensor:
        similarity = (x[i] * x[j]).sum(1) if self.normalize else (x[i] - x[j]).square().sum(1) / -2
        distance = through(self.distance_map(), similarity)
        return torch.relu(torch.logaddexp(push[i], push[j]) + distance - self.pos_margin).square().sum()
