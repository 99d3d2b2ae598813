"""Faces: a network from nothing, on MS-Celeb-1M or the like, aligned to 112 x 112, as in the Circle paper.

The paper's table has one protocol for all losses but SphereFace's and the centre loss, whose own papers trained smaller
networks on less data; theirs are here in the same protocol, so that all can be compared. Every identity is trained on;
`--test LFW` names data to measure the model on.
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
from nearfar.training.recipes.recipe import Recipe

CIRCLE_PAPER = "Sun et al., Circle Loss, CVPR 2020, arXiv:2002.10857"
OURS = (
    "batches of 512, sgd with momentum 0.9, decay 5e-4 (the paper gives rate, schedule and iterations)",
    "IResNet-34 for the paper's ResNet-34; --backbone iresnet-100 is the larger",
)
CENTRE_SCALE = 30.0


def recipes() -> list[Recipe]:
    """The protocol with every loss."""
    circle = LossConfig("CircleLoss", {"m": 0.25, "gamma": 256.0}, class_level=True)
    arcface = LossConfig("ArcFaceLoss", {"margin": 0.5, "scale": 64.0})
    cosface = LossConfig("CosFaceLoss", {"margin": 0.35, "scale": 64.0})
    sphereface = LossConfig("SphereFaceLoss", {"margin": 4.0, "scale": 64.0})
    table = "MegaFace rank 1 {}, LFW {}, YTF {}, CFP-FP {} (the Circle paper, ResNet-34)"
    return [
        Recipe("faces/circle", table.format(97.81, 99.73, 96.38, 96.02), CIRCLE_PAPER, OURS, face_config(circle)),
        Recipe("faces/arcface", table.format(97.68, 99.68, 96.34, 95.84), CIRCLE_PAPER, OURS, face_config(arcface)),
        Recipe("faces/cosface", table.format(97.54, 99.63, 96.31, 95.78), CIRCLE_PAPER, OURS, face_config(cosface)),
        Recipe(
            "faces/sphereface",
            "LFW 99.42, YTF 95.0 (its paper: 64 layers, CASIA-WebFace)",
            "Liu et al., SphereFace, CVPR 2017, arXiv:1704.08063: margin and annealing of its code",
            (
                "features of length 64, as its authors advise since, in place of free ones",
                "network, data and schedule: as for circle",
                *OURS,
            ),
            face_config(sphereface),
        ),
        Recipe(
            "faces/center",
            "LFW 99.28, YTF 94.9 (its paper: 7 convolutions, 0.7 million images)",
            "Wen et al., A Discriminative Feature Learning Approach, ECCV 2016: λ 0.008 of its code, α 0.5",
            (
                f"features of length {CENTRE_SCALE:g} (L2-Softmax) in place of free ones; the centre loss sees them at "
                f"length 1, so that its weight is λ times {CENTRE_SCALE:g}²",
                "network, data and schedule: as for circle",
                *OURS,
            ),
            face_config(
                LossConfig("L2SoftmaxLoss", {"scale": CENTRE_SCALE}),
                LossConfig("CenterLoss", {"alpha": 0.5, "loss_weight": 0.008 * CENTRE_SCALE**2}),
            ),
        ),
    ]


def face_config(*losses: LossConfig) -> TrainConfig:
    """The protocol with any loss, or a sum of them."""
    return TrainConfig(
        data=DataConfig(split="all", size=112, framing="stretch", flip=0.5, validation=0.0),
        sampler=SamplerConfig(kind="plain", batch_size=512),
        model=ModelConfig(backbone="iresnet-34", weights="random", head="none", freeze_batch_norm=False),
        loss=losses,
        optimiser=OptimiserConfig(name="sgd", lr=0.1, proxies=1.0, momentum=0.9, weight_decay=5e-4),
        schedule=ScheduleConfig(kind="step", milestones=(0.5, 0.7, 0.9), gamma=0.1),
        evaluation=EvaluationConfig(ks=(1,)),
        epochs=1000,  # more than the steps need
        max_steps=182_000,
    )
