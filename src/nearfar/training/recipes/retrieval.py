"""Retrieval of unseen classes: CUB-200-2011, Cars196, Stanford Online Products and In-Shop.

A recipe trains on the first half of the classes (In-Shop: its training half) and measures the last epoch on the others.
The papers mostly report the epoch that was best on the test classes, which flatters them.
"""

from dataclasses import dataclass, replace

from nearfar.training.config import LossConfig, SamplerConfig, TrainConfig
from nearfar.training.downloads import BN_INCEPTION, RESNET_50
from nearfar.training.recipes.recipe import PLAIN, UNPUBLISHED, Recipe

LAST_EPOCH = "the last epoch is measured; the authors report the best epoch on the test classes"
DRAWN = "classes are drawn in proportion to their images; the code draws all classes equally often"
PA_PROTOCOL = "everything but loss and batches: Proxy-Anchor's code (see {}/proxy-anchor)"
PA_RATE = "the rate is 1e-4, the default of Proxy-Anchor's code, whose 6e-4 for this data set is for its own loss"
NOT_GIVEN = "the paper gives neither optimiser nor rates, epochs and crops, so its R@1 of {} does not apply"


@dataclass(frozen=True)
class Benchmark:
    """A data set as the papers use it: the k of recall@k, and whether it has many small classes (`large`)."""

    name: str
    ks: tuple[int, ...]
    large: bool


CUB = Benchmark("cub", (1, 2, 4, 8), large=False)
CARS = Benchmark("cars", (1, 2, 4, 8), large=False)
SOP = Benchmark("sop", (1, 10, 100, 1000), large=True)
IN_SHOP = Benchmark("in-shop", (1, 10, 20, 30, 40), large=True)
BENCHMARKS = (CUB, CARS, SOP, IN_SHOP)


def recipes() -> list[Recipe]:
    """Every benchmark with every loss, and Multi-Similarity's own protocol on CUB, for which its code is written."""
    made = (proxy_anchor, proxy_nca, soft_triple, circle, multi_similarity, triplet)
    every = [[make(benchmark) for make in made] for benchmark in BENCHMARKS]
    every[0].insert(4, multi_similarity_of_its_authors())
    return [info for infos in every for info in infos]


def _base(benchmark: Benchmark) -> TrainConfig:
    """BN-Inception with an embedding of 512 dimensions, on crops of 224 pixels."""
    return replace(
        PLAIN,
        data=replace(PLAIN.data, size=224, resize=256),
        model=replace(PLAIN.model, backbone="bn-inception", weights=BN_INCEPTION, dimension=512),
        evaluation=replace(PLAIN.evaluation, ks=benchmark.ks),
    )


def proxy_anchor(benchmark: Benchmark) -> Recipe:
    """Kim et al., CVPR 2020: the commands of its README."""
    figures = {"cub": ("69.1", "68.4"), "cars": ("86.4", "86.1"), "sop": ("79.2", "79.1"), "in-shop": ("91.9", "91.5")}
    readme, paper = figures[benchmark.name]
    every = 10 if benchmark is CUB else 20
    epochs, base = 60, _base(benchmark)
    return Recipe(
        f"{benchmark.name}/proxy-anchor",
        f"R@1 {readme} (the code's README; the paper has {paper})",
        "Kim et al., Proxy Anchor Loss, CVPR 2020, arXiv:2003.13911: the commands of its code's README",
        (LAST_EPOCH,),
        replace(
            base,
            sampler=SamplerConfig(kind="plain", batch_size=180),
            model=replace(
                base.model,
                pool="avg+max",
                # The code frees scales and shifts, with all else, once the first epoch has trained the head.
                freeze_batch_norm=False if benchmark.large else "statistics",
                batch_norm_momentum=0.9,
                warmup_epochs=1,
            ),
            loss=(LossConfig("ProxyAnchorLoss", {"margin": 0.1, "alpha": 32.0}),),
            optimiser=replace(
                base.optimiser,
                name="adamw",
                lr=6e-4 if benchmark.large else 1e-4,
                proxies=100.0,
                weight_decay=1e-4,
                eps=1e-8,
                clip_value=10.0,
            ),
            schedule=replace(
                base.schedule,
                milestones=tuple(epoch / epochs for epoch in range(every, epochs, every)),
                gamma=0.25 if benchmark.large else 0.5,
            ),
            epochs=epochs,
        ),
    )


def proxy_nca(benchmark: Benchmark) -> Recipe:
    """Teh, DeVries, Taylor, ECCV 2020: the configurations of its code. With eps = 1, Adam is nearly sgd: hence such
    rates.
    """
    figure = {"cub": "72.2", "cars": "90.1", "sop": "81.4", "in-shop": "90.9"}[benchmark.name]
    rate, of_proxies = {"cub": (4e-3, 4e2), "cars": (4e-3, 4e2), "sop": (2.4e-2, 2.4e2), "in-shop": (2.4e-2, 2.4e3)}[
        benchmark.name
    ]
    warmup, epochs, base = 5, 80 if benchmark.large else 40, _base(benchmark)
    falls = () if benchmark is IN_SHOP else (0.5, 0.75)  # after warm-up
    ours = (
        "the rates stay constant, as in the code's command, which has no validation run"
        if benchmark is IN_SHOP
        else "the rates fall to a tenth at a half and at three quarters of the epochs; the code lowers them where the "
        "validation classes stagnated in a previous run"
    )
    return Recipe(
        f"{benchmark.name}/proxy-nca++",
        f"R@1 {figure} (the paper, crops of 256)",
        f"Teh et al., ProxyNCA++, ECCV 2020, arXiv:2004.01113: the configurations of its code, with {warmup} epochs of "
        f"warm-up and {epochs} more, and 2,048 dimensions",
        (
            ours,
            DRAWN,
            "a class with too few images repeats one; the code's batch is smaller then",
            "gradients of the proxies are clipped, too (they never reach 10)",
            "arithmetic is 32-bit; the code's is mixed",
        ),
        replace(
            base,
            data=replace(base.data, size=256, resize=288),
            sampler=SamplerConfig(kind="pk", p=64, k=3) if benchmark.large else SamplerConfig(kind="pk", p=8, k=4),
            model=replace(
                base.model,
                backbone="resnet-50",
                weights=RESNET_50,
                pool="max",
                dimension=2048,
                layer_norm=True,
                head_start="uniform",
                warmup_epochs=warmup,
            ),
            loss=(LossConfig("ProxyNCALoss", {"softmax_scale": 9.0}),),
            class_std=1 / 8,
            optimiser=replace(
                base.optimiser,
                name="adam",
                lr=rate,
                proxies=of_proxies / rate,
                eps=1.0,
                clip_value=10.0,
                restart=True,
            ),
            schedule=replace(
                base.schedule, milestones=tuple((warmup + part * epochs) / (warmup + epochs) for part in falls)
            ),
            epochs=warmup + epochs,
        ),
    )


def soft_triple(benchmark: Benchmark) -> Recipe:
    """Qian et al., ICCV 2019: the settings of its code."""
    aims = {"cub": "R@1 65.4 (the paper)", "cars": "R@1 84.5 (the paper)"}
    ours = ["an incomplete last batch is left out; the code trains on it"]
    if benchmark.large:
        ours += [
            "a class has two centres, since it has five images, and batch normalisation uses the batch; the code is "
            "for Cars, so that no figure is an aim here"
        ]
    base = _base(benchmark)
    return Recipe(
        f"{benchmark.name}/soft-triple",
        aims.get(benchmark.name, UNPUBLISHED),
        "Qian et al., SoftTriple Loss, ICCV 2019, arXiv:1909.05235: its code, with 512 dimensions",
        tuple(ours),
        replace(
            base,
            sampler=SamplerConfig(kind="plain", batch_size=32),
            model=replace(
                base.model, head_start="uniform", freeze_batch_norm=False if benchmark.large else "statistics"
            ),
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
            class_start="uniform",
            optimiser=replace(base.optimiser, name="adam", lr=1e-4, proxies=100.0, weight_decay=1e-4, eps=0.01),
            schedule=replace(base.schedule, milestones=(19 / 50, 39 / 50)),
            epochs=50,
        ),
    )


MULTI_SIMILARITY = LossConfig("MultiSimilarityLoss", {"alpha": 2.0, "beta": 40.0, "base": 0.5, "epsilon": 0.1})


def multi_similarity_of_its_authors() -> Recipe:
    """Wang et al., CVPR 2019: the configuration of its code, which is for CUB."""
    base = _base(CUB)
    return Recipe(
        "cub/multi-similarity",
        "R@1 65.7 (the paper; the code's README: higher than 66)",
        "Wang et al., Multi-Similarity Loss, CVPR 2019, arXiv:1904.06627: the CUB configuration of its code, whose "
        "optimiser ignores the factor 0.1 that the configuration has for the trunk's rate",
        (
            LAST_EPOCH,
            DRAWN,
            "the last images of a class are filled up to five; in the code they wait for the next epoch",
            "crops are taken from the original image; the code first scales its shorter side to 256 pixels",
        ),
        replace(
            base,
            data=replace(base.data, size=227, crop_area=(0.16, 1.0)),
            sampler=SamplerConfig(kind="pk", p=16, k=5),
            model=replace(base.model, pool="max", freeze_batch_norm="statistics"),
            loss=(MULTI_SIMILARITY,),
            optimiser=replace(base.optimiser, name="adam", lr=3e-5, weight_decay=5e-4, eps=1e-8),
            schedule=replace(base.schedule, milestones=tuple((step - 1) / 3000 for step in (1200, 2400))),
            epochs=1000,  # more than the steps need
            max_steps=3000,
        ),
        formerly="the name of what is cub/multi-similarity-pa-protocol now",
    )


def multi_similarity(benchmark: Benchmark) -> Recipe:
    """Wang et al., CVPR 2019: the loss, in Proxy-Anchor's protocol."""
    return _in_pa_protocol(
        benchmark,
        "multi-similarity",
        "Wang et al., Multi-Similarity Loss, CVPR 2019, arXiv:1904.06627, and the constants of its code",
        MULTI_SIMILARITY,
        "batches have 16 classes of 5 images, as in the loss's code, which is only for CUB: see cub/multi-similarity",
    )


def circle(benchmark: Benchmark) -> Recipe:
    """Sun et al., CVPR 2020, pair-level, in Proxy-Anchor's protocol."""
    figures = {"cub": "66.7", "cars": "83.4", "sop": "78.3"}
    batches = "batches have 16 classes of 5 images, as in the paper"
    if benchmark.name in figures:
        batches += f"; {NOT_GIVEN.format(figures[benchmark.name])}"
    return _in_pa_protocol(
        benchmark,
        "circle",
        "Sun et al., Circle Loss, CVPR 2020, arXiv:2002.10857: loss, batches and dimension",
        LossConfig("CircleLoss", {"m": 0.4, "gamma": 80.0}),
        batches,
    )


def triplet(benchmark: Benchmark) -> Recipe:
    """Schroff et al., CVPR 2015: the loss, in Proxy-Anchor's protocol."""
    return _in_pa_protocol(
        benchmark,
        "triplet",
        "Schroff et al., FaceNet, CVPR 2015, arXiv:1503.03832: semi-hard triplets, margin 0.2 of squared distances",
        LossConfig("TripletMarginLoss", {"margin": 0.2, "mining": "semihard", "distance": "squared_l2"}),
        "batches have 16 classes of 5 images",
    )


def _in_pa_protocol(benchmark: Benchmark, loss: str, source: str, config: LossConfig, batches: str) -> Recipe:
    """A pair loss with all other settings of Proxy-Anchor's code."""
    rest = proxy_anchor(benchmark).config
    ours = [LAST_EPOCH, batches]
    optimiser = rest.optimiser
    if benchmark.large:
        ours.append(PA_RATE)
        optimiser = replace(optimiser, lr=1e-4)
    return Recipe(
        f"{benchmark.name}/{loss}-pa-protocol",
        UNPUBLISHED,
        f"{source}; {PA_PROTOCOL.format(benchmark.name)}",
        tuple(ours),
        replace(rest, sampler=SamplerConfig(kind="pk", p=16, k=5), loss=(config,), optimiser=optimiser),
        formerly=f"{benchmark.name}/{loss}",
    )
