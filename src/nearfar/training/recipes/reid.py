"""Persons seen again by other cameras: Market-1501 and MSMT17, as in the Circle paper.

ResNet-50; and "parts", after MGN: the whole, two halves and three thirds of the map, each with a head of its own, all
concatenated under one loss. MGN has a copy of the trunk's last stage for each granularity; here one trunk serves all.
"""

from nearfar.training.config import (
    DataConfig,
    EvaluationConfig,
    LossConfig,
    ModelConfig,
    OptimiserConfig,
    SamplerConfig,
    ScheduleConfig,
    TrainConfig,
)
from nearfar.training.recipes.recipe import RESNET_50, Recipe

SOURCE = "Sun et al., Circle Loss, CVPR 2020, arXiv:2002.10857, class-level"
OURS = (
    "all but network and loss (the paper does not say): 256 x 128 pixels, 384 x 128 with parts; flips, shifts by 10 "
    "pixels, erasing; average pooling, of parts maximum; Adam 3.5e-4, decay 5e-4, 2,000 steps of warm-up, a tenth at "
    "40 and 90 of 120 epochs; batches of 64",
    "512 dimensions, with parts 6 x 256; the trunk's last stage keeps its stride",
)
AIMS = {  # rank 1 and mAP
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
    return [_recipe(data, kind) for data, kind in AIMS]


def _recipe(data: str, kind: str) -> Recipe:
    rank_1, mean_ap = AIMS[data, kind]
    parts, circle = kind.endswith("-parts"), kind.startswith("circle")
    ours = OURS if circle else (*OURS, "margin 0.35 and scale 30 of AM-Softmax, as in its own code")
    return Recipe(
        f"{data}/{kind}",
        f"rank 1 {rank_1}, mAP {mean_ap} (the Circle paper, {'MGN' if parts else 'ResNet-50'})",
        SOURCE,
        ours,
        person_config(CIRCLE if circle else AM_SOFTMAX, parts=parts),
    )


def person_config(loss: LossConfig, *, parts: bool = False) -> TrainConfig:
    """The protocol with any loss; `parts` are stripes of the map, as MGN has them."""
    return TrainConfig(
        data=DataConfig(
            size=(384, 128) if parts else (256, 128), framing="stretch", flip=0.5, pad=10, erase=0.5, validation=0.0
        ),
        sampler=SamplerConfig(kind="plain", batch_size=64),
        model=ModelConfig(
            backbone="resnet-50",
            weights=RESNET_50,
            pool="max" if parts else "avg",
            dimension=6 * 256 if parts else 512,
            parts=(1, 2, 3) if parts else (1,),
            head_start="random",
            freeze_batch_norm=False,
        ),
        loss=(loss,),
        optimiser=OptimiserConfig(name="adam", lr=3.5e-4, proxies=1.0, weight_decay=5e-4),
        schedule=ScheduleConfig(kind="step", warmup_steps=2000, milestones=(40 / 120, 90 / 120), gamma=0.1),
        evaluation=EvaluationConfig(ks=(1, 5, 10)),
        epochs=120,
    )
