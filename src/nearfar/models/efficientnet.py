"""EfficientNet-Lite: MobileNet's inverted bottlenecks, scaled, without squeeze-and-excitation, ReLU6 throughout.

References: M. Tan, Q. Le, "EfficientNet", ICML 2019, arXiv:1905.11946; the Lite variants of the TPU repository (2020).

Parameter names are those of the public PyTorch checkpoints (`_conv_stem.weight`, `_blocks.0._depthwise_conv.weight`).
"""

import math

from torch import Tensor, nn
from torch.nn import functional

from nearfar.models.layers import conv_bn, same_padding

# (width, depth, input size) of Lite0 to Lite4
SCALES = ((1.0, 1.0, 224), (1.0, 1.1, 240), (1.1, 1.2, 260), (1.2, 1.4, 280), (1.4, 1.8, 300))
# (repeats, kernel, stride, expansion, channels) of the stages
_STAGES = (
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)
_STEM, _FEATURES = 32, 1280  # not scaled in the Lite variants


def _round_channels(channels: float) -> int:
    """Round to a multiple of eight, by at most a tenth downwards."""
    rounded = max(8, int(channels + 4) // 8 * 8)
    return rounded + 8 if rounded < 0.9 * channels else rounded


def _batch_norm(channels: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(channels, eps=1e-3, momentum=0.01)


def _conv(inputs: int, outputs: int, kernel: int = 1, stride: int = 1, groups: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, kernel, stride, groups=groups, bias=False)


class _Block(nn.Module):
    """Expansion, depthwise convolution and projection, with a skip connection if the shapes allow it."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, expansion: int):
        super().__init__()
        hidden = inputs * expansion
        self.expands = expansion != 1
        if self.expands:
            self._expand_conv = _conv(inputs, hidden)
            self._bn0 = _batch_norm(hidden)
        self._depthwise_conv = _conv(hidden, hidden, kernel, stride, groups=hidden)
        self._bn1 = _batch_norm(hidden)
        self._project_conv = _conv(hidden, outputs)
        self._bn2 = _batch_norm(outputs)
        self.kernel, self.stride = kernel, stride
        self.skips = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        y = x
        if self.expands:
            y = functional.relu6(conv_bn(y, self._expand_conv, self._bn0), inplace=True)
        y = same_padding(y, self.kernel, self.stride)
        y = functional.relu6(conv_bn(y, self._depthwise_conv, self._bn1), inplace=True)
        y = conv_bn(y, self._project_conv, self._bn2)
        return x + y if self.skips else y


class EfficientNetLite(nn.Module):
    """Images (N, 3, H, W) to a map (N, 1280, H/32, W/32).

    Args:
        variant: 0 to 4.
    """

    channels = _FEATURES

    def __init__(self, variant: int = 0):
        super().__init__()
        width, depth, _ = SCALES[variant]
        self._conv_stem = _conv(3, _STEM, 3, 2)
        self._bn0 = _batch_norm(_STEM)
        blocks, inputs = [], _STEM
        for stage, (repeats, kernel, stride, expansion, channels) in enumerate(_STAGES):
            outputs = _round_channels(channels * width)
            if stage not in (0, len(_STAGES) - 1):  # the first and the last are never deepened
                repeats = math.ceil(repeats * depth)
            for repeat in range(repeats):
                blocks.append(_Block(inputs, outputs, kernel, stride if repeat == 0 else 1, expansion))
                inputs = outputs
        self._blocks = nn.ModuleList(blocks)
        self._conv_head = _conv(inputs, _FEATURES)
        self._bn1 = _batch_norm(_FEATURES)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor) -> Tensor:
        x = functional.relu6(conv_bn(same_padding(images, 3, 2), self._conv_stem, self._bn0), inplace=True)
        for block in self._blocks:
            x = block(x)
        return functional.relu6(conv_bn(x, self._conv_head, self._bn1), inplace=True)
