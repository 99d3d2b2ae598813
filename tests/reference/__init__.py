"""Naive references of the losses: one short function per paper, float64, Python loops, ordinary autograd.

They are the oracle of the tests, so they share no code with `nearfar.losses`, and are written to be read next to the
paper. A `Case` holds N samples, the M columns they are compared with, and which pairs are positive or negative.
`REFERENCES[name](case, **arguments)` returns `(mean, rows)`: the loss under reduction="mean" and under
reduction="none" (one entry per sample; for Proxy-Anchor one per class).

    geometry.py    cosine, distances and angles, with their slopes at the singular points
    reduction.py   which rows count, and how they are averaged
    pair.py        Unified, Circle, triplet, NT-Xent, N-pairs, SupCon, Multi-Similarity, the contrastive ones
    tuples.py      lifted structure, histogram, angular, margin, NCA, tuplet margin, intra-pair variance, dynamic margin
    ranking.py     Smooth-AP, FastAP, Recall@k, PNP, ranked list
    softmax.py     the softmax family
    faces.py       its members with sub-centres, norms of the features or running statistics
    proxy.py       Proxy-NCA, Proxy-Anchor, SoftTriple, centre loss
    towers.py      InfoNCE, SigLIP, VICReg

A loss that does not split into rows returns no rows (an empty vector). Of several columns per class, class c has the
columns cK .. cK + K - 1, and the masks are of samples and classes.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from . import faces, pair, proxy, ranking, softmax, towers, tuples


@dataclass(frozen=True)
class Case:
    """Samples, columns and their pairs; a sample with itself is neither positive nor negative."""

    x: Tensor  # (N, D) float64
    columns: Tensor  # (M, D): x itself (the same object), another set, class weights or proxies
    positive: Tensor  # (N, M) bool
    negative: Tensor  # (N, M) bool
    sample_weight: Tensor = None  # type: ignore[assignment]  # (N,) float64 >= 0; ones unless given
    bias: Tensor | None = None  # (M,), for Softmax and L2-Softmax
    iteration: int = 0  # of the annealing in SphereFace and L-Softmax

    def __post_init__(self) -> None:
        if self.sample_weight is None:
            object.__setattr__(self, "sample_weight", torch.ones(len(self.x), dtype=torch.float64))


REFERENCES: dict[str, Callable[..., tuple[Tensor, Tensor]]] = {
    "UnifiedLoss": pair.unified,
    "CircleLoss": pair.circle,
    "TripletMarginLoss": pair.triplet_margin,
    "NTXentLoss": pair.nt_xent,
    "NPairsLoss": pair.n_pairs,
    "SupConLoss": pair.sup_con,
    "MultiSimilarityLoss": pair.multi_similarity,
    "ContrastiveLoss": pair.contrastive,
    "SoftmaxLoss": softmax.softmax,
    "ModifiedSoftmaxLoss": softmax.modified_softmax,
    "L2SoftmaxLoss": softmax.l2_softmax,
    "NormFaceLoss": softmax.norm_face,
    "NormalizedSoftmaxLoss": softmax.normalized_softmax,
    "CosFaceLoss": softmax.cos_face,
    "AMSoftmaxLoss": softmax.am_softmax,
    "ArcFaceLoss": softmax.arc_face,
    "CombinedMarginLoss": softmax.combined_margin,
    "SphereFaceLoss": softmax.sphere_face,
    "LargeMarginSoftmaxLoss": softmax.large_margin_softmax,
    "ProxyNCALoss": proxy.proxy_nca,
    "ProxyAnchorLoss": proxy.proxy_anchor,
    "SoftTripleLoss": proxy.soft_triple,
    "CenterLoss": proxy.center,
    "SignalToNoiseRatioContrastiveLoss": pair.signal_to_noise_ratio_contrastive,
    "ThresholdConsistentMarginLoss": pair.threshold_consistent_margin,
    "GeneralizedLiftedStructureLoss": tuples.generalized_lifted_structure,
    "LiftedStructureLoss": tuples.lifted_structure,
    "HistogramLoss": tuples.histogram,
    "AngularLoss": tuples.angular,
    "MarginLoss": tuples.margin_loss,
    "NCALoss": tuples.nca,
    "TupletMarginLoss": tuples.tuplet_margin,
    "IntraPairVarianceLoss": tuples.intra_pair_variance,
    "DynamicSoftMarginLoss": tuples.dynamic_soft_margin,
    "SmoothAPLoss": ranking.smooth_ap,
    "FastAPLoss": ranking.fast_ap,
    "RecallAtKLoss": ranking.recall_at_k,
    "PNPLoss": ranking.pnp,
    "RankedListLoss": ranking.ranked_list,
    "SubCenterArcFaceLoss": faces.sub_center_arc_face,
    "AdaFaceLoss": faces.ada_face,
    "MagFaceLoss": faces.mag_face,
    "CurricularFaceLoss": faces.curricular_face,
    "P2SGradLoss": faces.p2s_grad,
    "InstanceLoss": faces.instance,
    "InfoNCELoss": towers.info_nce,
    "SigLIPLoss": towers.siglip,
    "VICRegLoss": towers.vic_reg,
}
