"""The configuration of a training run: one tree of frozen dataclasses.

The command line, YAML files and Python all fill the same tree, and the `config.yaml` of every run holds it with every
choice made. None means "choose for this data", which `defaults.resolve` does. `options.py` reads and writes it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from nearfar.errors import InputError


def option(default: Any, text: str) -> Any:
    """A field with its text for `--help`."""
    return field(default=default, metadata={"help": text})


def _check_least(least: int, **values: int | None) -> None:
    """Reject values below the least meaningful one."""
    for name, value in values.items():
        if value is not None and value < least:
            raise InputError(f"{name}={value} must be at least {least}")


@dataclass(frozen=True)
class DataConfig:
    """The data, its split, and how images are prepared."""

    path: str = option("glyphs", "folder, CSV file or other data (see nearfar.data.open); glyphs is built in")
    layout: str | None = option(None, "name of the layout; default: recognised from the files")
    split: Literal["auto", "classes", "images", "all"] = option(
        "auto",
        "auto: the data's own split; without one, classes in halves, or images if there are fewer than 8 classes. "
        "classes: test on classes that are not trained on. images: test on other images of the same classes. all: "
        "train on every class; test on other data (test), or not at all",
    )
    test: str | None = option(
        None, "other data to test on, without training images; with it, auto means all for data without a split"
    )
    validation: float | None = option(
        None,
        "share of the training classes (or images, if split by image) held out to choose the best epoch, if the data "
        "has no validation split; 0: none, and the last epoch is kept; default: 0.1, or folds",
    )
    folds: int | None = option(
        None,
        "cross-fitting: number of folds in which the training classes are held out; a model is trained for each, to "
        "choose which model is kept and to calibrate its threshold; 1: validation classes are held out once. Default: "
        "3 if fewer than 20 classes would be held out, with freeze or up to 2,000 images; else 1",
    )
    size: int | tuple[int, int] | None = option(None, "side of the images, or height,width; default: the backbone's")
    test_size: int | tuple[int, int] | None = option(
        None,
        "side of the images in evaluation, with size; a little larger often scores better, since random crops enlarge "
        "objects; default: size",
    )
    resize: int | None = option(None, "shorter side before the centre crop of evaluation; default: in proportion")
    framing: Literal["crop", "stretch"] | None = option(
        None,
        "crop: random crops in training, the centre in evaluation. stretch: the whole image stretched to size, usual "
        "for faces and persons; default: the backbone's",
    )
    crop_area: tuple[float, float] = option((0.16, 1.0), "area of a random crop, as fractions of the image")
    crop_ratio: tuple[float, float] = option((3 / 4, 4 / 3), "width over height of a random crop")
    flip: float | None = option(None, "probability of a mirror image in training; default: 0.5, for glyphs 0")
    color: float = option(0.0, "strength of colour jitter in training, 0 to 1")
    erase: float = option(0.0, "probability of erasing a rectangle in training")
    pad: int | None = option(None, "largest random shift in training, in pixels; default: 0, for glyphs 2")
    interpolation: Literal["bilinear", "bicubic"] | None = option(
        None, "interpolation of resizing; default: the backbone's"
    )
    workers: int | None = option(None, "processes that load images; default: one per spare core, for glyphs none")
    max_broken: float = option(0.25, "largest share of images that may be unreadable and left out")

    def __post_init__(self) -> None:
        _check_least(0, workers=self.workers)


@dataclass(frozen=True)
class SamplerConfig:
    """How images are drawn into batches."""

    kind: Literal["auto", "pk", "plain", "balanced", "hierarchical"] = option(
        "auto",
        "pk: p classes x k images. plain: every image once an epoch. balanced: every class equally often. "
        "hierarchical: s super-classes x p classes x k images. auto: pk if a loss compares samples, else plain",
    )
    p: int | None = option(None, "classes in a batch; default: as many as fill batch_size")
    k: int = option(4, "images of each class in a batch")
    s: int = option(2, "super-classes in a batch (hierarchical)")
    batch_size: int | None = option(
        None, "images in a batch, per device; default: 128, with freeze 512, for some losses fewer"
    )

    def __post_init__(self) -> None:
        _check_least(1, k=self.k, s=self.s)


@dataclass(frozen=True)
class ModelConfig:
    """The embedder; see nearfar.models.Embedder."""

    backbone: str | None = option(
        None, "efficientnet-lite0, convnet, hf:MODEL, timm:MODEL, ...; default: efficientnet-lite0, for glyphs convnet"
    )
    weights: str = option("default", "default (pretrained weights if available), random, or a checkpoint file")
    pool: Literal["avg", "max", "avg+max", "gem", "cls"] | None = option(
        None, "pooling; default: cls if the backbone has one, else avg"
    )
    head: Literal["linear", "mlp", "hash", "none"] = option("linear", "maps features to the embedding")
    dimension: int | None = option(None, "dimension of the embedding; default: 512, for glyphs 128")
    hidden: int | None = option(None, "width of the mlp head")
    layer_norm: bool = option(False, "normalise the features before the head")
    parts: tuple[int, ...] = option(
        (1,), "horizontal stripes of the feature map, each with its own head, such as 1,2,3"
    )
    head_start: Literal["random", "uniform", "pca", "pca-whiten"] | None = option(
        None,
        "initialisation of the head; random: He's normal distribution; uniform: PyTorch's for linear layers. Default: "
        "pca with pretrained weights, else random",
    )
    head_scale: float | None = option(
        None,
        "factor of the head's random initial weights, which sets the initial norm of embeddings; it matters to losses "
        "on embeddings of any norm; default: see nearfar losses NAME, mostly 1",
    )
    freeze: bool = option(False, "train only the head, on features computed once and cached: seconds, not hours")
    freeze_to: str | None = option(
        None,
        "a module of the trunk, such as _blocks.2 of efficientnet-lite0: it and all modules before it are frozen, "
        "which halves the time of a step",
    )
    views: int = option(1, "with freeze: augmented versions of every training image in the cache; 1: the image itself")
    freeze_batch_norm: bool | Literal["statistics"] | None = option(
        None,
        "freeze the trunk's batch normalisation; statistics: freeze only the statistics, and train scales and shifts. "
        "Default: true with pretrained weights",
    )
    batch_norm_momentum: float | None = option(
        None, "momentum of the running statistics; default: the trunk's, mostly 0.1"
    )
    warmup_epochs: int = option(0, "epochs that train only the head (and the proxies)")
    options: Mapping[str, Any] = field(
        default_factory=dict,
        metadata={"help": "arguments of the backbone's constructor, such as {width: 16} for convnet"},
    )
    normalise: Literal["auto", "always", "never"] = option(
        "auto",
        "norm of the embeddings in the loss. auto: 1 or free, as the loss is defined (see nearfar losses NAME). "
        "always: 1. never: as the head returns them. Search and metrics always use the cosine",
    )
    lora: Mapping[str, Any] | None = option(None, "options of peft.LoraConfig: trains adapters in a frozen trunk")


@dataclass(frozen=True)
class LossConfig:
    """One loss of the training objective, a sum of losses.

    In YAML and on the command line, arguments stand beside the other fields: {name: CircleLoss, gamma: 80}.
    """

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    weight: float = option(1.0, "factor in the sum of losses")
    class_level: bool = option(
        False, "for losses with both forms, such as CircleLoss: compare with class weights, not with samples"
    )
    memory: int | None = option(None, "samples of past batches to compare with (CrossBatchMemory)")
    dims: tuple[int, ...] | None = option(
        None, "leading dimensions that are trained to work by themselves (MatryoshkaLoss)"
    )


@dataclass(frozen=True)
class OptimiserConfig:
    """The optimiser and its learning rates."""

    name: Literal["adamw", "adam", "sgd", "rmsprop"] = option("adamw", "the optimiser")
    lr: float | None = option(
        None, "base learning rate; default: 1e-4, for heads on cached features 3e-4, for random weights 3e-3"
    )
    trunk: float = option(1.0, "rate of the trunk, as a multiple of lr")
    head: float = option(1.0, "rate of the head, as a multiple of lr")
    classes: float | None = option(
        None, "rate of class vectors and proxies; default: see nearfar losses NAME; with sgd lr"
    )
    scale: float | None = option(None, "rate of learned temperatures and scales; default: as for classes")
    boundary: float | None = option(None, "rate of learned boundaries; default: as for classes")
    proxies: float | None = option(
        None, "rate of all parameters of the loss, as a multiple of lr, in place of the three above"
    )
    weight_decay: float = option(
        1e-4, "applied to all parameters but biases, normalisations and scalars, unless decay_all"
    )
    decay_all: bool = option(False, "decay biases, normalisations and scalars too")
    momentum: float = option(0.9, "momentum of sgd and rmsprop")
    eps: float | None = option(None, "epsilon of adamw, adam and rmsprop; default: 1e-8")
    clip_value: float | None = option(None, "largest absolute value of a gradient's entries")
    clip_norm: float | None = option(None, "largest norm of the whole gradient")
    restart: bool = option(False, "restart the optimiser after warmup_epochs")


@dataclass(frozen=True)
class ScheduleConfig:
    """The schedule of the learning rates and margins."""

    kind: Literal["constant", "cosine", "step"] = option("cosine", "cosine falls to zero; step: gamma at milestones")
    warmup_steps: int | None = option(
        None, "steps in which the rates rise from zero; default: see nearfar losses NAME, mostly 0"
    )
    margin_warmup_steps: int | None = option(
        None,
        "steps in which the angular margin of ArcFaceLoss and its relatives rises from zero; default: see nearfar "
        "losses NAME, mostly 0",
    )
    milestones: tuple[float, ...] = option((0.5, 0.7, 0.9), "milestones of step, as fractions of all steps")
    gamma: float = option(0.1, "factor at each milestone of step")


@dataclass(frozen=True)
class EvaluationConfig:
    """What is evaluated, and when."""

    ks: tuple[int, ...] = option((1, 2, 4, 8), "values of k for recall@k")
    every: int = option(1, "epochs between two evaluations on the validation classes")
    metric: str = option("map@r", "metric on the validation classes that chooses the best epoch")
    watch_test: bool = option(
        False, "also evaluate the test rows every time, for a curve; this is slower and decides nothing"
    )
    flip: bool = option(False, "average the embeddings of an image and its mirror image")
    keep: Literal["best", "trained"] | None = option(
        None,
        "best: the best on held-out classes of the pretrained features, the initial model and the trained model. "
        "trained: always the trained model. Default: best, unless a dimension or a hashing head is set",
    )
    target_precision: float = option(
        0.95, "precision to calibrate the threshold for: share of same pairs among the accepted ones"
    )
    target_far: float | None = option(
        None, "calibrate the threshold for this false accept rate instead: share of different pairs it accepts"
    )
    share: float | None = option(
        None, "share of same pairs among those that will be compared, which precision depends on; default: the data's"
    )
    report: bool = option(True, "write report.html, which takes seconds; nearfar report RUN does so later")

    def __post_init__(self) -> None:
        _check_least(1, every=self.every)


@dataclass(frozen=True)
class CheckpointConfig:
    """How often checkpoints are saved, besides at the end of every epoch."""

    seconds: float = option(120.0, "seconds between two checkpoints")
    steps: int | None = option(None, "steps between two checkpoints, in place of seconds")

    def __post_init__(self) -> None:
        _check_least(1, steps=self.steps)


@dataclass(frozen=True)
class TrainConfig:
    """The complete configuration of a training run."""

    data: DataConfig = field(default_factory=DataConfig)
    sampler: SamplerConfig = field(default_factory=SamplerConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    loss: tuple[LossConfig, ...] = option(
        (),
        "one loss, or a sum such as 'ProxyAnchorLoss + 0.5 * CircleLoss'; default: ProxyAnchorLoss, for a randomly "
        "initialised network MultiSimilarityLoss",
    )
    class_start: Literal["random", "uniform", "means"] | None = option(
        None,
        "initialisation of a loss's class vectors; random: He's normal distribution; uniform: entries between ± the "
        "root of 1 / their number; means: the mean embeddings of their classes. Default: means if the head starts from "
        "principal components, else random",
    )
    class_std: float | None = option(
        None, "standard deviation of randomly initialised class vectors; default: the root of 2 / their number"
    )
    sample_rate: float = option(
        1.0,
        "share of the classes, besides those of the batch, that a class-level loss compares with in a step (Partial "
        "FC); the others are not updated",
    )
    optimiser: OptimiserConfig = field(default_factory=OptimiserConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    checkpoints: CheckpointConfig = field(default_factory=CheckpointConfig)
    budget: str | None = option(
        None,
        "time for the whole run, evaluation included, such as 10min or 1h30min: chooses what is trained, the image "
        "size and the epochs accordingly",
    )
    epochs: int | None = option(None, "passes over the training images; default: 20, for glyphs 12, with freeze 40")
    max_steps: int | None = option(None, "stop after this number of steps, whatever epochs says")
    precision: Literal["32-true", "bf16-mixed", "16-mixed"] = option(
        "32-true", "floating-point precision of the network"
    )
    ema: float = option(0.0, "decay of averaged weights, such as 0.999, which are evaluated and saved; 0: none")
    on_collapse: Literal["stop", "continue"] = option(
        "stop", "what to do if all embeddings point one way, which training does not recover from"
    )
    chunk: int | None = option(None, "images per pass through the network (GradCache): large batches in little memory")
    select: Literal["hard", "weighted", "random"] | None = option(
        None,
        "compare all images of a batch, and backpropagate only some of them. hard: those with the largest gradients. "
        "weighted: drawn in proportion to their gradients. random: drawn uniformly",
    )
    select_keep: float = option(0.25, "with select, the share of each batch that is backpropagated; also --keep 0.25")
    seed: int = option(0, "seed of everything random")
    accelerator: str = option("auto", "auto, cpu, gpu, mps, ... (Lightning)")
    devices: int = option(1, "processes on each machine, each with batch_size images")
    nodes: int = option(1, "machines; torchrun and srun, which start the processes, set it")
    loggers: tuple[Literal["tensorboard", "wandb", "mlflow"], ...] = option((), "loggers besides curves.csv")
    log_every: int = option(10, "steps between two rows of curves.csv")
    out: str | None = option(None, "folder of the run; default: runs/DATA-LOSS-NUMBER")

    def __post_init__(self) -> None:
        _check_least(0, seed=self.seed)
        _check_least(1, devices=self.devices, nodes=self.nodes, log_every=self.log_every)
