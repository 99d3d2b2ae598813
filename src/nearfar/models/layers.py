"""Convolution with batch normalisation, and TensorFlow's padding."""

import torch
from torch import Tensor, nn
from torch.nn import functional


def conv_bn(x: Tensor, conv: nn.Conv2d, bn: nn.BatchNorm2d) -> Tensor:
    """Equal to `bn(conv(x))`.

    With fixed statistics (in evaluation, or when frozen) the normalisation is folded into the kernel, which saves a
    pass over the map and a map stored for backward. The kernel is small, so it is folded at every call.
    """
    if bn.training:
        return torch.as_tensor(bn(conv(x)))
    assert bn.running_mean is not None and bn.running_var is not None
    scale = bn.weight * torch.rsqrt(bn.running_var + bn.eps)
    shift = bn.bias - bn.running_mean * scale
    if conv.bias is not None:
        shift = shift + conv.bias * scale
    kernel = conv.weight * scale[:, None, None, None]
    return functional.conv2d(x, kernel, shift, conv.stride, conv.padding, conv.dilation, conv.groups)


def same_padding(x: Tensor, kernel: int, stride: int) -> Tensor:
    """Pad a map with zeros like TensorFlow's "SAME": ceil(size / stride) outputs, an odd zero below and right."""
    rows, columns = (max((-(-size // stride) - 1) * stride + kernel - size, 0) for size in x.shape[-2:])
    if rows == columns == 0:
        return x
    return functional.pad(x, (columns // 2, columns - columns // 2, rows // 2, rows - rows // 2))
