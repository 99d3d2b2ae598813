"""Losses for deep metric learning, every one a setting of one formula, run by one exact engine.

    the frame       loss.py        knows the pairs of a batch, calls the engine
                    classes.py     the class vectors that a loss may own: logits, predictions, more classes
                    settings.py    the arguments of constructors, each declared once
                    labels.py      every form of labels that is taken
                    inputs.py, mined.py     labels, masks and miners' lists, checked and turned into pairs
                    sums.py, cross_batch_memory.py, matryoshka.py, self_supervised.py   losses made of losses
                    registry.py    every loss with its paper and formula
    catalogue/      what the losses are, a class each
    engine/         how they are computed; dense.py is the same computation the plain way
    distributed/    over several processes: pairs with all ranks' samples, sharded class weights

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
from nearfar.losses.catalogue.penalties import BitBalanceLoss, QuantizationLoss
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
from nearfar.losses.catalogue.strip_loss import StripLoss
from nearfar.losses.catalogue.towers import InfoNCELoss, SigLIPLoss, VICRegLoss
from nearfar.losses.catalogue.triplets import MarginLoss, TripletMarginLoss
from nearfar.losses.cross_batch_memory import CrossBatchMemory
from nearfar.losses.loss import Loss
from nearfar.losses.matryoshka import MatryoshkaLoss
from nearfar.losses.registry import LossInfo, list_losses, list_penalties
from nearfar.losses.self_supervised import SelfSupervisedLoss
from nearfar.losses.sums import SumLoss


def __dir__() -> list[str]:
    """The public names, without the modules that they are in."""
    return [*__all__, "distributed"]


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
