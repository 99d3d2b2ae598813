"""ResNet, as in torchvision and timm: the stride of a bottleneck is in its 3 x 3 convolution ("v1.5"), not in the first
1 x 1 as in the paper.

References: K. He et al., "Deep Residual Learning for Image Recognition", CVPR 2016, arXiv:1512.03385.

Parameter names are those of torchvision's checkpoints (`resnet50-0676ba61.pth`) and of timm's (`resnet50.tv_in1k`):
`conv1.weight`, `layer1.0.conv1.weight`, `layer1.0.downsample.0.weight`, `fc.weight`.

Parameters without and with the 1,000-class layer:

    resnet-18   11,176,512   11,689,512
    resnet-34   21,284,672   21,797,672
    resnet-50   23,508,032   25,557,032
    resnet-101  42,500,160   44,549,160
    resnet-152  58,143,808   60,192,808
"""

from collections.abc import Mapping

from torch import Tensor, nn
from torch.nn import functional

from nearfar.errors import InputError
from nearfar.models.layers import conv_bn

LAYERS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}
_WIDTHS = (64, 128, 256, 512)
_BOTTLENECK_FROM, _EXPANSION = 50, 4


class _Block(nn.Module):
    """relu(x + BN(conv(relu(BN(conv ...))))): two 3 x 3 convolutions, or, in a bottleneck, a 3 x 3 between two 1 x 1.

    The first 3 x 3 convolution is the strided one.
    """

    def __init__(self, inputs: int, width: int, stride: int, *, bottleneck: bool):
        super().__init__()
        outputs = width * _EXPANSION if bottleneck else width
        layers = (
            ((inputs, width, 1, 1), (width, width, 3, stride), (width, outputs, 1, 1))
            if bottleneck
            else ((inputs, width, 3, stride), (width, outputs, 3, 1))
        )
        self.depth = len(layers)
        for i, (before, after, kernel, step) in enumerate(layers, 1):
            self.add_module(f"conv{i}", nn.Conv2d(before, after, kernel, step, kernel // 2, bias=False))
            self.add_module(f"bn{i}", nn.BatchNorm2d(after))
        self.downsample: nn.Sequential | None = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        y = x
        for i in range(1, self.depth + 1):
            y = conv_bn(y, getattr(self, f"conv{i}"), getattr(self, f"bn{i}"))
            if i < self.depth:
                y = functional.relu(y, inplace=True)
        if self.downsample is not None:
            x = conv_bn(x, self.downsample[0], self.downsample[1])  # type: ignore[arg-type]
        return functional.relu(y + x)


class ResNet(nn.Module):
    """Images (N, 3, H, W) to a map (N, channels, H/32, W/32); channels are 512 up to depth 34, then 2048.

    Args:
        depth: 18, 34, 50, 101 or 152.
        last_stride: stride of the last stage; 1 doubles the height and width of the map, usual in re-identification.
    """

    def __init__(self, depth: int = 50, *, last_stride: int = 2):
        super().__init__()
        if last_stride not in (1, 2):
            raise InputError(f"last_stride must be 1 or 2, not {last_stride}")
        bottleneck = depth >= _BOTTLENECK_FROM
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        inputs = 64
        for stage, (blocks, width) in enumerate(zip(LAYERS[depth], _WIDTHS, strict=True), 1):
            layer = []
            for block in range(blocks):
                stride = 1 if stage == 1 or block > 0 else last_stride if stage == len(_WIDTHS) else 2
                layer.append(_Block(inputs, width, stride, bottleneck=bottleneck))
                inputs = width * _EXPANSION if bottleneck else width
            self.add_module(f"layer{stage}", nn.Sequential(*layer))
        self.channels = inputs
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor) -> Tensor:
        x = functional.relu(conv_bn(images, self.conv1, self.bn1), inplace=True)
        x = functional.max_pool2d(x, 3, 2, 1)
        for stage in range(1, len(_WIDTHS) + 1):
            x = getattr(self, f"layer{stage}")(x)
        return x


def from_public(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Convert the tensors of public checkpoints: remove the class layer and the prefix of parallel training."""
    names = {key.removeprefix("module."): value for key, value in weights.items()}
    return {name: value for name, value in names.items() if not name.startswith("fc.")}
