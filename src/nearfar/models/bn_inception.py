"""BN-Inception, the papers' "Inception with batch normalisation".

References: S. Ioffe, C. Szegedy, "Batch Normalization", ICML 2015, arXiv:1502.03167; as ported from Caffe, whose layer
names the public checkpoints carry (`conv1_7x7_s2.weight`, `inception_3a_1x1_bn.running_mean`).

10,270,240 parameters without the 1,000-class layer, 11,295,240 with it.
"""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from nearfar.models.layers import conv_bn


class _Inception(NamedTuple):
    """Channels of a module's branches. Modules without a 1x1 branch halve the map and have a max-pooling branch."""

    name: str
    one: int
    three: tuple[int, int]  # of the reduction and the convolution
    double: tuple[int, int]  # of the reduction and both convolutions
    pool: int = 0


_MODULES = (
    _Inception("3a", 64, (64, 64), (64, 96), 32),
    _Inception("3b", 64, (64, 96), (64, 96), 64),
    _Inception("3c", 0, (128, 160), (64, 96)),
    _Inception("4a", 224, (64, 96), (96, 128), 128),
    _Inception("4b", 192, (96, 128), (96, 128), 128),
    _Inception("4c", 160, (128, 160), (128, 160), 128),
    _Inception("4d", 96, (128, 192), (160, 192), 128),
    _Inception("4e", 0, (128, 192), (192, 256)),
    _Inception("5a", 352, (192, 320), (160, 224), 128),
    _Inception("5b", 352, (192, 320), (192, 224), 128),
)
_MAX_POOLED = "5b"  # its pooling branch takes maxima, all others means


class BNInception(nn.Module):
    """Images (N, 3, H, W) to a map (N, 1024, H/32, W/32)."""

    channels = 1024

    def __init__(self) -> None:
        super().__init__()
        self._add("conv1_7x7_s2", 3, 64, 7, 2)
        self._add("conv2_3x3_reduce", 64, 64, 1)
        self._add("conv2_3x3", 64, 192, 3)
        inputs = 192
        for module in _MODULES:
            inputs = self._add_module(module, inputs)
        assert inputs == self.channels

    def _add(self, name: str, inputs: int, outputs: int, kernel: int, stride: int = 1) -> None:
        conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2)
        nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
        nn.init.zeros_(conv.bias)  # type: ignore[arg-type]
        self.add_module(name, conv)
        self.add_module(f"{name}_bn", nn.BatchNorm2d(outputs))

    def _add_module(self, module: _Inception, inputs: int) -> int:
        """Add the layers of the branches. Returns the number of their output channels."""
        name, stride = f"inception_{module.name}", 1 if module.one else 2
        if module.one:
            self._add(f"{name}_1x1", inputs, module.one, 1)
        self._add(f"{name}_3x3_reduce", inputs, module.three[0], 1)
        self._add(f"{name}_3x3", module.three[0], module.three[1], 3, stride)
        self._add(f"{name}_double_3x3_reduce", inputs, module.double[0], 1)
        self._add(f"{name}_double_3x3_1", module.double[0], module.double[1], 3)
        self._add(f"{name}_double_3x3_2", module.double[1], module.double[1], 3, stride)
        if module.pool:
            self._add(f"{name}_pool_proj", inputs, module.pool, 1)
        return module.one + module.three[1] + module.double[1] + (module.pool or inputs)

    def _layer(self, name: str, x: Tensor) -> Tensor:
        conv, bn = getattr(self, name), getattr(self, f"{name}_bn")
        return functional.relu(conv_bn(x, conv, bn), inplace=True)

    def _module(self, module: _Inception, x: Tensor) -> Tensor:
        name = f"inception_{module.name}"
        three = self._layer(f"{name}_3x3", self._layer(f"{name}_3x3_reduce", x))
        double = self._layer(f"{name}_double_3x3_1", self._layer(f"{name}_double_3x3_reduce", x))
        double = self._layer(f"{name}_double_3x3_2", double)
        if not module.one:
            return torch.cat([three, double, functional.max_pool2d(x, 3, 2, ceil_mode=True)], 1)
        pool = functional.max_pool2d if module.name == _MAX_POOLED else functional.avg_pool2d
        pooled = pool(x, 3, 1, 1)
        one, projected = self._layer(f"{name}_1x1", x), self._layer(f"{name}_pool_proj", pooled)
        return torch.cat([one, three, double, projected], 1)

    def forward(self, images: Tensor) -> Tensor:
        x = functional.max_pool2d(self._layer("conv1_7x7_s2", images), 3, 2, ceil_mode=True)
        x = self._layer("conv2_3x3", self._layer("conv2_3x3_reduce", x))
        x = functional.max_pool2d(x, 3, 2, ceil_mode=True)
        for module in _MODULES:
            x = self._module(module, x)
        return x


def from_public(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Convert the tensors of public checkpoints to this module's names and shapes.

    Some have normalisation vectors of Caffe's shape (1, C). Proxy-Anchor's trained models have the prefix "model." and
    an embedding layer instead of the 1,000 classes. Neither layer is part of the trunk.
    """
    tensors = {}
    for key, value in weights.items():
        name = key.removeprefix("module.").removeprefix("model.")
        if name.startswith(("last_linear.", "fc.", "embedding_layer.")):
            continue
        tensors[name] = value.flatten() if value.ndim == 2 and value.shape[0] == 1 else value
    return tensors
