"""What a recipe is."""

from dataclasses import dataclass

from nearfar.training.config import TrainConfig

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
