"""A small residual network for small images such as characters, trained from scratch in a minute or two."""

from torch import Tensor, nn
from torch.nn import functional

from nearfar.models.layers import conv_bn


class _Block(nn.Module):
    """x + BN(conv(relu(BN(conv x)))), strided where it widens."""

    def __init__(self, inputs: int, outputs: int):
        super().__init__()
        stride = 1 if inputs == outputs else 2
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.stride = stride
        self.skip = nn.Conv2d(inputs, outputs, 1, bias=False) if stride == 2 else None

    def forward(self, x: Tensor) -> Tensor:
        y = functional.relu(conv_bn(x, self.conv1, self.bn1), inplace=True)
        y = conv_bn(y, self.conv2, self.bn2)
        if self.skip is not None:
            # A convolution of stride 2 with few channels in channels_last format writes out of bounds in its backward
            # pass (torch 2.13 on CPUs). The gradient of a slice has the channels first, which makes a step a fifth
            # slower.
            x = self.skip(functional.avg_pool2d(x, 1, self.stride))
        return functional.relu(y.add_(x), inplace=True)


class ConvNet(nn.Module):
    """Images (N, inputs, H, W) to a map (N, 8 * width, H/8, W/8).

    Args:
        inputs: channels of the image: 3 for colour, 1 for grey.
        width: channels of the first layer; every block doubles them.
    """

    def __init__(self, inputs: int = 3, width: int = 32):
        super().__init__()
        self.channels = 8 * width
        self.stem = nn.Conv2d(inputs, width, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(width)
        self.blocks = nn.Sequential(*(_Block(width * k, 2 * width * k) for k in (1, 2, 4)))
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor) -> Tensor:
        x = functional.relu(conv_bn(images, self.stem, self.bn), inplace=True)
        return self.blocks(x)  # type: ignore[no-any-return]
