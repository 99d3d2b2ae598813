"""Other libraries' implementations: pytorch-metric-learning ("pml") and torch's chunked cross-entropy ("fused-ce").

pytorch-metric-learning is set to the same mathematics, which the tests compare: our hyper-parameters; the mean over
all rows where its default is over the rows that are not zero; BatchHardMiner and MultiSimilarityMiner where our loss
mines. What cannot be had alike is said in a note that begins with "differs", and such rows are in no chart.

Of the fused linear cross-entropies, `torch.nn.functional.linear_cross_entropy` runs on a CPU; it takes the losses
that are a plain softmax of a product. liger-kernel and cut-cross-entropy are Triton kernels: they need a GPU.
"""

import math
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.nn import functional

from benchmarks.cases import Case, Problem
from benchmarks.measure import Candidate, training_step
from benchmarks.settings import Setting

Peer = Callable[[Any, dict[str, int]], Any]  # (our loss, sizes) -> theirs


def _circle(ours: Any, sizes: dict[str, int]) -> Any:
    from pytorch_metric_learning import losses, reducers

    return losses.CircleLoss(m=ours.m, gamma=ours.gamma, reducer=reducers.MeanReducer())


def _supcon(ours: Any, sizes: dict[str, int]) -> Any:
    from pytorch_metric_learning import losses, reducers

    return losses.SupConLoss(temperature=ours.temperature, reducer=reducers.MeanReducer())


def _generalized_lifted(ours: Any, sizes: dict[str, int]) -> Any:
    from pytorch_metric_learning import losses, reducers

    margins = {"neg_margin": ours.neg_margin, "pos_margin": ours.pos_margin}
    return losses.GeneralizedLiftedStructureLoss(**margins, reducer=reducers.MeanReducer())


def _n_pairs(ours: Any, sizes: dict[str, int]) -> Any:
    from pytorch_metric_learning import distances, losses

    return losses.NPairsLoss(distance=distances.DotProductSimilarity(normalize_embeddings=False))


def _triplet(ours: Any, sizes: dict[str, int]) -> Any:
    from pytorch_metric_learning import losses, miners, reducers

    if ours.mining == "batch_hard":
        loss = losses.TripletMarginLoss(margin=ours.margin, reducer=reducers.MeanReducer())
        return _Mined(loss, miners.BatchHardMiner())
    loss = losses.TripletMarginLoss(margin=ours.margin)
    if ours.mining == "all":
        return loss
    return _Mined(loss, miners.TripletMarginMiner(margin=ours.margin, type_of_triplets="semihard"))


def _soft_triple(ours: Any, sizes: dict[str, int]) -> Any:
    from pytorch_metric_learning import losses, regularizers

    k = ours.vectors_per_class
    merging = regularizers.SparseCentersRegularizer(sizes["num_classes"], k)
    options = {"centers_per_class": k, "weight_regularizer": merging, "weight_reg_weight": ours.tau}
    return losses.SoftTripleLoss(**sizes, la=ours.la, gamma=ours.gamma, margin=ours.margin, **options)


def _sub_center(ours: Any, sizes: dict[str, int]) -> Any:
    from pytorch_metric_learning import losses

    margin, k = math.degrees(ours.margin), ours.vectors_per_class
    return losses.SubCenterArcFaceLoss(**sizes, margin=margin, scale=ours.scale, sub_centers=k)


def _p2s_grad(ours: Any, sizes: dict[str, int]) -> Any:
    from pytorch_metric_learning import losses

    return losses.P2SGradLoss(descriptors_dim=sizes["embedding_size"], num_classes=sizes["num_classes"])


def _multi_similarity(ours: Any, sizes: dict[str, int]) -> Any:
    from pytorch_metric_learning import losses, miners

    loss = losses.MultiSimilarityLoss(alpha=ours.alpha, beta=ours.beta, base=ours.base)
    return loss if ours.epsilon is None else _Mined(loss, miners.MultiSimilarityMiner(epsilon=ours.epsilon))


def _named(name: str, arguments: Callable[[Any], dict[str, Any]]) -> Peer:
    """The loss of that name, with its sizes if it has any, and arguments read off ours."""

    def make(ours: Any, sizes: dict[str, int]) -> Any:
        from pytorch_metric_learning import losses

        return getattr(losses, name)(**sizes, **arguments(ours))

    return make


class _Mined(nn.Module):
    """A loss after its miner."""

    def __init__(self, loss: nn.Module, miner: nn.Module):
        super().__init__()
        self.loss, self.miner = loss, miner

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        result: Tensor = self.loss(embeddings, labels, self.miner(embeddings, labels))
        return result


def _same(*names: str) -> Callable[[Any], dict[str, Any]]:
    """Arguments that have the same names and values as ours."""
    return lambda ours: {name: getattr(ours, name) for name in names}


_margin = _same("margin", "scale")


# By label: what makes theirs, and a note.
PML: dict[str, tuple[Peer, str]] = {
    "AMSoftmaxLoss": (_named("CosFaceLoss", _margin), "as CosFaceLoss"),
    "AngularLoss": (
        _named("AngularLoss", lambda o: {"alpha": math.degrees(o.alpha)}),
        "differs: negatives keep their norms",
    ),
    "ArcFaceLoss": (_named("ArcFaceLoss", lambda o: {"margin": math.degrees(o.margin), "scale": o.scale}), ""),
    "CircleLoss": (_circle, "mean over all rows"),
    "ContrastiveLoss": (_named("ContrastiveLoss", _same("pos_margin", "neg_margin")), ""),
    "CosFaceLoss": (_named("CosFaceLoss", _margin), ""),
    "DynamicSoftMarginLoss": (
        _named("DynamicSoftMarginLoss", _same("min_val", "num_bins", "momentum")),
        "differs: the histogram has a gradient",
    ),
    "FastAPLoss": (_named("FastAPLoss", _same("num_bins")), ""),
    "GeneralizedLiftedStructureLoss": (_generalized_lifted, "mean over all rows"),
    "HistogramLoss": (_named("HistogramLoss", _same("n_bins")), ""),
    "IntraPairVarianceLoss": (_named("IntraPairVarianceLoss", _same("pos_eps", "neg_eps")), ""),
    "LargeMarginSoftmaxLoss": (_named("LargeMarginSoftmaxLoss", _margin), ""),
    "LiftedStructureLoss": (_named("LiftedStructureLoss", _same("neg_margin", "pos_margin")), ""),
    "MarginLoss": (_named("MarginLoss", _same("margin")), "differs: pairs are counted once for every triplet"),
    "MultiSimilarityLoss": (_multi_similarity, "with MultiSimilarityMiner"),
    "MultiSimilarityLoss, no mining": (_multi_similarity, ""),
    "NCALoss": (_named("NCALoss", _same("softmax_scale")), ""),
    "NPairsLoss": (_n_pairs, "one pair per class"),
    "NTXentLoss": (_named("NTXentLoss", _same("temperature")), ""),
    "NormFaceLoss": (_named("NormalizedSoftmaxLoss", lambda o: {"temperature": 1 / o.scale}), "as NormalizedSoftmax"),
    "NormalizedSoftmaxLoss": (_named("NormalizedSoftmaxLoss", _same("temperature")), ""),
    "P2SGradLoss": (_p2s_grad, "differs: class weights normalised in place, outside the gradient"),
    "PNPLoss": (_named("PNPLoss", _same("b", "alpha", "anneal", "variant")), ""),
    "ProxyAnchorLoss": (_named("ProxyAnchorLoss", _same("margin", "alpha")), ""),
    "ProxyNCALoss": (_named("ProxyNCALoss", _same("softmax_scale")), ""),
    "RankedListLoss": (_named("RankedListLoss", _same("margin", "Tn", "imbalance", "alpha", "Tp")), ""),
    "SignalToNoiseRatioContrastiveLoss": (
        _named("SignalToNoiseRatioContrastiveLoss", _same("pos_margin", "neg_margin")),
        "",
    ),
    "SmoothAPLoss": (
        _named("SmoothAPLoss", _same("temperature")),
        "differs: a sample is its own positive, and its groups are the classes only of K × K batches",
    ),
    "SoftTripleLoss": (_soft_triple, "with SparseCentersRegularizer"),
    "SphereFaceLoss": (_named("SphereFaceLoss", _margin), ""),
    "SubCenterArcFaceLoss": (_sub_center, ""),
    "SupConLoss": (_supcon, "mean over all rows"),
    "ThresholdConsistentMarginLoss": (
        _named("ThresholdConsistentMarginLoss", _same("lambda_plus", "lambda_minus", "margin_plus", "margin_minus")),
        "",
    ),
    "TripletMarginLoss": (_triplet, "BatchHardMiner, mean over all rows"),
    "TripletMarginLoss, all triplets": (_triplet, ""),
    "TripletMarginLoss, semi-hard": (_triplet, "TripletMarginMiner"),
    "TupletMarginLoss": (
        _named("TupletMarginLoss", lambda o: {"margin": math.degrees(o.margin), "scale": o.scale}),
        "",
    ),
    "VICRegLoss": (
        _named("VICRegLoss", _same("invariance_lambda", "variance_mu", "covariance_v", "eps")),
        "",
    ),
}


def pml(setting: Setting, problem: Problem) -> Candidate:
    """pytorch-metric-learning's loss, with the same class weights."""
    make, note = PML[setting.label]
    case = problem.case
    # Hyper-parameters do not depend on the number of classes for these losses, so a small one will do.
    ours = setting.make(Case(case.level, case.rows, 2, case.dimension))
    sizes = {"num_classes": case.columns, "embedding_size": case.dimension} if case.level == "class" else {}
    loss = make(ours, sizes)
    for name, weight in loss.named_parameters():  # they have (D, C) but for proxies
        vectors = problem.vectors(ours.vectors_per_class)
        weight.data = vectors if name == "proxies" else vectors.t().contiguous()
    parameters = [problem.embeddings, *loss.parameters()]
    if setting.info.level == "towers":
        return training_step(lambda: loss(problem.embeddings, ref_emb=problem.view), parameters, note)
    return training_step(lambda: loss(problem.embeddings, problem.labels), parameters, note)


def _unit(t: Tensor) -> Tensor:
    return functional.normalize(t)


# By label: features and class weights whose products are the logits.
FUSED: dict[str, Callable[[Any, Tensor, Tensor], tuple[Tensor, Tensor]]] = {
    "L2SoftmaxLoss": lambda ours, x, w: (_unit(x) * ours.scale, w),
    "ModifiedSoftmaxLoss": lambda ours, x, w: (x, _unit(w)),
    "NormFaceLoss": lambda ours, x, w: (_unit(x) * ours.scale, _unit(w)),
    "NormalizedSoftmaxLoss": lambda ours, x, w: (_unit(x) / ours.temperature, _unit(w)),
    "ProxyNCALoss": lambda ours, x, w: (_unit(x) * (2 * ours.softmax_scale), _unit(w)),
    "SoftmaxLoss": lambda ours, x, w: (x, w),
}
CHUNK = 256  # rows; torch's own choice is a row or two at a time for these shapes, and several times slower


def fused_ce(setting: Setting, problem: Problem) -> Candidate:
    """torch.nn.functional.linear_cross_entropy, chunked, after what the loss does to features and weights."""
    ours = setting.make(problem.case)
    weight = ours.weight
    assert weight is not None
    weight.data = problem.vectors(1)
    operands = FUSED[setting.label]
    options = nn.LinearCrossEntropyOptions(batch_chunk_size=CHUNK, chunking_method=None)

    def loss() -> Tensor:
        x, w = operands(ours, problem.embeddings, weight)
        result: Tensor = functional.linear_cross_entropy(x, w, problem.labels, linear_bias=ours.bias, options=options)
        return result

    note = f"torch.nn.functional.linear_cross_entropy, {CHUNK} rows a chunk"
    return training_step(loss, [problem.embeddings, *ours.parameters()], note)
