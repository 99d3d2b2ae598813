"""Losses for deep metric learning, every one a setting of one formula, run by one exact engine.

    embeddings, labels ──► loss.py ──► pairs.py            which pairs are positive, negative, ignored
                             │
              spec.py ◄──────┤                             which loss: maps, gathering, combination
              maps.py        │                             f_p and f_n, value and slope
                             ▼
                         engine.py ──► vectors.py, rows.py  tiles of similarities, row statistics, gradients

    pair.py, softmax.py, proxy.py …  the losses
    strip.py                         a loss of your own
    penalties.py                     terms for binary codes, to be added to a loss
    wrappers.py                      losses of losses: a memory, nested dimensions, two views, weighted sums
    dense.py                         the same specs the plain way: the reference
    distributed/                     over several processes: pairs with all ranks' samples, sharded class weights

    >>> import torch
    >>> from nearfar import losses
    >>> loss = losses.CircleLoss(m=0.25, gamma=64)
    >>> embeddings = torch.randn(8, 16, requires_grad=True)
    >>> loss(embeddings, torch.tensor([0, 0, 1, 1, 2, 2, 3, 3])).backward()

Only torch and numpy are needed.
"""

from nearfar.losses.angular import AngularLoss, TupletMarginLoss
from nearfar.losses.centers import CenterLoss, SoftTripleLoss, SubCenterArcFaceLoss
from nearfar.losses.distributions import DynamicSoftMarginLoss, HistogramLoss, IntraPairVarianceLoss
from nearfar.losses.faces import AdaFaceLoss, CurricularFaceLoss, MagFaceLoss, P2SGradLoss
from nearfar.losses.lifted import GeneralizedLiftedStructureLoss, LiftedStructureLoss
from nearfar.losses.loss import Loss
from nearfar.losses.pair import (
    CircleLoss,
    ContrastiveLoss,
    MultiSimilarityLoss,
    NCALoss,
    NPairsLoss,
    NTXentLoss,
    SignalToNoiseRatioContrastiveLoss,
    SupConLoss,
    ThresholdConsistentMarginLoss,
    UnifiedLoss,
)
from nearfar.losses.penalties import BitBalanceLoss, QuantizationLoss
from nearfar.losses.proxy import ProxyAnchorLoss, ProxyNCALoss
from nearfar.losses.ranking import FastAPLoss, PNPLoss, RankedListLoss, RecallAtKLoss, SmoothAPLoss
from nearfar.losses.registry import LossInfo, list_losses, list_penalties
from nearfar.losses.softmax import (
    AMSoftmaxLoss,
    ArcFaceLoss,
    CombinedMarginLoss,
    CosFaceLoss,
    InstanceLoss,
    L2SoftmaxLoss,
    LargeMarginSoftmaxLoss,
    ModifiedSoftmaxLoss,
    NormalizedSoftmaxLoss,
    NormFaceLoss,
    SoftmaxLoss,
    SphereFaceLoss,
)
from nearfar.losses.strip import StripLoss
from nearfar.losses.towers import InfoNCELoss, SigLIPLoss, VICRegLoss
from nearfar.losses.triplet import MarginLoss, TripletMarginLoss
from nearfar.losses.wrappers import CrossBatchMemory, MatryoshkaLoss, SelfSupervisedLoss, SumLoss

__all__ = [
    "AMSoftmaxLoss",
    "AdaFaceLoss",
    "AngularLoss",
    "ArcFaceLoss",
    "BitBalanceLoss",
    "CenterLoss",
    "CircleLoss",
    "CombinedMarginLoss",
    "ContrastiveLoss",
    "CosFaceLoss",
    "CrossBatchMemory",
    "CurricularFaceLoss",
    "DynamicSoftMarginLoss",
    "FastAPLoss",
    "GeneralizedLiftedStructureLoss",
    "HistogramLoss",
    "InfoNCELoss",
    "InstanceLoss",
    "IntraPairVarianceLoss",
    "L2SoftmaxLoss",
    "LargeMarginSoftmaxLoss",
    "LiftedStructureLoss",
    "Loss",
    "LossInfo",
    "MagFaceLoss",
    "MarginLoss",
    "MatryoshkaLoss",
    "ModifiedSoftmaxLoss",
    "MultiSimilarityLoss",
    "NCALoss",
    "NPairsLoss",
    "NTXentLoss",
    "NormFaceLoss",
    "NormalizedSoftmaxLoss",
    "P2SGradLoss",
    "PNPLoss",
    "ProxyAnchorLoss",
    "ProxyNCALoss",
    "QuantizationLoss",
    "RankedListLoss",
    "RecallAtKLoss",
    "SelfSupervisedLoss",
    "SigLIPLoss",
    "SignalToNoiseRatioContrastiveLoss",
    "SmoothAPLoss",
    "SoftTripleLoss",
    "SoftmaxLoss",
    "SphereFaceLoss",
    "StripLoss",
    "SubCenterArcFaceLoss",
    "SumLoss",
    "SupConLoss",
    "ThresholdConsistentMarginLoss",
    "TripletMarginLoss",
    "TupletMarginLoss",
    "UnifiedLoss",
    "VICRegLoss",
    "list_losses",
    "list_penalties",
]
