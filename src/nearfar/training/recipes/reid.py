"""Person re-identification: Market-1501 and MSMT17, with the losses and networks of the Circle paper.

The network is ResNet-50. With "parts", after MGN, the whole map, its two halves and its three thirds have one head
each, whose outputs are concatenated under one loss. MGN copies the trunk's last stage for each granularity; here all
heads share it.
"""

from dataclasses import replace

from nearfar.training.config import LossConfig, SamplerConfig, TrainConfig
from nearfar.training.downloads import RESNET_50
from nearfar.training.recipes.recipe import PLAIN, UNPUBLISHED, Recipe

SOURCE = (
    "Sun et al., Circle Loss, CVPR 2020, arXiv:2002.10857: loss (class-level) and network; everything else: the "
    "configuration Base-bagtricks of fast-reid"
)
OURS = (
    "a linear head of {} takes the place of the batch normalisation between embedding and classes (BNNeck)",
    "there is one loss; fast-reid has two, cross-entropy with smoothed labels and triplets",
    "rates rise from zero in 2,000 steps; fast-reid's rise from a tenth",
    "biases and normalisations are not decayed; fast-reid's versions differ in that",
    "classes are drawn in proportion to their images; fast-reid draws all classes equally often",
    "arithmetic is 32-bit; fast-reid's is mixed",
    "the paper does not state its protocol, so its rank 1 of {} and mAP of {} do not apply",
)
FIGURES = {  # rank 1 and mAP
    ("market", "circle"): (94.2, 84.9),
    ("market", "am-softmax"): (92.4, 83.8),
    ("market", "circle-parts"): (96.1, 87.4),
    ("market", "am-softmax-parts"): (95.3, 86.6),
    ("msmt17", "circle"): (76.3, 50.2),
    ("msmt17", "am-softmax"): (75.6, 49.3),
    ("msmt17", "circle-parts"): (76.9, 52.1),
    ("msmt17", "am-softmax-parts"): (76.5, 51.8),
}
CIRCLE = LossConfig("CircleLoss", {"m": 0.25, "gamma": 128.0}, class_level=True)
AM_SOFTMAX = LossConfig("AMSoftmaxLoss", {"margin": 0.35, "scale": 30.0})


def recipes() -> list[Recipe]:
    """Both data sets with both losses and both networks."""
    return [_recipe(data, kind) for data, kind in FIGURES]


def _recipe(data: str, kind: str) -> Recipe:
    rank_1, mean_ap = FIGURES[data, kind]
    parts, circle = kind.endswith("-parts"), kind.startswith("circle")
    neck, *same, figures = OURS
    ours = [neck.format("6 x 256 dimensions" if parts else "512 dimensions"), *same, figures.format(rank_1, mean_ap)]
    if parts:
        ours.append("images have 384 x 128 pixels and stripes are max-pooled, as in MGN, but all share one trunk")
    if not circle:
        ours.append("margin 0.35 and scale 30 are those of AM-Softmax's own code")
    return Recipe(
        f"{data}/{kind}-fastreid-protocol",
        UNPUBLISHED,
        SOURCE,
        tuple(ours),
        person_config(CIRCLE if circle else AM_SOFTMAX, parts=parts),
        formerly=f"{data}/{kind}",
    )


def person_config(loss: LossConfig, *, parts: bool = False) -> TrainConfig:
    """The protocol with any loss; `parts` are stripes of the map, as MGN has them."""
    return replace(
        PLAIN,
        data=replace(PLAIN.data, size=(384, 128) if parts else (256, 128), framing="stretch", pad=10, erase=0.5),
        sampler=SamplerConfig(kind="pk", p=16, k=4),
        model=replace(
            PLAIN.model,
            backbone="resnet-50",
            weights=RESNET_50,
            options={"last_stride": 1},
            pool="max" if parts else "avg",
            dimension=6 * 256 if parts else 512,
            parts=(1, 2, 3) if parts else (1,),
        ),
        loss=(loss,),
        class_std=0.01,
        optimiser=replace(PLAIN.optimiser, name="adam", lr=3.5e-4, weight_decay=5e-4, decay_all=False, eps=1e-8),
        schedule=replace(PLAIN.schedule, warmup_steps=2000, milestones=(40 / 120, 90 / 120)),
        evaluation=replace(PLAIN.evaluation, ks=(1, 5, 10)),
        epochs=120,
    )
