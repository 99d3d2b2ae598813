"""Trunks of transformers from local folders, made here with random weights; LoRA and timm where installed."""

import importlib.util
import json

import pytest
import torch

from nearfar.models import Embedder, EvalTransform, open_trunk

transformers = pytest.importorskip("transformers")

CONFIGS = {
    "resnet": lambda: transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic"
    ),
    "convnext": lambda: transformers.ConvNextConfig(hidden_sizes=[8, 8, 8, 16], depths=[1, 1, 1, 1]),
    "vit": lambda: transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, image_size=32, patch_size=8
    ),
    "dinov2": lambda: transformers.Dinov2WithRegistersConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, image_size=32, patch_size=8, num_register_tokens=3
    ),
    "swin": lambda: transformers.SwinConfig(embed_dim=8, depths=[1, 1], num_heads=[2, 2], image_size=32, window_size=2),
}
SIZE_32 = {"size": {"height": 32, "width": 32}, "image_mean": [0.5] * 3, "image_std": [0.25] * 3, "resample": 2}


def whole(size: tuple[int, int] = (32, 32), interpolation: str = "bilinear", **options) -> EvalTransform:
    """The whole image, stretched."""
    return EvalTransform(size, None, crop=False, interpolation=interpolation, **options)


@pytest.fixture
def saved(tmp_path, capsys):
    def make(name: str, processor: dict | None = SIZE_32) -> str:
        torch.manual_seed(0)
        transformers.AutoModel.from_config(CONFIGS[name]()).save_pretrained(tmp_path / name)
        if processor is not None:
            (tmp_path / name / "preprocessor_config.json").write_text(json.dumps(processor))
        return f"hf:{tmp_path / name}"

    return make


@pytest.mark.parametrize(
    ("name", "pool", "prefix", "shape"),
    [
        ("resnet", "avg", 0, (16, 4, 4)),
        ("convnext", "avg", 0, (16, 1, 1)),
        ("vit", "cls", 1, (17, 16)),
        ("dinov2", "cls", 4, (20, 16)),
        ("swin", "avg", 0, (16, 16)),
    ],
)
def test_models_of_transformers(saved, tmp_path, name, pool, prefix, shape):
    trunk = open_trunk(saved(name))
    assert (trunk.channels, trunk.pool, trunk.prefix) == (16, pool, prefix)
    images = torch.randn(2, 3, 32, 32)
    reference = transformers.AutoModel.from_pretrained(tmp_path / name).eval()
    with torch.no_grad():
        states = reference(pixel_values=images).last_hidden_state
    assert states.shape[1:] == shape
    expected = states[:, 0] if pool == "cls" else states.mean((2, 3)) if states.ndim == 4 else states.mean(1)
    model = Embedder(saved(name), head=None)
    torch.testing.assert_close(model.embed(images), torch.nn.functional.normalize(expected))
    path = model.save(tmp_path / "m.safetensors")
    assert str(tmp_path).encode() not in path.read_bytes()  # nothing of this machine in it
    torch.testing.assert_close(Embedder.load(path).embed(images), model.embed(images))


@pytest.mark.parametrize(
    ("processor", "expected"),
    [
        (SIZE_32, whole(mean=(0.5,) * 3, std=(0.25,) * 3)),
        (
            {
                "size": {"shortest_edge": 40},
                "crop_size": {"height": 32, "width": 32},
                "do_center_crop": True,
                "resample": 3,
            },
            EvalTransform((32, 32), 40),
        ),
        (
            {"size": {"shortest_edge": 28}, "crop_pct": 0.875, "resample": 3},
            EvalTransform((28, 28), 32),
        ),
        ({"size": 24, "resample": 2}, whole(size=(24, 24))),
        (
            {"size": {"height": 32, "width": 32}, "do_normalize": False, "resample": 2},
            whole(mean=(0.0,) * 3, std=(1.0,) * 3),
        ),
        (None, whole(size=(224, 224), interpolation="bicubic")),
    ],
)
def test_preprocessing_is_the_models_own(saved, processor, expected):
    assert open_trunk(saved("resnet", processor)).preprocess == expected


def test_random_weights_and_a_missing_model(saved, tmp_path):
    name = saved("resnet")
    pretrained, random = open_trunk(name).module.state_dict(), open_trunk(name, "random").module.state_dict()
    assert pretrained.keys() == random.keys()
    assert any(not torch.equal(pretrained[k], random[k]) for k in pretrained)
    weights = tmp_path / "w.pth"
    torch.save({k.removeprefix("model."): v for k, v in pretrained.items()}, weights)
    filled = open_trunk(name, weights).module.state_dict()
    assert all(torch.equal(pretrained[k], filled[k]) for k in pretrained)
    with pytest.raises(ValueError, match="takes no options"):
        open_trunk(name, options={"width": 3})
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="cannot be loaded"):
        open_trunk(f"hf:{tmp_path / 'empty'}")


@pytest.mark.skipif(importlib.util.find_spec("peft") is not None, reason="peft is installed")
def test_lora_without_peft(saved):
    with pytest.raises(ImportError, match=r"lora= needs peft: pip install 'nearfar\[lora\]'"):
        Embedder(saved("vit"), lora={"r": 2})


@pytest.mark.skipif(importlib.util.find_spec("peft") is None, reason="peft is not installed")
def test_lora(saved, tmp_path):
    model = Embedder(saved("vit"), dimension=4, lora={"r": 2, "target_modules": ["q_proj", "v_proj"]})
    images = torch.randn(2, 3, 32, 32)
    trunk = [name for name, p in model.trunk.named_parameters() if p.requires_grad]
    assert trunk and all("lora_" in name for name in trunk)
    model(images).sum().backward()
    for name, parameter in model.trunk.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter)
    loaded = Embedder.load(model.save(tmp_path))
    torch.testing.assert_close(loaded.embed(images), model.embed(images))


@pytest.mark.skipif(importlib.util.find_spec("timm") is not None, reason="timm is installed")
def test_timm_missing():
    with pytest.raises(ImportError, match=r"timm: trunks need timm: pip install 'nearfar\[timm\]'"):
        open_trunk("timm:resnet18")


@pytest.mark.skipif(importlib.util.find_spec("timm") is None, reason="timm is not installed")
@pytest.mark.parametrize(("name", "pool", "prefix"), [("resnet10t", "avg", 0), ("vit_tiny_patch16_224", "cls", 1)])
def test_timm(tmp_path, name, pool, prefix):
    model = Embedder(f"timm:{name}", weights="random", head=None)
    assert (model.pooling.pool, model.pooling.prefix) == (pool, prefix)
    images = torch.randn(2, 3, *model.preprocess.height_width)
    torch.testing.assert_close(Embedder.load(model.save(tmp_path)).embed(images), model.embed(images))
    with pytest.raises(ValueError, match="timm has no model"):
        open_trunk("timm:nonsense")
