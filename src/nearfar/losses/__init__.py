"""Losses for deep metric learning, every one a setting of one formula, run by one exact engine.

    embeddings, labels ──► loss.py ──► pairs.py            which pairs are positive, negative, ignored
                             │
              spec.py ◄──────┤                             which loss: maps, gathering, combination
              maps.py        │                             f_p and f_n, value and slope
                             ▼
                         engine.py ──► vectors.py, rows.py  tiles of similarities, row statistics, gradients

    pair.py, softmax.py, proxy.py …  the losses
    strip.py                         a loss of your own
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

from nearfar.losses.catalogue.angular import AngularLoss, TupletMarginLoss
from nearfar.losses.catalogue.angular_margins import (
    ArcFaceLoss,
    CombinedMarginLoss,
    LargeMarginSoftmaxLoss,
    SphereFaceLoss,
)
from nearfar.losses.catalogue.centers import CenterLoss, SoftTripleLoss, SubCenterArcFaceLoss
from nearfar.losses.catalogue.circle import CircleLoss, UnifiedLoss
from nearfar.losses.catalogue.contrastive import (
    ContrastiveLoss,
    MultiSimilarityLoss,
    NCALoss,
    NPairsLoss,
    NTXentLoss,
    SignalToNoiseRatioContrastiveLoss,
    SupConLoss,
    ThresholdConsistentMarginLoss,
)
from nearfar.losses.catalogue.faces import AdaFaceLoss, CurricularFaceLoss, MagFaceLoss, P2SGradLoss
from nearfar.losses.catalogue.histograms import DynamicSoftMarginLoss, HistogramLoss, IntraPairVarianceLoss
from nearfar.losses.catalogue.lifted import GeneralizedLiftedStructureLoss, LiftedStructureLoss
from nearfar.losses.catalogue.own_function import StripLoss
from nearfar.losses.catalogue.proxies import ProxyAnchorLoss, ProxyNCALoss
from nearfar.losses.catalogue.ranking import FastAPLoss, PNPLoss, RankedListLoss, RecallAtKLoss, SmoothAPLoss
from nearfar.losses.catalogue.softmax import (
    AMSoftmaxLoss,
    CosFaceLoss,
    InstanceLoss,
    L2SoftmaxLoss,
    ModifiedSoftmaxLoss,
    NormalizedSoftmaxLoss,
    NormFaceLoss,
    SoftmaxLoss,
)
from nearfar.losses.catalogue.towers import InfoNCELoss, SigLIPLoss, VICRegLoss
from nearfar.losses.catalogue.triplets import MarginLoss, TripletMarginLoss
from nearfar.losses.loss import Loss
from nearfar.losses.registry import LossInfo, list_losses
from nearfar.losses.wrappers import CrossBatchMemory, MatryoshkaLoss, SelfSupervisedLoss, SumLoss

__all__ = [
    "AMSoftmaxLoss",
    "AdaFaceLoss",
    "AngularLoss",
    "ArcFaceLoss",
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
]
