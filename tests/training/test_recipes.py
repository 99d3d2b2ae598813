"""Every recipe starts, on made data; says where it is from, and what it needs; and has the settings of its source. That
its steps are those of the authors' code: test_official_code.py.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from nearfar.cli import main
from nearfar.data import Table
from nearfar.errors import MissingFileError
from nearfar.models import open_trunk
from nearfar.training.build import build_embedder
from nearfar.training.config import TrainConfig
from nearfar.training.defaults import resolve
from nearfar.training.downloads import BN_INCEPTION, RESNET_50
from nearfar.training.fit import fit
from nearfar.training.options import ConfigError, from_dict, read_yaml, to_dict, with_options
from nearfar.training.prepare import prepare
from nearfar.training.progress import Display
from nearfar.training.recipes import PROTOCOLS, Recipe, find_recipe, list_recipes, recipe
from nearfar.training.recipes.retrieval import BENCHMARKS
from nearfar.training.runs import Run
from nearfar.training.world import World
from tests.training.making import patterns

RECIPES = {info.name: info for info in list_recipes()}
PAGE = Path(__file__).parents[2] / "docs" / "recipes.md"
SETS, LARGE = ("cub", "cars", "sop", "in-shop"), ("sop", "in-shop")
NAMES = {
    *(f"{data}/{loss}" for data in SETS for loss in ("proxy-anchor", "proxy-nca++", "soft-triple")),
    *(f"{data}/{loss}-pa-protocol" for data in SETS for loss in ("circle", "multi-similarity", "triplet")),
    "cub/multi-similarity",
    *(
        f"{data}/{loss}{parts}-fastreid-protocol"
        for data in ("market", "msmt17")
        for loss in ("circle", "am-softmax")
        for parts in ("", "-parts")
    ),
    *(f"faces/{loss}" for loss in ("circle", "arcface", "cosface")),
    *(f"faces/{loss}-circle-protocol" for loss in ("sphereface", "center")),
}
LEFT_OPEN = {"data.path", "data.workers", "model.weights", "sampler.batch_size"}  # the last is p x k where it is open


def config_of(name: str) -> TrainConfig:
    return RECIPES[name].config


def test_all_are_there() -> None:
    assert set(RECIPES) == NAMES
    assert len(list_recipes()) == len(NAMES)


# They start


@pytest.fixture(scope="module")
def pictures() -> Table:
    """128 classes of three small pictures: half to train on, as many as the largest batch has classes."""
    return patterns(128, 3)


@pytest.mark.parametrize("name", sorted(NAMES))
def test_two_steps(name: str, pictures: Table, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With a small trunk and head in place of the large ones, and nothing else changed."""
    given = config_of(name)
    small: dict[str, Any] = {
        "size": (48, 16) if isinstance(given.data.size, tuple) else 16,
        "resize": None,
        "workers": 0,
        "backbone": "convnet",
        "options": {"width": 2},
        "weights": "random",
        "dimension": None if given.model.head == "none" else 24,
        "max_steps": 2,
        "accelerator": "cpu",
    }
    display, run = Display(), Run(tmp_path / "run")
    prepared = prepare(with_options(given, small), pictures, display=display)
    run.begin(prepared.config)
    assert fit(run, prepared, display, World()).learner.done == 2
    said = " ".join(capsys.readouterr().err.split())
    assert ("warm-up of the head" in said) is (given.model.warmup_epochs * len(prepared.loader) >= 2)
    assert ("warm-up of the rates" in said) is (given.schedule.warmup_steps > 0)
    before, after = (run.load_checkpoint(which)["embedder"] for which in ("start", "last"))
    moved = {key for key, value in before.items() if not torch.equal(value, after[key])}
    assert "trunk.stem.weight" in moved
    assert given.model.head == "none" or "heads.0.linear.weight" in moved
    assert prepared.config.loss == given.loss


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two pictures of each of eight classes."""
    pictures = tmp_path_factory.mktemp("data") / "pictures"
    images = patterns(8, 2, 64).images
    assert images is not None
    for row in range(16):
        path = pictures / f"{row // 2}" / f"{row}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.asarray(images[row])).save(path)
    return pictures


@pytest.mark.parametrize("name", ["cub/soft-triple", "market/circle-fastreid-protocol", "faces/cosface"])
def test_a_step_of_every_trunk(name: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On the command line: what a recipe refuses for want of weights, it does with the option that the refusal names."""
    kind = ["--p", "4", "--k", "2"] if config_of(name).sampler.kind == "pk" else ["--batch_size", "8"]
    size = {"cub": "32", "market": "64,32", "faces": "112"}[name.partition("/")[0]]
    words = ["train", str(folder), "--recipe", name, "--size", size, "--max_steps", "1", "--workers", "0", *kind]
    words += ["--data.validation", "0", "--accelerator", "cpu", "--out", str(tmp_path / "run")]
    weights = config_of(name).model.weights
    if weights != "random":
        assert main(words) == 2
        said = " ".join(capsys.readouterr().err.split())
        assert "--weights FILE" in said and "--weights random" in said
        assert f"/{weights}" in said and f"SHA-256 begins with {weights.split('-')[1].split('.')[0]}" in said
        words += ["--weights", "random"]
    assert main([*words, "--quiet"]) == 0
    assert Run(tmp_path / "run").metrics["steps"] == 1


def test_trunks_are_our_own() -> None:
    """No recipe needs a package of models: its checkpoint is a file, and random weights do without."""
    models = {config_of(name).model.backbone: config_of(name).model for name in NAMES}
    assert set(models) == {"bn-inception", "resnet-50", "iresnet-34"}
    assert {config_of(name).model.weights for name in NAMES} == {BN_INCEPTION, RESNET_50, "random"}
    for backbone, channels in {"bn-inception": 1024, "resnet-50": 2048, "iresnet-34": 512}.items():
        assert open_trunk(backbone, "random").channels == channels


def test_other_missing_weights_are_nobodys_download(tmp_path: Path) -> None:
    config = with_options(recipe("cub/circle"), {"weights": str(tmp_path / "mine.pth")})
    with pytest.raises(MissingFileError, match=r"mine\.pth: no such checkpoint(?!.*SHA)"):
        build_embedder(config)


# What they say


@pytest.mark.parametrize("name", sorted(NAMES))
def test_every_recipe_says_where_it_is_from_and_survives_yaml(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    info = RECIPES[name]
    assert info.source and info.ours
    assert from_dict(to_dict(info.config)) == info.config == recipe(name)
    assert main(["recipes", name]) == 0
    shown = capsys.readouterr().out
    comments = " ".join(line.lstrip("# ") for line in shown.splitlines() if line.startswith("#"))
    for text in (info.aim, info.source, *info.ours, *map(str, info.needs)):
        assert " ".join(text.split()) in comments
    assert ("random weights: --weights random" in comments) is (info.config.model.weights != "random")
    path = tmp_path / "recipe.yaml"
    path.write_text(shown, encoding="utf-8")
    assert read_yaml(path) == info.config


def test_another_protocol_is_in_the_name_and_has_no_aim() -> None:
    for name, info in RECIPES.items():
        former = next((name.removesuffix(protocol) for protocol in PROTOCOLS if name.endswith(protocol)), None)
        assert former is None or info.aim.startswith("no figure")
        assert former is None or former == "cub/multi-similarity" or find_recipe(former) == info
        assert info.formerly == (former or "") or name == "cub/multi-similarity"
    for former in ("cub/circle", "sop/multi-similarity", "market/circle-parts", "msmt17/am-softmax", "faces/center"):
        assert find_recipe(former).formerly == former
    assert find_recipe("cub/multi-similarity").name == "cub/multi-similarity"


@pytest.mark.parametrize("name", sorted(NAMES))
def test_defaults_change_no_recipe(name: str, pictures: Table) -> None:
    """Whatever is decided where a configuration leaves something open, a recipe leaves nothing of it open."""

    def flat(values: Any, prefix: str = "") -> dict[str, Any]:
        if not isinstance(values, dict):
            return {prefix[:-1]: values}
        return {key: one for part in values for key, one in flat(values[part], f"{prefix}{part}.").items()}

    given, resolved = flat(to_dict(config_of(name))), flat(to_dict(resolve(config_of(name), pictures)))
    assert {key for key, value in resolved.items() if value != given.get(key)} <= LEFT_OPEN


def test_published_figures() -> None:
    """As in the papers' tables; see the page for where each is from."""
    for name, figure in {
        "cub/proxy-anchor": "69.1",
        "cub/proxy-nca++": "72.2",
        "cub/soft-triple": "65.4",
        "cub/multi-similarity": "65.7",
        "faces/circle": "97.81",
    }.items():
        assert figure in RECIPES[name].aim
    for name, figure in {
        "cub/circle": "66.7",
        "market/circle": "94.2 and mAP of 84.9",
        "msmt17/circle-parts": "52.1",
    }.items():
        assert any(f"{figure} " in text and text.endswith("not apply") for text in find_recipe(name).ours)


# Their settings


def test_settings_of_proxy_anchor() -> None:
    for name in SETS:
        config, large = config_of(f"{name}/proxy-anchor"), name in LARGE
        assert config.loss[0].arguments == {"margin": 0.1, "alpha": 32.0}
        assert config.optimiser.lr == (6e-4 if large else 1e-4)
        assert (config.optimiser.name, config.optimiser.proxies, config.optimiser.clip_value) == ("adamw", 100.0, 10.0)
        assert config.model.freeze_batch_norm == (False if large else "statistics")
        assert (config.model.pool, config.model.dimension, config.model.warmup_epochs) == ("avg+max", 512, 1)
        assert config.sampler.batch_size == 180
    assert [round(60 * m) for m in config_of("cub/proxy-anchor").schedule.milestones] == [10, 20, 30, 40, 50]
    assert [round(60 * m) for m in config_of("sop/proxy-anchor").schedule.milestones] == [20, 40]


def test_settings_of_proxy_nca() -> None:
    for name, base, proxies in (("cub", 4e-3, 4e2), ("sop", 2.4e-2, 2.4e2), ("in-shop", 2.4e-2, 2.4e3)):
        config = config_of(f"{name}/proxy-nca++")
        own = config.optimiser
        assert own.proxies is not None
        assert (own.name, own.lr, own.eps, own.weight_decay) == ("adam", base, 1.0, 0.0)
        assert base * own.proxies == pytest.approx(proxies)
        assert (config.epochs, config.model.warmup_epochs) == (85 if name in LARGE else 45, 5)
        assert config.class_std == 1 / 8
    assert config_of("cub/proxy-nca++").model.layer_norm
    assert config_of("sop/proxy-nca++").sampler.p == 64
    assert [round(45 * m) for m in config_of("cub/proxy-nca++").schedule.milestones] == [25, 35]
    assert config_of("in-shop/proxy-nca++").schedule.milestones == ()


def test_settings_of_multi_similarity() -> None:
    own = config_of("cub/multi-similarity")
    assert (own.optimiser.name, own.optimiser.lr, own.optimiser.weight_decay) == ("adam", 3e-5, 5e-4)
    assert (own.data.size, own.data.crop_area, own.model.pool, own.max_steps) == (227, (0.16, 1.0), "max", 3000)
    assert [round(3000 * m) for m in own.schedule.milestones] == [1199, 2399]  # there the schedule steps first
    borrowed = config_of("cub/multi-similarity-pa-protocol")
    assert borrowed.loss == own.loss
    assert replace(borrowed, loss=(), sampler=own.sampler) == replace(
        config_of("cub/proxy-anchor"), loss=(), sampler=own.sampler
    )
    assert {config_of(f"{name}/multi-similarity-pa-protocol").optimiser.lr for name in SETS} == {1e-4}


def test_settings_of_circle() -> None:
    for benchmark in BENCHMARKS:
        config = recipe(f"{benchmark.name}/circle")
        assert (config.sampler.p, config.sampler.k) == (16, 5)
        assert config.loss[0].arguments == {"m": 0.4, "gamma": 80.0}
        assert config.evaluation.ks == benchmark.ks
    assert recipe("market/circle").loss[0].arguments == {"m": 0.25, "gamma": 128.0}
    assert recipe("faces/circle").loss[0].arguments == {"m": 0.25, "gamma": 256.0}
    assert recipe("faces/circle").loss[0].class_level and recipe("market/circle").loss[0].class_level
    assert recipe("market/circle-parts").model.parts == (1, 2, 3)
    assert recipe("faces/circle").max_steps == 182_000
    assert recipe("faces/circle").schedule.milestones == (0.5, 0.7, 0.9)


def test_no_recipe_looks_at_the_test_classes() -> None:
    """All training classes are trained on; of faces, which come without a test set, that is every class."""
    for name in NAMES:
        assert config_of(name).data.validation == 0.0
        assert config_of(name).data.split == ("all" if name.startswith("faces/") else "auto")


def test_unknown_names() -> None:
    with pytest.raises(ConfigError, match="there is no recipe 'cub/proxyanchor': did you mean cub/proxy-anchor"):
        recipe("cub/proxyanchor")
    with pytest.raises(ConfigError, match="there is no recipe 'zzz': nearfar recipes lists them"):
        recipe("zzz")


def row(info: Recipe) -> str:
    return f"| `{info.name}` | {info.aim} |"


def test_the_page_has_them_all() -> None:
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if line.startswith("| `")] == [row(info) for info in list_recipes()]
