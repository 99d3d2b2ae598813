import json
import os
import subprocess
import sys
import warnings
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from nearfar.models import BrokenImageError, Embedder, EvalTransform, Pooling, TooManyBrokenImagesError, pca
from nearfar.models.extraction import batches, images_in
from nearfar.models.heads import LinearHead, MLPHead
from nearfar.models.settings import Settings

SMALL = EvalTransform(8, 10, mean=(0.5,) * 3, std=(0.5,) * 3)


class Places(torch.nn.Module):
    """The image itself as a map."""

    def forward(self, x):
        return x


def small(**options) -> Embedder:
    torch.manual_seed(0)
    options.setdefault("dimension", 6 if options.get("head", "linear") else None)
    return Embedder("convnet", trunk_options={"width": 4}, preprocess=SMALL, **options)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    for i in range(7):
        (tmp_path / f"class{i % 2}").mkdir(exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (12 + i, 20 - i, 3), np.uint8)).save(
            tmp_path / f"class{i % 2}" / f"{i}.png"
        )
    (tmp_path / "class0" / "notes.txt").write_text("not an image")
    return tmp_path


# Pooling


def test_pooling_of_maps():
    x = torch.rand(2, 3, 5, 4, dtype=torch.float64)
    for pool in ("avg", "max", "avg+max", "gem"):
        for parts in ((1,), (2,), (1, 2, 3)):
            expected = torch.empty(2, sum(parts), 3, dtype=torch.float64)
            for n in range(2):
                row = 0
                for count in parts:
                    for k in range(count):
                        first, last = k * 5 // count, -(-(k + 1) * 5 // count)
                        for c in range(3):
                            v = x[n, c, first:last].flatten()
                            expected[n, row, c] = {
                                "avg": v.mean(),
                                "max": v.max(),
                                "avg+max": v.mean() + v.max(),
                                "gem": (v**3).mean() ** (1 / 3),
                            }[pool]
                        row += 1
            got = Pooling(pool, parts=parts)(x)
            torch.testing.assert_close(got, expected.flatten(1), rtol=1e-6, atol=1e-6)


def test_pooling_of_tokens_and_vectors():
    x = torch.rand(2, 6, 3)
    torch.testing.assert_close(Pooling("cls", prefix=2)(x), x[:, 0])
    torch.testing.assert_close(Pooling("avg", prefix=2)(x), x[:, 2:].mean(1))
    torch.testing.assert_close(Pooling("max")(x), x.amax(1))
    assert Pooling("avg")(x[:, 0]) is not None
    torch.testing.assert_close(Pooling("avg")(x[:, 0]), x[:, 0])


def test_gem_learns_its_exponent():
    pooling = Pooling("gem")
    pooling(torch.rand(2, 3, 4, 4)).sum().backward()
    assert pooling.p.grad is not None and pooling.p.grad != 0


@pytest.mark.parametrize(
    ("pooling", "shape", "message"),
    [
        (lambda: Pooling("mean"), (1, 2, 3, 3), "pool must be one of avg, max"),
        (lambda: Pooling("avg", parts=(0,)), (1, 2, 3, 3), "parts must be numbers of stripes"),
        (lambda: Pooling("cls", parts=(2,)), (1, 2, 3), "takes one token"),
        (lambda: Pooling("cls"), (1, 2, 3, 3), "needs tokens"),
        (lambda: Pooling("avg", parts=(4,)), (1, 2, 3, 3), "a map of 3 rows cannot be divided into 4"),
        (lambda: Pooling("avg", parts=(2,)), (1, 2, 3), "parts need a map"),
        (lambda: Pooling("avg", parts=(2,)), (1, 2), "not a map"),
        (lambda: Pooling("avg"), (1, 2, 3, 3, 3), "must return"),
    ],
)
def test_bad_pooling(pooling, shape, message):
    with pytest.raises(ValueError, match=message):
        pooling()(torch.zeros(shape))


# Heads


@pytest.mark.parametrize("whiten", [False, True])
def test_pca(whiten):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(50, 6)) @ rng.normal(size=(6, 6)) + 3
    weight, bias = pca(torch.tensor(x), 4, whiten=whiten)
    centred = x - x.mean(0)
    _, singular, directions = np.linalg.svd(centred, full_matrices=False)
    variance = singular**2 / 49
    expected = centred @ directions[:4].T
    if whiten:
        expected = expected / np.sqrt(variance[:4] + variance.sum() / 6)
    got = (torch.tensor(x) @ weight.T + bias).numpy()
    signs = np.sign((got * expected).sum(0))
    np.testing.assert_allclose(got * signs, expected, atol=1e-9)
    with pytest.raises(ValueError, match="do not have 7 principal components"):
        pca(torch.tensor(x), 7)


def test_pca_of_fewer_features_than_dimensions():
    """The rest are directions at right angles, in which these features do not vary, and others do."""
    rng = np.random.default_rng(0)
    x, others = torch.tensor(rng.normal(size=(4, 9))), torch.tensor(rng.normal(size=(5, 9)))
    weight, bias = pca(x, 6, whiten=False)
    lengths = torch.tensor([1.0, 1, 1, 2, 2, 2], dtype=torch.float64)  # squared; 6 unknown directions in 3
    torch.testing.assert_close(weight @ weight.T, lengths.diag())
    projected = x @ weight.T + bias
    torch.testing.assert_close(projected[:, 3:], torch.zeros(4, 3, dtype=torch.float64), atol=1e-9, rtol=0)
    torch.testing.assert_close(torch.cdist(projected, projected), torch.cdist(x, x))
    weight, bias = pca(x, 9, whiten=False)  # all directions: a rotation
    torch.testing.assert_close(torch.cdist(others @ weight.T, others @ weight.T), torch.cdist(others, others))


def test_pca_of_few_features_keeps_what_they_do_not_show():
    """Squared lengths of unseen features, on average."""
    rng = np.random.default_rng(1)
    x, others = torch.tensor(rng.normal(size=(8, 400))), torch.tensor(rng.normal(size=(50, 400)))
    weight, bias = pca(x, 100, whiten=False)
    ratio = (others @ weight.T + bias).square().sum(1) / (others - x.mean(0)).square().sum(1)
    assert ratio.mean().item() == pytest.approx(1, abs=0.05) and ratio.std() < 0.2


def test_mlp_starts_as_its_linear_part_and_bends():
    torch.manual_seed(0)
    head, x = MLPHead(5, 3, 7), torch.randn(4, 5)
    torch.testing.assert_close(head(x), head.skip(x))
    torch.nn.init.ones_(head.down.weight)
    torch.testing.assert_close(head(x), head.skip(x) + head.up(x).clamp(min=0).sum(1, keepdim=True))


def test_linear_head_starts_as_in_the_papers():
    torch.manual_seed(0)
    head = LinearHead(300, 200)
    assert head.linear.bias.eq(0).all()
    assert head.linear.weight.std().item() == pytest.approx((2 / 200) ** 0.5, rel=0.02)  # fan-out


# The whole


def test_embeddings_are_unit_vectors():
    for head in ("linear", "mlp", None):
        for layer_norm in (False, True):
            e = small(head=head, layer_norm=layer_norm)(torch.randn(3, 3, 16, 16))
            torch.testing.assert_close(e.norm(dim=1), torch.ones(3))
            assert e.shape == (3, 32 if head is None else 6)


def test_parts_are_embedded_apart_and_concatenated():
    model = Embedder(Places(), preprocess=SMALL, parts=(1, 2), dimension=6)
    assert (model.feature_size, len(model.heads)) == (9, 3)
    x = torch.randn(4, 3, 8, 8)
    parts = [x.mean((2, 3)), x[:, :, :4].mean((2, 3)), x[:, :, 4:].mean((2, 3))]
    expected = torch.cat([head(part) for head, part in zip(model.heads, parts, strict=True)], 1)
    torch.testing.assert_close(model(x), expected / expected.norm(dim=1, keepdim=True))


def test_layer_norm_comes_before_the_head():
    model = small(layer_norm=True)
    features = torch.randn(4, 32) * 5 + 3
    normal = (features - features.mean(1, keepdim=True)) / (features.var(1, keepdim=True, correction=0) + 1e-5).sqrt()
    expected = model.heads[0](normal)
    torch.testing.assert_close(model.project(features), expected / expected.norm(dim=1, keepdim=True))


def test_a_frozen_trunk_needs_its_head_fitted():
    model = small(freeze_trunk=True)
    x = torch.randn(5, 3, 16, 16)
    with pytest.raises(RuntimeError, match=r"call fit_head\(features\) first"):
        model(x)
    features = torch.randn(40, 32)
    features[3] = torch.nan  # a broken image
    model.fit_head(features)
    whole = features[[i for i in range(40) if i != 3]]
    weight, bias = pca(whole, 6)
    expected = whole @ weight.T + bias
    torch.testing.assert_close(model.project(whole), expected / expected.norm(dim=1, keepdim=True))
    plain = small(head_start="pca", head="mlp")
    plain.fit_head(whole)
    weight, bias = pca(whole, 6, whiten=False)
    expected = whole @ weight.T + bias
    torch.testing.assert_close(plain.project(whole), expected / expected.norm(dim=1, keepdim=True))
    small(freeze_trunk=True, head_start="random")(x)
    small(freeze_trunk=True, head=None)(x)


def trained(model: Embedder) -> set[str]:
    return {name.split(".")[0] for name, p in model.named_parameters() if p.requires_grad}


def test_a_trunk_frozen_to_one_of_its_parts():
    names = [name for name, _ in small().trunk.named_parameters()]
    part = "blocks.0"
    model = small(freeze_to=part).train()
    fixed = {name for name, p in model.trunk.named_parameters() if not p.requires_grad}
    assert fixed and fixed == set(names[: len(fixed)]) and len(fixed) < len(names)
    assert {name.split(".")[0] for name in fixed} == {"stem", "bn", "blocks"}
    training = {name: module.training for name, module in model.trunk.named_children()}
    assert training == {"stem": False, "bn": False, "blocks": True} and not model.trunk.blocks[0].training
    model(torch.randn(4, 3, 16, 16)).sum().backward()
    assert {name for name, p in model.trunk.named_parameters() if p.grad is None} == fixed
    model.start_epoch(3)
    assert {name for name, p in model.trunk.named_parameters() if not p.requires_grad} == fixed
    with pytest.raises(ValueError, match="no module 'stern' to freeze to"):
        small(freeze_to="stern")
    with pytest.raises(ValueError, match="leave out freeze_to"):
        small(freeze_to=part, freeze_trunk=True)


def test_freezing_and_warm_up():
    frozen = small(freeze_trunk=True, head_start="random").train()
    assert trained(frozen) == {"heads"}
    before = {name: value.clone() for name, value in frozen.trunk.state_dict().items()}
    frozen(torch.randn(4, 3, 16, 16)).sum().backward()
    assert all(torch.equal(value, before[name]) for name, value in frozen.trunk.state_dict().items())

    warm = small(warmup_epochs=2, freeze_batch_norm=True)
    for epoch, expected in ((0, {"heads"}), (1, {"heads"}), (2, {"heads", "trunk"}), (0, {"heads"})):
        warm.start_epoch(epoch)
        assert trained(warm) == expected
    warm.start_epoch(2)
    norms = {name for name, _ in warm.trunk.named_parameters() if "bn" in name}
    assert norms
    assert {name for name, p in warm.trunk.named_parameters() if not p.requires_grad} == norms

    warm.train()
    assert warm.training and warm.trunk.training and not warm.trunk.bn.training
    free = small().train()
    mean = free.trunk.bn.running_mean.clone()
    statistics = small(freeze_batch_norm="statistics").train()
    assert all(p.requires_grad for p in statistics.parameters())
    for model, changes in ((free, True), (warm, False), (statistics, False)):
        model(torch.randn(4, 3, 16, 16) + 1)
        assert torch.equal(model.trunk.bn.running_mean, mean) != changes


def test_momentum_of_batch_normalisation(tmp_path):
    slow, fast = small(), small(batch_norm_momentum=1.0)
    fast.trunk.load_state_dict(slow.trunk.state_dict())
    before, images = slow.trunk.bn.running_mean.clone(), torch.randn(4, 3, 16, 16)
    for model in (slow, fast):
        model.train()(images)
    moved = [model.trunk.bn.running_mean - before for model in (slow, fast)]
    torch.testing.assert_close(10 * moved[0], moved[1])
    loaded = Embedder.load(fast.save(tmp_path))
    assert {norm.momentum for norm in loaded.modules() if isinstance(norm, torch.nn.BatchNorm2d)} == {1.0}


def test_settings_of_models_that_knew_no_momentum():
    """They are written as they were: the fingerprint that indexes go by is made of them."""
    settings = small().settings
    older = settings.to_json()
    assert set(older) == {field.name for field in fields(settings)} - {"batch_norm_momentum"}
    assert Settings.from_json(older) == settings
    newer = replace(settings, batch_norm_momentum=0.5)
    assert Settings.from_json(newer.to_json()) == newer != settings
    for wrong in ({**older, "colour": 1}, {key: value for key, value in older.items() if key != "pool"}):
        with pytest.raises(ValueError, match="settings need exactly"):
            Settings.from_json(wrong)


def test_what_a_trunk_fixes_stays_fixed():
    trunk = torch.nn.Conv2d(3, 4, 3)
    trunk.bias.requires_grad_(False)
    model = Embedder(trunk, preprocess=SMALL, dimension=2, warmup_epochs=1)
    model.start_epoch(1)
    assert trunk.weight.requires_grad and not trunk.bias.requires_grad


def test_parameter_groups_are_all_of_them():
    model = small(pool="gem")
    groups = [*model.trunk_parameters(), *model.head_parameters()]
    assert {id(p) for p in groups} == {id(p) for p in model.parameters()}
    assert len(model.head_parameters()) == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"head": "conv"}, "head must be"),
        ({"head": None, "dimension": 5}, "head=None returns the 32 features: dimension=5 needs a head"),
        ({"head": None, "head_start": "pca"}, "head_start='pca' needs a head"),
        ({"head_start": "zero"}, "head_start must be"),
        ({"hidden": 5}, 'hidden needs head="mlp"'),
        ({"parts": (1, 2), "dimension": 10}, "must be a positive multiple of the 3 parts"),
        ({"dimension": 0}, "must be a positive multiple"),
        ({"warmup_epochs": -1}, "must not be negative"),
        ({"head": "mlp", "head_start": "uniform"}, 'head_start="uniform" needs head="linear", not \'mlp\''),
        ({"freeze_batch_norm": "scales"}, 'must be True, False or "statistics"'),
        ({"batch_norm_momentum": 0}, "above 0 and at most 1"),
        ({"freeze_trunk": True, "lora": {"r": 2}}, "leave out freeze_trunk"),
    ],
)
def test_bad_settings(options, message):
    with pytest.raises(ValueError, match=message):
        small(**options)


def test_bad_features():
    with pytest.raises(ValueError, match=r"features must be \(N, 32\), not \(4, 31\)"):
        small().project(torch.zeros(4, 31))
    with pytest.raises(ValueError, match=r"features must be \(N, 32\)"):
        small().fit_head(torch.zeros(4, 31))
    with pytest.raises(ValueError, match="there is no head to fit"):
        small(head=None).fit_head(torch.zeros(4, 32))


# Many images


def test_embed_takes_folders_paths_images_and_tensors(folder):
    model = small()
    paths = sorted(folder.rglob("*.png"))
    assert images_in(folder) == paths
    tensor = torch.stack([SMALL(path) for path in paths])
    with torch.no_grad():
        expected = model.eval()(tensor)
    model.train()
    images = [Image.open(path).convert("RGB") for path in paths]
    for source in (
        folder,
        str(folder),
        paths,
        tensor,
        (path for path in paths),
        images,
        [p.read_bytes() for p in paths],
    ):
        for batch_size, workers in ((3, None), (7, 0), (100, 2)):
            source = (
                (path for path in paths) if not hasattr(source, "__len__") and not isinstance(source, Path) else source
            )
            got = model.embed(source, batch_size=batch_size, num_workers=workers)
            torch.testing.assert_close(got, expected)
    assert model.training and not got.requires_grad and not got.is_inference()
    torch.testing.assert_close(model.embed(paths[2]), expected[2:3])
    features = model.embed(folder, output="features")
    torch.testing.assert_close(model.eval().project(features), expected)
    assert model.embed([]).shape == (0, 6)
    assert model.embed(iter(())).shape == (0, 6)


def test_embed_shows_progress(folder, capsys):
    small().embed(folder, progress=True, batch_size=3)
    assert "7/7" in capsys.readouterr().err


def test_any_transform(folder):
    """It is given the decoded image, as in `nearfar.data.Loader`."""

    def height(image):
        return torch.full((3, 8, 8), float(image.height))

    model = Embedder(Places(), preprocess=SMALL, head=None, transform=height)
    torch.testing.assert_close(
        model.embed(sorted(folder.rglob("*.png")), output="features")[:, 0],
        12 + torch.tensor([0.0, 2, 4, 6, 1, 3, 5]),
    )


def test_broken_images(folder):
    model = small()
    paths = sorted(folder.rglob("*.png"))
    expected = model.embed(paths)
    paths[1].write_bytes(b"broken")
    paths.append(folder / "nowhere.png")
    with pytest.raises(BrokenImageError, match=r"2\.png: not an image but text.*max_broken=0\.01 would"):
        model.embed(paths)
    with pytest.raises(TooManyBrokenImagesError, match=r"2 of 8 images are broken, more than max_broken=0\.2"):
        model.embed(paths, max_broken=0.2, batch_size=8)
    with pytest.warns(
        UserWarning, match=r"2 of 8 images are broken, their rows are NaN: .*2\.png.*nowhere\.png: no such"
    ):
        got = model.embed(paths, max_broken=0.25, batch_size=1)
    assert got.isnan().all(1).tolist() == [False, True, False, False, False, False, False, True]
    torch.testing.assert_close(got[~got.isnan().any(1)], expected[[0, 2, 3, 4, 5, 6]])
    with pytest.raises(TooManyBrokenImagesError, match="none of the 2 images can be read"):
        model.embed([paths[1], paths[-1]], max_broken=1.0)
    with pytest.warns(UserWarning, match="1 of 2"):  # the first batch has no good image
        assert model.embed(paths[1:3], max_broken=0.5, batch_size=1).isnan().all(1).tolist() == [True, False]


def test_little_is_read_ahead():
    """However many images there are, three batches at most are held."""
    read = []

    def transform(i):
        read.append(i)
        return torch.zeros(1)

    for step, (batch, _) in enumerate(batches(iter(range(100)), transform, 4, 2), 1):
        assert len(batch) == 4
        assert max(read) < 4 * step + 8
    assert sorted(read) == list(range(100))


def test_a_bug_in_a_transform_is_not_a_broken_image():
    def transform(image):
        raise ValueError("a bug")

    with pytest.raises(ValueError, match="a bug"):
        small(transform=transform).embed([np.zeros((4, 4), np.uint8)], max_broken=1.0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: m.embed(torch.zeros(3, 8, 8)), r"must hold images \(N, C, H, W\)"),
        (lambda m: m.embed([], batch_size=0), "batch_size must be at least 1"),
        (lambda m: m.embed([], max_broken=2), "max_broken must be a fraction"),
        (lambda m: m.embed([], output="logits"), "output must be"),
    ],
)
def test_bad_calls(call, message):
    with pytest.raises(ValueError, match=message):
        call(small())


def test_a_folder_without_images(tmp_path):
    with pytest.raises(ValueError, match="contains no images"):
        small().embed(tmp_path)


# Files


def test_save_and_load(tmp_path, folder):
    model = small(
        head="mlp",
        hidden=5,
        pool="gem",
        layer_norm=True,
        parts=(1, 1),
        freeze_batch_norm=True,
        warmup_epochs=3,
        label_names=["Ä", "b"],
        calibration={"threshold": 0.25},
    )
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, 1, 0.2)
    path = model.save(tmp_path / "new" / "m.safetensors")
    loaded = Embedder.load(path)
    assert not loaded.training
    assert loaded.settings == model.settings and loaded.preprocess == model.preprocess == SMALL
    assert loaded.label_names == ("Ä", "b") and loaded.calibration == {"threshold": 0.25}
    assert torch.equal(loaded.embed(folder), model.embed(folder))
    assert model.save(tmp_path) == tmp_path / "model.safetensors"
    Embedder.load(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir() if p.is_file()) == ["model.safetensors"]


def test_a_fitted_head_stays_fitted(tmp_path):
    model = small(freeze_trunk=True)
    model.fit_head(torch.randn(40, 32))
    loaded = Embedder.load(model.save(tmp_path))
    features = torch.randn(3, 32)
    assert torch.equal(loaded.project(features), model.project(features))


def test_it_loads_elsewhere(tmp_path):
    model = small()
    model.save(tmp_path)
    code = f"import torch; from nearfar.models import Embedder; print(Embedder.load({str(tmp_path)!r})(torch.ones(1, 3, 8, 8)).tolist())"
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env, cwd=tmp_path
    )
    torch.testing.assert_close(torch.tensor(json.loads(out.stdout)), model.eval()(torch.ones(1, 3, 8, 8)).detach())


def test_modules_and_transforms_of_ones_own(tmp_path):
    model = Embedder(torch.nn.Conv2d(3, 4, 3), preprocess=SMALL, dimension=2, transform=SMALL.__call__)
    path = model.save(tmp_path)
    with pytest.raises(ValueError, match=r"was made with the transform .* give it as transform="):
        Embedder.load(path)
    with pytest.raises(ValueError, match="made with a module Conv2d as trunk: give it as trunk="):
        Embedder.load(path, transform=SMALL)
    loaded = Embedder.load(path, transform=SMALL, trunk=torch.nn.Conv2d(3, 4, 3))
    assert torch.equal(loaded.trunk.weight, model.trunk.weight)
    with pytest.raises(ValueError, match="has other shapes of"):
        Embedder.load(path, transform=SMALL, trunk=torch.nn.Conv2d(3, 4, 5))


def rewritten(path: Path, **changes) -> Path:
    from safetensors import safe_open
    from safetensors.torch import save_file

    with safe_open(path, "pt") as file:
        description = json.loads(file.metadata()["nearfar"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    for name, value in changes.items():
        if value is None:
            del description[name]
        else:
            description[name] = value
    save_file(tensors, path, {"nearfar": json.dumps(description)})
    return path


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": 9}, "has format 9, this version of nearfar reads 1"),
        ({"settings": None}, "incomplete or damaged: KeyError"),
        ({"settings": {"pool": "avg"}}, "settings need exactly"),
        ({"preprocess": {"transform": "eval", "cut": 3}}, "has no setting cut"),
        ({"trunk": {"kind": "named", "name": "resnet"}}, "does not have the trunk"),
        (
            {"trunk": {"kind": "named", "name": "convnet", "options": {"width": 8}}},
            "does not fit this network: .* has other shapes of",
        ),
    ],
)
def test_files_that_do_not_fit(tmp_path, changes, message):
    path = rewritten(small().save(tmp_path), **changes)
    with pytest.raises(ValueError, match=message):
        Embedder.load(path)


def test_damaged_files(tmp_path):
    from safetensors.torch import save_file

    path = small().save(tmp_path)
    content = path.read_bytes()
    for damaged in (b"", content[:100], content[:-10], b"\xff" * 8 + content[8:]):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match="is damaged or not a safetensors file"):
            Embedder.load(path)
    with pytest.raises(FileNotFoundError, match="there is no model"):
        Embedder.load(tmp_path / "nothing")
    save_file({"a": torch.zeros(1)}, path)
    with pytest.raises(ValueError, match="was not saved by nearfar"):
        Embedder.load(path)
    save_file({"a": torch.zeros(1)}, path, {"nearfar": "{"})
    with pytest.raises(ValueError, match=r"the description in .* is damaged"):
        Embedder.load(path)


def test_calibration_must_be_json(tmp_path):
    for value in (float("nan"), object()):
        with pytest.raises(ValueError, match="must be plain JSON"):
            small(calibration={"threshold": value}).save(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_feature_key():
    keys = [
        small().feature_key(),
        small(pool="max").feature_key(),
        small().feature_key(EvalTransform(8, 11)),
        Embedder("convnet", trunk_options={"width": 8}, preprocess=SMALL).feature_key(),
    ]
    torch.manual_seed(1)
    keys.append(Embedder("convnet", trunk_options={"width": 4}, preprocess=SMALL).feature_key())
    changed = small()
    with torch.no_grad():
        changed.trunk.stem.weight[0, 0, 0, 0] += 1e-6
    keys.append(changed.feature_key())
    assert len(set(keys)) == len(keys)
    assert small(dimension=5).feature_key() == keys[0]  # the head is not part of it
    with pytest.raises(ValueError, match="does not show its settings"):
        small().feature_key(lambda image: image)


def test_imports_are_quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        import nearfar.models  # noqa: F401


@pytest.mark.skipif(os.name != "posix", reason="other systems have other permissions")
def test_a_model_is_as_readable_as_other_new_files(tmp_path):
    (tmp_path / "other").touch()
    assert small().save(tmp_path).stat().st_mode == (tmp_path / "other").stat().st_mode


def test_principal_components_where_torch_finds_none(monkeypatch):
    features = torch.randn(20, 64, generator=torch.Generator().manual_seed(0))
    expected = pca(features, 8)

    def fails(matrix):
        raise torch.linalg.LinAlgError("the algorithm failed to converge")

    monkeypatch.setattr(torch.linalg, "eigh", fails)
    weight, bias = pca(features, 8)
    sign = (weight * expected[0]).sum(1).sign()
    torch.testing.assert_close(sign[:, None] * weight, expected[0])
    torch.testing.assert_close(sign * bias, expected[1])
