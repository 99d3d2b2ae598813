"""What a recipe is."""

from dataclasses import dataclass

from nearfar.training.config import TrainConfig

# The public ImageNet checkpoints, to be put where training is started.
BN_INCEPTION = "bn_inception-52deb4733.pth"
RESNET_50 = "resnet50-0676ba61.pth"  # torchvision's IMAGENET1K_V1

UNPUBLISHED = "no figure is published for this protocol"


@dataclass(frozen=True)
class Recipe:
    """A protocol of a paper with a loss.

    `aim` is the published figure; `source` says where the settings are from, and `ours` which of them the source does
    not give, or has otherwise.
    """

    name: str
    aim: str
    source: str
    ours: tuple[str, ...]
    config: TrainConfig
