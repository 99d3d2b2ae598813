"""The configuration of a training run: one tree of frozen dataclasses.

The command line, YAML files and Python all fill the same tree, and `config.yaml` of every run holds it with nothing
left open. None stands for "choose well for this data"; `defaults.resolve` does that. How it is read and written:
`options.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from nearfar.errors import InputError


def option(default: Any, text: str) -> Any:
    """A field with what `--help` says of it."""
    return field(default=default, metadata={"help": text})


def _check_least(least: int, **values: int | None) -> None:
    """Refuse numbers that nothing could be done with."""
    for name, value in values.items():
        if value is not None and value < least:
            raise InputError(f"{name}={value} must be at least {least}")


@dataclass(frozen=True)
class DataConfig:
    """What is trained on, and how its images are prepared."""

    path: str = option("glyphs", "folder, CSV file or the like (see nearfar.data.open); glyphs is built in")
    layout: str | None = option(None, "name of the layout, instead of recognising it")
    split: Literal["auto", "classes", "images", "all"] = option(
        "auto",
        "auto: as the data says; where it does not, classes in halves, or images where there are fewer than 8 classes. "
        "classes: test on classes that are not trained on. images: test on other images of the same classes. all: "
        "train on every class; the test data are elsewhere (test), or there are none",
    )
    test: str | None = option(
        None, "other data to test on, without what was trained on; with them, auto is all where the data has no split"
    )
    validation: float | None = option(
        None,
        "share of the training classes (of the images, if split by image) held out to choose the best epoch, where the "
        "data has no validation split; 0: none, and the last epoch is kept; default: 0.1, or folds",
    )
    folds: int | None = option(
        None,
        "cross-fitting: the training classes are held out in so many folds, and a model is trained for each, to choose "
        "what is kept and to calibrate its threshold; 1: validation classes are held out once. Default: 3 where fewer "
        "than 20 classes would be held out, with freeze or up to 2,000 images; else 1",
    )
    size: int | tuple[int, int] | None = option(None, "side of the images, or height,width; default: the backbone's")
    test_size: int | tuple[int, int] | None = option(
        None,
        "side of the images in evaluation, with size; a little larger often scores better, since random crops show "
        "things enlarged; default: size",
    )
    resize: int | None = option(None, "shorter side before the centre crop of evaluation; default: in proportion")
    framing: Literal["crop", "stretch"] | None = option(
        None,
        "crop: random crops in training, the centre in evaluation. stretch: the whole image stretched to size, as is "
        "usual for faces and persons; default: as the backbone evaluates",
    )
    crop_area: tuple[float, float] = option((0.16, 1.0), "of a random crop, as fractions of the image")
    crop_ratio: tuple[float, float] = option((3 / 4, 4 / 3), "width over height of a random crop")
    flip: float | None = option(None, "probability of a mirror image in training; default: 0.5, of glyphs 0")
    color: float = option(0.0, "strength of colour jitter in training, 0 to 1")
    erase: float = option(0.0, "probability of erasing a rectangle in training")
    pad: int | None = option(None, "shift by up to so many pixels in training; default: 0, of glyphs 2")
    interpolation: Literal["bilinear", "bicubic"] | None = option(None, "default: the backbone's")
    workers: int | None = option(None, "processes that load images; default: one per spare core, of glyphs none")
    max_broken: float = option(0.25, "share of all images that may be unreadable and left out; more are an error")

    def __post_init__(self) -> None:
        _check_least(0, workers=self.workers)


@dataclass(frozen=True)
class SamplerConfig:
    """Which images make a batch."""

    kind: Literal["auto", "pk", "plain", "balanced", "hierarchical"] = option(
        "auto",
        "pk: p classes x k images. plain: every image once an epoch. balanced: every class equally often. "
        "hierarchical: s super-classes x p classes x k images. auto: pk where a loss compares samples, else plain",
    )
    p: int | None = option(None, "classes in a batch; default: as many as fill batch_size")
    k: int = option(4, "images of each class in a batch")
    s: int = option(2, "super-classes in a batch (hierarchical)")
    batch_size: int | None = option(
        None, "images in a batch, of each device; default: 128, with freeze 512, of some losses fewer"
    )

    def __post_init__(self) -> None:
        _check_least(1, k=self.k, s=self.s)


@dataclass(frozen=True)
class ModelConfig:
    """The embedder; see nearfar.models.Embedder."""

    backbone: str | None = option(
        None, "efficientnet-lite0, convnet, hf:MODEL, timm:MODEL, ...; default: efficientnet-lite0, of glyphs convnet"
    )
    weights: str = option("default", "default (pretrained where there are weights), random, or a checkpoint file")
    pool: Literal["avg", "max", "avg+max", "gem", "cls"] | None = option(
        None, "default: cls where there is one, else avg"
    )
    head: Literal["linear", "mlp", "hash", "none"] = option("linear", "from features to the embedding")
    dimension: int | None = option(None, "of the embedding; default: 512, of glyphs 128")
    hidden: int | None = option(None, "width of the mlp head")
    layer_norm: bool = option(False, "normalise the features before the head")
    parts: tuple[int, ...] = option((1,), "stripes of the map, each with a head of its own, such as 1,2,3")
    head_start: Literal["random", "uniform", "pca", "pca-whiten"] | None = option(
        None,
        "how the head starts; random: He's normal distribution; uniform: a linear head as PyTorch starts one. Default: "
        "pca with pretrained weights, else random",
    )
    head_scale: float | None = option(
        None,
        "times its weights, where the head starts at random: how long embeddings are at first, which losses of any "
        "norm see; default: as nearfar losses NAME shows, mostly 1",
    )
    freeze: bool = option(False, "train the head alone, on features computed once and cached: seconds, not hours")
    freeze_to: str | None = option(
        None,
        "a module of the trunk, such as _blocks.2 of efficientnet-lite0: it and all before it stay as they are, which "
        "takes half the time of a step",
    )
    views: int = option(1, "with freeze: augmented versions of every training image in the cache; 1: the image itself")
    freeze_batch_norm: bool | Literal["statistics"] | None = option(
        None,
        "keep the trunk's batch normalisation as it is; statistics: those alone, while its scales and shifts are "
        "trained. Default: true with pretrained weights",
    )
    batch_norm_momentum: float | None = option(
        None, "how far running statistics follow a batch; default: the trunk's own, mostly 0.1"
    )
    warmup_epochs: int = option(0, "epochs that train the head (and the proxies) alone")
    options: Mapping[str, Any] = field(
        default_factory=dict, metadata={"help": "of the backbone's constructor, such as {width: 16} of convnet"}
    )
    normalise: Literal["auto", "always", "never"] = option(
        "auto",
        "the embeddings that a loss sees in training. auto: of norm 1, or of any norm, as the loss is defined (nearfar "
        "losses NAME says). always: of norm 1. never: as the head gives them. Search and figures are by cosine anyway",
    )
    lora: Mapping[str, Any] | None = option(None, "options of peft.LoraConfig: adapters, the trunk itself frozen")


@dataclass(frozen=True)
class LossConfig:
    """One loss of the sum that is trained with.

    In YAML and on the command line the arguments stand beside the rest: {name: CircleLoss, gamma: 80}.
    """

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    weight: float = option(1.0, "factor in the sum of losses")
    class_level: bool = option(
        False, "for losses that come in both forms, such as CircleLoss: compare with class weights, not with samples"
    )
    memory: int | None = option(None, "samples of past batches to compare with (CrossBatchMemory)")
    dims: tuple[int, ...] | None = option(None, "dimensions that are trained to work alone (MatryoshkaLoss)")


@dataclass(frozen=True)
class OptimiserConfig:
    """What moves the weights."""

    name: Literal["adamw", "adam", "sgd", "rmsprop"] = option("adamw", "the optimiser")
    lr: float | None = option(
        None, "base rate; default: 1e-4, for heads on cached features 3e-4, for random weights 3e-3"
    )
    trunk: float = option(1.0, "times lr: rate of the trunk")
    head: float = option(1.0, "times lr: rate of the head")
    classes: float | None = option(
        None, "rate of class vectors and proxies; default: as nearfar losses NAME shows, under sgd lr"
    )
    scale: float | None = option(None, "rate of temperatures and scales that a loss learns; default: as above")
    boundary: float | None = option(None, "rate of boundaries that a loss learns; default: as above")
    proxies: float | None = option(None, "times lr: rate of all that the loss learns, in place of the three above")
    weight_decay: float = option(1e-4, "not of biases, normalisations and single numbers, unless decay_all")
    decay_all: bool = option(False, "decay biases, normalisations and single numbers too")
    momentum: float = option(0.9, "of sgd and rmsprop")
    eps: float | None = option(None, "of adamw, adam and rmsprop; default: 1e-8")
    clip_value: float | None = option(None, "largest absolute value of a gradient's entries")
    clip_norm: float | None = option(None, "largest norm of the whole gradient")
    restart: bool = option(False, "begin again with a new optimiser when warmup_epochs are over")


@dataclass(frozen=True)
class ScheduleConfig:
    """How the rates change."""

    kind: Literal["constant", "cosine", "step"] = option("cosine", "cosine falls to zero; step: gamma at milestones")
    warmup_steps: int | None = option(
        None, "steps in which the rates rise from zero; default: as nearfar losses NAME shows, mostly 0"
    )
    margin_warmup_steps: int | None = option(
        None,
        "steps in which the angular margin of ArcFaceLoss and its relatives rises from zero; default: as nearfar "
        "losses NAME shows, mostly 0",
    )
    milestones: tuple[float, ...] = option((0.5, 0.7, 0.9), "of step: where, as fractions of all steps")
    gamma: float = option(0.1, "of step: factor at each milestone")


@dataclass(frozen=True)
class EvaluationConfig:
    """What is measured, and when."""

    ks: tuple[int, ...] = option((1, 2, 4, 8), "for recall@k")
    every: int = option(1, "epochs between two measurements on the validation classes")
    metric: str = option("map@r", "that chooses the best epoch, on the validation classes")
    watch_test: bool = option(
        False, "measure the test rows as often, for a curve; they decide nothing, and that takes its time"
    )
    flip: bool = option(False, "average the embeddings of an image and its mirror image")
    keep: Literal["best", "trained"] | None = option(
        None,
        "best: of the pretrained features, the model as it starts and the trained one, what is best on held-out "
        "classes. trained: the trained model, whatever it is worth. Default: best, unless a dimension or a hashing "
        "head is asked for",
    )
    target_precision: float = option(
        0.95, "that the threshold is calibrated for: share of pairs that are the same among those it accepts"
    )
    target_far: float | None = option(
        None, "calibrate the threshold for this false accept rate instead: share of other pairs that it accepts"
    )
    share: float | None = option(
        None, "of same pairs among those that will be compared, which precision depends on; default: as in the data"
    )
    report: bool = option(True, "write report.html, which takes seconds; nearfar report RUN writes it later")

    def __post_init__(self) -> None:
        _check_least(1, every=self.every)


@dataclass(frozen=True)
class CheckpointConfig:
    """How often the state is kept, besides at the end of every epoch."""

    seconds: float = option(120.0, "between two checkpoints")
    steps: int | None = option(None, "between two checkpoints, in place of seconds")

    def __post_init__(self) -> None:
        _check_least(1, steps=self.steps)


@dataclass(frozen=True)
class TrainConfig:
    """Everything a training run depends on."""

    data: DataConfig = field(default_factory=DataConfig)
    sampler: SamplerConfig = field(default_factory=SamplerConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    loss: tuple[LossConfig, ...] = option(
        (),
        "one loss, or a sum such as 'ProxyAnchorLoss + 0.5 * CircleLoss'; default: ProxyAnchorLoss, for a "
        "network that starts at random MultiSimilarityLoss",
    )
    class_start: Literal["random", "uniform", "means"] | None = option(
        None,
        "where a loss's class vectors start; random: He's normal distribution; uniform: every entry between ± the root "
        "of 1 / their number; means: at the mean embeddings of their classes. Default: means where the head starts "
        "from principal components, else random",
    )
    class_std: float | None = option(
        None, "standard deviation of class vectors that start at random; default: the root of 2 / their number"
    )
    sample_rate: float = option(
        1.0,
        "share of the classes, besides those of the batch, that a class-level loss compares with in a step (Partial "
        "FC); others stay as they are",
    )
    optimiser: OptimiserConfig = field(default_factory=OptimiserConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    checkpoints: CheckpointConfig = field(default_factory=CheckpointConfig)
    budget: str | None = option(
        None,
        "a time in which the run is to end, measuring included, such as 10min or 1h30min: what is trained, the size of "
        "the images and the epochs are chosen so that it does",
    )
    epochs: int | None = option(None, "passes over the training images; default: 20, of glyphs 12, with freeze 40")
    max_steps: int | None = option(None, "stop after so many steps, whatever epochs says")
    precision: Literal["32-true", "bf16-mixed", "16-mixed"] = option("32-true", "arithmetic of the network")
    ema: float = option(0.0, "decay of averaged weights, such as 0.999, which are evaluated and kept; 0: none")
    on_collapse: Literal["stop", "continue"] = option(
        "stop", "what to do when all embeddings have come to point one way, which training does not recover from"
    )
    chunk: int | None = option(None, "images at a time through the network (GradCache): large batches in little memory")
    select: Literal["hard", "weighted", "random"] | None = option(
        None,
        "compare all images of a batch, and send only a part of them back through the network. hard: those that weigh "
        "most in the loss. weighted: drawn by their weight in it. random: drawn alike",
    )
    select_keep: float = option(0.25, "with select, the part of each batch; --keep 0.25 means this too")
    seed: int = option(0, "decides everything random")
    accelerator: str = option("auto", "auto, cpu, gpu, mps, ... (Lightning)")
    devices: int = option(1, "processes on each machine, each with batch_size images")
    nodes: int = option(1, "machines; torchrun and srun, which start the processes there, say how many")
    loggers: tuple[Literal["tensorboard", "wandb", "mlflow"], ...] = option((), "besides curves.csv")
    log_every: int = option(10, "steps between two rows of curves.csv")
    out: str | None = option(None, "folder of the run; default: runs/DATA-LOSS-NUMBER")

    def __post_init__(self) -> None:
        _check_least(0, seed=self.seed)
        _check_least(1, devices=self.devices, nodes=self.nodes, log_every=self.log_every)
