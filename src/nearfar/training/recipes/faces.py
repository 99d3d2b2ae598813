"""Faces: a network with random weights, trained on MS-Celeb-1M or similar data aligned to 112 x 112 pixels.

The Circle paper's table has one protocol for Circle, ArcFace and CosFace. SphereFace and the centre loss use the same
protocol here for comparison; their own papers trained smaller networks on less data. All identities are trained on;
`--test LFW` names data to evaluate the model on.
"""

from dataclasses import replace

from nearfar.training.config import LossConfig, SamplerConfig, TrainConfig
from nearfar.training.recipes.recipe import PLAIN, UNPUBLISHED, Recipe

CIRCLE_PAPER = "Sun et al., Circle Loss, CVPR 2020, arXiv:2002.10857: network, data, rates and steps"
OURS = (
    "the paper gives no batch size, optimiser and initialisation; here batches of 512, sgd with momentum 0.9, decay "
    "5e-4 of everything, and class vectors of standard deviation 0.01, as usual in insightface's code",
    "the network is IResNet-34, the paper's a ResNet-34; --backbone iresnet-100 is its larger one",
)
OF_ANOTHER = "network, data and schedule are the Circle paper's, so the loss's own figures, {}, do not apply"
# The code's λ = 1000 / (1 + 0.12 i) counts iterations from 1; the loss counts them from 0.
FROM_ONE = {"base": 1000 / 1.12, "decay": 0.12 / 1.12, "power": 1.0, "lambda_min": 5.0}


def recipes() -> list[Recipe]:
    """The recipes: the protocol with every loss."""
    circle = LossConfig("CircleLoss", {"m": 0.25, "gamma": 256.0}, class_level=True)
    arcface = LossConfig("ArcFaceLoss", {"margin": 0.5, "scale": 64.0})
    cosface = LossConfig("CosFaceLoss", {"margin": 0.35, "scale": 64.0})
    sphereface = LossConfig("SphereFaceLoss", {"margin": 4.0, "scale": 1.0, **FROM_ONE})
    table = "MegaFace rank 1 {}, LFW {}, YTF {}, CFP-FP {} (the Circle paper, ResNet-34)"
    return [
        Recipe("faces/circle", table.format(97.81, 99.73, 96.38, 96.02), CIRCLE_PAPER, OURS, face_config(circle)),
        Recipe("faces/arcface", table.format(97.68, 99.68, 96.34, 95.84), CIRCLE_PAPER, OURS, face_config(arcface)),
        Recipe("faces/cosface", table.format(97.54, 99.63, 96.31, 95.78), CIRCLE_PAPER, OURS, face_config(cosface)),
        Recipe(
            "faces/sphereface-circle-protocol",
            UNPUBLISHED,
            "Liu et al., SphereFace, CVPR 2017, arXiv:1704.08063: margin and annealing of its code; everything else: "
            "the Circle paper",
            (
                OF_ANOTHER.format("LFW 99.42 and YTF 95.0 of 64 layers on CASIA-WebFace"),
                "the gradient is that of the loss; the code's layer rescales it, leaves the margin out of the class "
                "vectors' gradient, and sets these back to length 1 in every step",
                *OURS,
            ),
            face_config(sphereface, free=True),
            formerly="faces/sphereface",
        ),
        Recipe(
            "faces/center-circle-protocol",
            UNPUBLISHED,
            "Wen et al., A Discriminative Feature Learning Approach, ECCV 2016: λ 0.008 of its code, α 0.5; everything "
            "else: the Circle paper",
            (
                OF_ANOTHER.format("LFW 99.28 and YTF 94.9 of 7 convolutions on 0.7 million images"),
                "centres move by the paper's rule; the code moves them by sgd with momentum, decay and a falling rate",
                *OURS,
            ),
            face_config(
                LossConfig("SoftmaxLoss", {"bias": True}),
                LossConfig("CenterLoss", {"alpha": 0.5, "loss_weight": 0.008}),
                free=True,
            ),
            formerly="faces/center",
        ),
    ]


def face_config(*losses: LossConfig, free: bool = False) -> TrainConfig:
    """The protocol with any loss, or a sum of losses; with `free`, features are not normalised."""
    return replace(
        PLAIN,
        data=replace(PLAIN.data, split="all", size=112, framing="stretch", validation=0.0),
        sampler=SamplerConfig(kind="plain", batch_size=512),
        model=replace(
            PLAIN.model,
            backbone="iresnet-34",
            weights="random",
            head="none",
            normalise="never" if free else "always",
        ),
        loss=losses,
        class_std=0.01,
        optimiser=replace(PLAIN.optimiser, name="sgd", lr=0.1, weight_decay=5e-4),
        schedule=replace(PLAIN.schedule, milestones=(0.5, 0.7, 0.9)),
        evaluation=replace(PLAIN.evaluation, ks=(1,)),
        epochs=1000,  # more than the steps need
        max_steps=182_000,
    )
