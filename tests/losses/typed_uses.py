"""Uses of the losses as type checkers see them; test_typed_uses.py has mypy find exactly the lines marked as wrong.

Nothing here runs.
"""

import torch
from torch import Tensor, nn

from nearfar import losses
from nearfar.losses import CircleLoss, CosFaceLoss
from nearfar.losses.distributed import distribute

x, y = torch.randn(8, 4), torch.arange(8) // 2


def right() -> list[Tensor]:
    circle = CircleLoss(m=0.25, gamma=64)
    circle = CircleLoss(0.25, 64.0, reduction="none", memory_budget=10**6)
    circle = CircleLoss(num_classes=3, embedding_size=4, slope_p=0.5, O_p=None)
    circle.m = 0.3
    circle.reduction = "sum"
    circle.keep_statistics = True
    similarity: Tensor = circle.last["s_p"]
    cosface = CosFaceLoss(10, 4, 0.2, learnable=True, label_smoothing=0.1, dense=True)
    cosface = CosFaceLoss(num_classes=10, embedding_size=4, margin=torch.full((10,), 0.3))
    value: Tensor = cosface(x, y, sample_weight=torch.ones(8))
    cosface.extend_classes(2, torch.optim.SGD(cosface.parameters(), lr=0.1))
    classes: int = cosface.num_classes
    logits: Tensor = cosface.logits(x)
    predicted: Tensor = cosface.predict(x)
    vectors: Tensor = cosface.class_vectors()
    triplets = losses.TripletMarginLoss(0.3, mining="semihard", distance="squared_l2", normalize=False)
    contrastive = losses.ContrastiveLoss(0.1, 0.9, power=1)
    nt_xent = losses.NTXentLoss(temperature=0.1, learnable=True, ignore_index=None)
    nt_xent.temperature = 0.2
    towers = losses.InfoNCELoss(0.05, learnable=False, max_scale=50.0, reduction="sum")
    softtriple = losses.SoftTripleLoss(10, 4, centers_per_class=2, la=10.0)
    proxies = losses.ProxyAnchorLoss(10, 4, alpha=16.0, proxies_per_class=2, check_finite=True)
    margin = losses.MarginLoss(beta=1.0, learn_beta=True, num_classes=4)
    total = 0.5 * circle + cosface
    total.weights = [1.0, 0.5]
    parts: dict[str, Tensor] = total.parts(x, y)
    memory = losses.CrossBatchMemory(contrastive, 4, memory_size=64, ignore_index=-1)
    nested = losses.MatryoshkaLoss(cosface, dims=[2, 4], weights=[1.0, 0.5])
    views = losses.SelfSupervisedLoss(nt_xent, symmetric=False)
    shared: nn.Module = distribute(losses.ArcFaceLoss(10, 4, margin=0.4, sharded=True))
    names: list[str] = [info.name for info in losses.list_losses()]
    modules = [triplets, towers, softtriple, proxies, margin, memory, nested, views, shared]
    return [
        similarity,
        value,
        logits,
        predicted,
        vectors,
        *parts.values(),
        *(m(x, y) for m in modules if names and classes),
    ]


def wrong() -> None:
    circle, cosface = CircleLoss(), CosFaceLoss(10, 4)
    CircleLoss(gama=3)  # wrong
    CircleLoss(reduction="mena")  # wrong
    CircleLoss(0.25, 64.0, 3)  # wrong
    CircleLoss(m="large")  # wrong
    CircleLoss(num_classes="ten")  # wrong
    CircleLoss(memory_budget="1 GB")  # wrong
    CosFaceLoss(10)  # wrong
    CosFaceLoss(10, 4, marign=0.3)  # wrong
    CosFaceLoss(10, 4, learnable="yes", margin=0.3)  # wrong
    losses.TripletMarginLoss(mining="hard")  # wrong
    losses.TripletMarginLoss(distance="euclidean")  # wrong
    losses.ContrastiveLoss(power=3)  # wrong
    losses.InfoNCELoss(temprature=0.1)  # wrong
    losses.InfoNCELoss(0.1, 50.0)  # wrong
    losses.SoftTripleLoss(10, 4, centres_per_class=2)  # wrong
    losses.CrossBatchMemory(circle)  # wrong
    losses.MatryoshkaLoss(circle)  # wrong
    circle.gama = 3  # wrong
    circle.reduction = "men"  # wrong
    circle.gamma = "80"  # wrong
    cosface.num_classes = 6  # wrong
    cosface.extend_classes("two")  # wrong
    losses.CircelLoss()  # wrong
    losses.RankedListLoss(tn=3.0)  # wrong
