"""Every recipe builds and trains two steps, on small made images with a tiny trunk; and says what its paper says."""

import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import nearfar.data
from nearfar.data import Table
from nearfar.training.config import TrainConfig
from nearfar.training.learner import make_optimisation
from nearfar.training.options import ConfigError, from_dict, to_dict
from nearfar.training.recipes import Recipe, list_recipes, recipe
from nearfar.training.recipes.retrieval import BENCHMARKS
from nearfar.training.train import prepare

RECIPES = {info.name: info for info in list_recipes()}
PAGE = Path(__file__).parents[2] / "docs" / "recipes.md"
NAMES = {
    *(
        f"{data}/{loss}"
        for data in ("cub", "cars", "sop", "in-shop")
        for loss in ("circle", "proxy-anchor", "proxy-nca++", "soft-triple", "multi-similarity", "triplet")
    ),
    *(
        f"{data}/{loss}{parts}"
        for data in ("market", "msmt17")
        for loss in ("circle", "am-softmax")
        for parts in ("", "-parts")
    ),
    *(f"faces/{loss}" for loss in ("circle", "arcface", "cosface", "sphereface", "center")),
}


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Table:
    """130 classes of five small pictures: 65 to train on, as many as the largest batch has classes."""
    folder = tmp_path_factory.mktemp("pictures")
    rng = np.random.default_rng(0)
    for label in range(130):
        (folder / f"{label:03}").mkdir()
        own = rng.integers(0, 200, (8, 6, 3))
        for number in range(5):
            pixels = (own + rng.integers(0, 56, own.shape)).astype(np.uint8)
            stream = io.BytesIO()
            Image.fromarray(pixels).save(stream, "PNG")
            (folder / f"{label:03}" / f"{number}.png").write_bytes(stream.getvalue())
    return nearfar.data.open(folder)


def tiny(config: TrainConfig) -> TrainConfig:
    """The recipe with a small random trunk and small images; everything else as it is."""
    upright = isinstance(config.data.size, tuple)
    return replace(
        config,
        data=replace(config.data, size=(32, 16) if upright else 16, resize=None, workers=0),
        model=replace(config.model, backbone="convnet", options={"width": 8}, weights="random"),
        schedule=replace(config.schedule, warmup_steps=min(config.schedule.warmup_steps, 3)),
    )


def test_all_are_there() -> None:
    assert set(RECIPES) == NAMES
    assert len(list_recipes()) == len(NAMES)


@pytest.mark.parametrize("name", sorted(NAMES))
def test_two_steps(name: str, pictures: Table) -> None:
    given = tiny(recipe(name))
    prepared = prepare(given, pictures)
    config, model, loss = prepared.config, prepared.embedder, prepared.loss
    assert {own.name for own in given.loss} <= {type(part).__name__ for part in loss.modules()}
    optimiser, schedule = make_optimisation(config, model, loss, prepared.total_steps)
    before = {key: value.clone() for key, value in [*model.state_dict().items(), *loss.state_dict().items()]}
    batches = iter(prepared.loader)
    for step in range(2):
        model.start_epoch(step * config.model.warmup_epochs)  # the head alone, then everything
        batch = next(batches, None) or next(iter(prepared.loader))
        embeddings = model(batch.images)
        assert embeddings.shape == (min(config.sampler.batch_size or 0, len(prepared.parts.train)), model.dimension)
        value = loss(embeddings, batch.labels)
        assert torch.isfinite(value)
        assert value > 0
        optimiser.zero_grad()
        value.backward()
        optimiser.step()
        schedule.step()
    after = {**model.state_dict(), **loss.state_dict()}
    moved = {key for key, value in before.items() if not torch.equal(value, after[key])}
    assert any(key.startswith("trunk.") for key in moved)
    assert config.model.head == "none" or any(key.startswith("heads.") for key in moved)
    assert all(bool(torch.isfinite(after[key]).all()) for key in moved)
    for key in loss.state_dict():
        if "weight" in key or "centers" in key:
            assert key in moved


@pytest.mark.parametrize("name", sorted(NAMES))
def test_every_recipe_says_what_it_aims_at_and_survives_yaml(name: str) -> None:
    info = RECIPES[name]
    assert info.source
    assert info.ours
    assert info.aim
    assert from_dict(to_dict(info.config)) == info.config
    assert recipe(name) == info.config


def test_published_figures() -> None:
    """As in the papers' tables; see the page for where each is from."""
    cub = {name.partition("/")[2]: info.aim for name, info in RECIPES.items() if name.startswith("cub/")}
    figures = {"circle": "66.7", "proxy-anchor": "69.1", "proxy-nca++": "72.2", "soft-triple": "65.4"}
    for loss, figure in {**figures, "multi-similarity": "65.7", "triplet": "64.2"}.items():
        assert figure in cub[loss]
    assert "94.2" in RECIPES["market/circle"].aim and "84.9" in RECIPES["market/circle"].aim
    assert "52.1" in RECIPES["msmt17/circle-parts"].aim
    assert "97.81" in RECIPES["faces/circle"].aim


def config_of(name: str) -> TrainConfig:
    return RECIPES[name].config


def test_settings_of_proxy_anchor() -> None:
    for name in ("cub", "cars", "sop", "in-shop"):
        config, large = config_of(f"{name}/proxy-anchor"), name in ("sop", "in-shop")
        assert config.loss[0].arguments == {"margin": 0.1, "alpha": 32.0}
        assert config.optimiser.lr == (6e-4 if large else 1e-4)
        assert (config.optimiser.name, config.optimiser.proxies, config.optimiser.clip_value) == ("adamw", 100.0, 10.0)
        assert config.model.freeze_batch_norm is not large
        assert (config.model.pool, config.model.dimension, config.model.warmup_epochs) == ("avg+max", 512, 1)
        assert config.sampler.batch_size == 180
    assert [round(60 * m) for m in config_of("cub/proxy-anchor").schedule.milestones] == [10, 20, 30, 40, 50]
    assert [round(60 * m) for m in config_of("sop/proxy-anchor").schedule.milestones] == [20, 40]


def test_settings_of_proxy_nca() -> None:
    for name, base, proxies in (("cub", 4e-3, 4e2), ("sop", 2.4e-2, 2.4e2), ("in-shop", 2.4e-2, 2.4e3)):
        own = config_of(f"{name}/proxy-nca++").optimiser
        assert own.proxies is not None
        assert (own.name, own.lr, own.eps, own.weight_decay) == ("adam", base, 1.0, 0.0)
        assert base * own.proxies == pytest.approx(proxies)
    assert config_of("cub/proxy-nca++").model.layer_norm
    assert config_of("sop/proxy-nca++").sampler.p == 64


def test_settings_of_circle() -> None:
    for benchmark in BENCHMARKS:
        config = config_of(f"{benchmark.name}/circle")
        assert (config.sampler.p, config.sampler.k) == (16, 5)
        assert config.loss[0].arguments == {"m": 0.4, "gamma": 80.0}
        assert config.evaluation.ks == benchmark.ks
    assert config_of("market/circle").loss[0].arguments == {"m": 0.25, "gamma": 128.0}
    assert config_of("faces/circle").loss[0].arguments == {"m": 0.25, "gamma": 256.0}
    assert config_of("faces/circle").loss[0].class_level and config_of("market/circle").loss[0].class_level
    assert config_of("market/circle-parts").model.parts == (1, 2, 3)
    assert config_of("faces/circle").max_steps == 182_000
    assert config_of("faces/circle").schedule.milestones == (0.5, 0.7, 0.9)


def test_no_recipe_looks_at_the_test_classes() -> None:
    """All training classes are trained on; faces, which come without a test set, hold some out."""
    for name in NAMES:
        assert config_of(name).data.validation == (0.01 if name.startswith("faces/") else 0.0)


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
