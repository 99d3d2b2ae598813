"""Retrieval of unseen classes: CUB-200-2011, Cars196, Stanford Online Products and In-Shop.

Half of the classes (In-Shop: its own half) are trained on, all of them, and the last epoch is measured on the others.
The papers mostly report the epoch that was best on the test classes, which flatters them.
"""

from dataclasses import dataclass
from typing import Literal

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
from nearfar.training.recipes.recipe import BN_INCEPTION, RESNET_50, UNPUBLISHED, Recipe

CROPS = DataConfig(size=224, resize=256, framing="crop", crop_area=(0.08, 1.0), flip=0.5, validation=0.0)
REST = (
    "optimiser, rates, warm-up, schedule, epochs, clipping, pooling, crops, frozen batch normalisation: proxy-anchor's"
)
LAST_EPOCH = "the last epoch is measured, not the best on the test classes"


@dataclass(frozen=True)
class Benchmark:
    """A data set as the papers use it: at which k recall is reported, and whether its classes are many and small."""

    name: str
    ks: tuple[int, ...]
    large: bool


CUB = Benchmark("cub", (1, 2, 4, 8), large=False)
CARS = Benchmark("cars", (1, 2, 4, 8), large=False)
SOP = Benchmark("sop", (1, 10, 100, 1000), large=True)
IN_SHOP = Benchmark("in-shop", (1, 10, 20, 30, 40), large=True)
BENCHMARKS = (CUB, CARS, SOP, IN_SHOP)


def recipes() -> list[Recipe]:
    """Every benchmark with every loss."""
    made = (circle, proxy_anchor, proxy_nca, soft_triple, multi_similarity, triplet)
    return [make(benchmark) for benchmark in BENCHMARKS for make in made]


def _bn_inception(
    benchmark: Benchmark, *, pool: Literal["avg", "avg+max"] = "avg", warmup_epochs: int = 0
) -> ModelConfig:
    return ModelConfig(
        backbone="bn-inception",
        weights=BN_INCEPTION,
        pool=pool,
        dimension=512,
        head_start="random",
        freeze_batch_norm=not benchmark.large,
        warmup_epochs=warmup_epochs,
    )


def proxy_anchor(benchmark: Benchmark) -> Recipe:
    """Kim et al., CVPR 2020: the commands of its README."""
    figures = {"cub": ("69.1", "68.4"), "cars": ("86.4", "86.1"), "sop": ("79.2", "79.1"), "in-shop": ("91.9", "91.5")}
    readme, paper = figures[benchmark.name]
    every = {"cub": 10, "cars": 20, "sop": 20, "in-shop": 20}[benchmark.name]
    epochs = 60
    return Recipe(
        f"{benchmark.name}/proxy-anchor",
        f"R@1 {readme} (the code's README; the paper has {paper})",
        "Kim et al., Proxy Anchor Loss, CVPR 2020, arXiv:2003.13911, and its code",
        (LAST_EPOCH, "biases and normalisations are not decayed (there they are)"),
        TrainConfig(
            data=CROPS,
            sampler=SamplerConfig(kind="plain", batch_size=180),
            model=_bn_inception(benchmark, pool="avg+max", warmup_epochs=1),
            loss=(LossConfig("ProxyAnchorLoss", {"margin": 0.1, "alpha": 32.0}),),
            optimiser=OptimiserConfig(
                name="adamw",
                lr=6e-4 if benchmark.large else 1e-4,
                proxies=100.0,
                weight_decay=1e-4,
                clip_value=10.0,
            ),
            schedule=ScheduleConfig(
                kind="step",
                milestones=tuple(epoch / epochs for epoch in range(every, epochs, every)),
                gamma=0.25 if benchmark.large else 0.5,
            ),
            evaluation=EvaluationConfig(ks=benchmark.ks),
            epochs=epochs,
        ),
    )


def proxy_nca(benchmark: Benchmark) -> Recipe:
    """Teh, DeVries, Taylor, ECCV 2020: the configurations of its code. With eps = 1, Adam is nearly sgd: hence such
    rates.
    """
    figure = {"cub": "72.2", "cars": "90.1", "sop": "81.4", "in-shop": "90.9"}[benchmark.name]
    base, proxies = {"cub": (4e-3, 4e2), "cars": (4e-3, 4e2), "sop": (2.4e-2, 2.4e2), "in-shop": (2.4e-2, 2.4e3)}[
        benchmark.name
    ]
    return Recipe(
        f"{benchmark.name}/proxy-nca++",
        f"R@1 {figure} (the paper, crops of 256)",
        "Teh et al., ProxyNCA++, ECCV 2020, arXiv:2004.01113, and its code",
        (
            LAST_EPOCH,
            "the rates fall to a tenth at a half and at three quarters; there, when the validation classes stagnate in "
            "a run before",
        ),
        TrainConfig(
            data=DataConfig(size=256, resize=288, framing="crop", crop_area=(0.08, 1.0), flip=0.5, validation=0.0),
            sampler=SamplerConfig(kind="pk", p=64, k=3) if benchmark.large else SamplerConfig(kind="pk", p=8, k=4),
            model=ModelConfig(
                backbone="resnet-50",
                weights=RESNET_50,
                pool="max",
                dimension=2048,
                layer_norm=True,
                head_start="random",
                freeze_batch_norm=False,
                warmup_epochs=5,
            ),
            loss=(LossConfig("ProxyNCALoss", {"softmax_scale": 9.0}),),
            optimiser=OptimiserConfig(name="adam", lr=base, proxies=proxies / base, weight_decay=0.0, eps=1.0),
            schedule=ScheduleConfig(kind="step", milestones=(0.5, 0.75), gamma=0.1),
            evaluation=EvaluationConfig(ks=benchmark.ks),
            epochs=80 if benchmark.large else 40,
        ),
    )


def soft_triple(benchmark: Benchmark) -> Recipe:
    """Qian et al., ICCV 2019: the settings of its code."""
    aims = {"cub": "R@1 65.4 (the paper)", "cars": "R@1 84.5 (the paper)", "sop": "R@1 78.3 (the paper)"}
    ours = ["biases and normalisations are not decayed (there they are)"]
    if benchmark.large:
        ours += ["two centres a class, which has five images; batch normalisation is not frozen (the code is for Cars)"]
    return Recipe(
        f"{benchmark.name}/soft-triple",
        aims.get(benchmark.name, UNPUBLISHED),
        "Qian et al., SoftTriple Loss, ICCV 2019, arXiv:1909.05235, and its code",
        tuple(ours),
        TrainConfig(
            data=CROPS,
            sampler=SamplerConfig(kind="plain", batch_size=32),
            model=_bn_inception(benchmark),
            loss=(
                LossConfig(
                    "SoftTripleLoss",
                    {
                        "centers_per_class": 2 if benchmark.large else 10,
                        "la": 20.0,
                        "gamma": 0.1,
                        "margin": 0.01,
                        "tau": 0.2,
                    },
                ),
            ),
            optimiser=OptimiserConfig(name="adam", lr=1e-4, proxies=100.0, weight_decay=1e-4, eps=0.01),
            schedule=ScheduleConfig(kind="step", milestones=(19 / 50, 39 / 50), gamma=0.1),
            evaluation=EvaluationConfig(ks=benchmark.ks),
            epochs=50,
        ),
    )


def circle(benchmark: Benchmark) -> Recipe:
    """Sun et al., CVPR 2020, pair-level."""
    aims = {"cub": "R@1 66.7 (the paper)", "cars": "R@1 83.4 (the paper)", "sop": "R@1 78.3 (the paper)"}
    return Recipe(
        f"{benchmark.name}/circle",
        aims.get(benchmark.name, UNPUBLISHED),
        "Sun et al., Circle Loss, CVPR 2020, arXiv:2002.10857",
        (LAST_EPOCH, REST),
        _of_pairs(benchmark, LossConfig("CircleLoss", {"m": 0.4, "gamma": 80.0})),
    )


def multi_similarity(benchmark: Benchmark) -> Recipe:
    """Wang et al., CVPR 2019."""
    figure = {"cub": "65.7", "cars": "84.1", "sop": "78.2", "in-shop": "89.7"}[benchmark.name]
    return Recipe(
        f"{benchmark.name}/multi-similarity",
        f"R@1 {figure} (the paper)",
        "Wang et al., Multi-Similarity Loss, CVPR 2019, arXiv:1904.06627, and the constants of its code",
        (
            "batches of 16 x 5, as the Circle paper has them",
            REST,
            LAST_EPOCH,
        ),
        _of_pairs(
            benchmark,
            LossConfig("MultiSimilarityLoss", {"alpha": 2.0, "beta": 40.0, "base": 0.5, "epsilon": 0.1}),
        ),
    )


def triplet(benchmark: Benchmark) -> Recipe:
    """Schroff et al., CVPR 2015: the loss, in the protocol of the others."""
    reality = "P@1 64.2 (Reality Check: four models of 128 dimensions, concatenated)"
    return Recipe(
        f"{benchmark.name}/triplet",
        reality if benchmark.name == "cub" else UNPUBLISHED,
        "Schroff et al., FaceNet, CVPR 2015, arXiv:1503.03832: semi-hard triplets, margin 0.2 of squared distances",
        ("everything but the loss: as for circle",),
        _of_pairs(
            benchmark,
            LossConfig("TripletMarginLoss", {"margin": 0.2, "mining": "semihard", "distance": "squared_l2"}),
        ),
    )


def _of_pairs(benchmark: Benchmark, loss: LossConfig) -> TrainConfig:
    """What the papers of pair losses give, P x K = 16 x 5 and 512 dimensions of BN-Inception; the rest is
    Proxy-Anchor's.
    """
    rest = proxy_anchor(benchmark).config
    return TrainConfig(
        data=rest.data,
        sampler=SamplerConfig(kind="pk", p=16, k=5),
        model=rest.model,
        loss=(loss,),
        optimiser=rest.optimiser,
        schedule=rest.schedule,
        evaluation=rest.evaluation,
        epochs=rest.epochs,
    )
