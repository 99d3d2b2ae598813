"""`Recipe`, and the settings that all recipes share."""

from dataclasses import dataclass

from nearfar.training.config import (
    DataConfig,
    EvaluationConfig,
    ModelConfig,
    OptimiserConfig,
    SamplerConfig,
    ScheduleConfig,
    TrainConfig,
)
from nearfar.training.downloads import DATA, WEIGHTS, Download

UNPUBLISHED = "no figure is published for this protocol"

# Values for all settings that recipes leave out, so that changes of nearfar's defaults do not affect recipes.
PLAIN = TrainConfig(
    data=DataConfig(
        split="auto",
        validation=0.0,
        folds=1,
        framing="crop",
        crop_area=(0.08, 1.0),
        crop_ratio=(3 / 4, 4 / 3),
        flip=0.5,
        color=0.0,
        erase=0.0,
        pad=0,
        interpolation="bilinear",
    ),
    sampler=SamplerConfig(kind="plain"),
    model=ModelConfig(
        pool="avg",
        head="linear",
        layer_norm=False,
        parts=(1,),
        head_start="random",
        head_scale=1.0,
        freeze=False,
        freeze_batch_norm=False,
        warmup_epochs=0,
        normalise="always",
    ),
    class_start="random",
    sample_rate=1.0,
    optimiser=OptimiserConfig(
        trunk=1.0,
        head=1.0,
        proxies=1.0,
        weight_decay=0.0,
        decay_all=True,
        momentum=0.9,
        clip_value=None,
        clip_norm=None,
        restart=False,
    ),
    schedule=ScheduleConfig(kind="step", warmup_steps=0, margin_warmup_steps=0, gamma=0.1),
    evaluation=EvaluationConfig(keep="trained", flip=False),
    precision="32-true",
    ema=0.0,
    on_collapse="stop",
    chunk=None,
    select=None,
)


@dataclass(frozen=True)
class Recipe:
    """A paper's protocol with a loss.

    Attributes:
        name: `data/loss` has the settings of the loss's authors; `data/loss-OTHER-protocol` those of others.
        aim: the figure published for this protocol, if any.
        source: the paper and code that the settings come from.
        ours: deviations: settings that differ from the source or are not in it.
        config: all settings.
        formerly: the recipe's earlier name, or what its name stood for.
    """

    name: str
    aim: str
    source: str
    ours: tuple[str, ...]
    config: TrainConfig
    formerly: str = ""

    @property
    def needs(self) -> tuple[Download, ...]:
        """The data set and the pretrained weights to download."""
        data, weights = DATA[self.name.partition("/")[0]], WEIGHTS.get(self.config.model.weights)
        return (data,) if weights is None else (data, weights)
