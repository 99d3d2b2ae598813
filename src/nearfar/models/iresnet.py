"""IResNet, the face networks of ArcFace: residual blocks that normalise before they convolve.

References: J. Deng et al., "ArcFace", CVPR 2019, arXiv:1801.07698 (its "LResNet-E-IR"); I. Duta et al., "Improved
Residual Networks", ICPR 2020, arXiv:2004.04989.

Parameter names are those of insightface's `arcface_torch` checkpoints (`layer1.0.bn1.weight`, `features.weight`).

    iresnet-34   34,139,328 parameters      iresnet-50   43,590,848      iresnet-100   65,156,160
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional

from nearfar.errors import InputError
from nearfar.models.layers import conv_bn

LAYERS = {34: (3, 4, 6, 3), 50: (3, 4, 14, 3), 100: (3, 13, 30, 3)}
INPUT_SIZE = 112
INITIAL_STD = 0.1


class _Block(nn.Module):
    """x + BN(conv(PReLU(BN(conv(BN x))))), the second convolution strided."""

    def __init__(self, inputs: int, outputs: int, stride: int):
        super().__init__()
        self.bn1 = nn.BatchNorm2d(inputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.prelu = nn.PReLU(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, stride, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.downsample: nn.Sequential | None = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        y = self.prelu(conv_bn(self.bn1(x), self.conv1, self.bn2))
        y = conv_bn(y, self.conv2, self.bn3)
        if self.downsample is not None:
            x = conv_bn(x, self.downsample[0], self.downsample[1])  # type: ignore[arg-type]
        return y + x


def _start(conv: nn.Conv2d, bn: nn.BatchNorm2d) -> None:
    """Initialise the weights as insightface does, and the running variance to the output variance for an input of
    variance 1. With a running variance of 1, an untrained network would overflow in evaluation mode.
    """
    nn.init.normal_(conv.weight, 0, INITIAL_STD)
    assert bn.running_var is not None
    bn.running_var.fill_(conv.weight[0].numel() * INITIAL_STD**2)


class IResNet(nn.Module):
    """Aligned faces (N, 3, 112, 112) to vectors (N, dimension), including the paper's head (BN, dropout, linear, BN).

    Args:
        depth: 34, 50 or 100.
        dimension: dimension of the vectors; 512 in public checkpoints.
        dropout: dropout before the linear layer.
    """

    def __init__(self, depth: int = 50, *, dimension: int = 512, dropout: float = 0.0):
        super().__init__()
        self.channels = dimension
        self.conv1 = nn.Conv2d(3, 64, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.prelu = nn.PReLU(64)
        inputs = 64
        for stage, (blocks, outputs) in enumerate(zip(LAYERS[depth], (64, 128, 256, 512), strict=True), 1):
            layer = [_Block(inputs if i == 0 else outputs, outputs, 2 if i == 0 else 1) for i in range(blocks)]
            self.add_module(f"layer{stage}", nn.Sequential(*layer))
            inputs = outputs
        self.bn2 = nn.BatchNorm2d(512)
        self.dropout = nn.Dropout(dropout)
        self.fc = nn.Linear(512 * (INPUT_SIZE // 16) ** 2, dimension)
        self.features = nn.BatchNorm1d(dimension)
        self.features.weight.requires_grad_(False)  # stays 1, as in insightface
        _start(self.conv1, self.bn1)
        for block in self.modules():
            if isinstance(block, _Block):
                _start(block.conv1, block.bn2)
                _start(block.conv2, block.bn3)
                if block.downsample is not None:
                    _start(block.downsample[0], block.downsample[1])  # type: ignore[arg-type]

    def forward(self, images: Tensor) -> Tensor:
        if images.shape[-2:] != (INPUT_SIZE, INPUT_SIZE):
            raise InputError(f"IResNet takes aligned faces of 112 x 112 pixels, not {tuple(images.shape[-2:])}")
        x = functional.prelu(conv_bn(images, self.conv1, self.bn1), self.prelu.weight)
        for stage in range(1, 5):
            x = getattr(self, f"layer{stage}")(x)
        x = self.dropout(torch.flatten(self.bn2(x), 1))
        return torch.as_tensor(self.features(self.fc(x)))


def from_public(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Convert the tensors of public checkpoints: remove the prefix "module." of parallel training."""
    return {key.removeprefix("module."): value for key, value in weights.items()}
