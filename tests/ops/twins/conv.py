"""What PyTorch calls the operations of ops/conv/. Samples pass the number of dimensions, and `size`: the result's, or the kernel's."""
import torch
import torch.nn.functional as F

CONVS = [F.conv1d, F.conv2d, F.conv3d], [F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d]


def conv(x, w, b=None, spatial=2, **more):
    return CONVS[0][spatial - 1](x, w, b, **more)


def conv_transpose(x, w, b=None, size=None, spatial=2, **more):
    """output_padding is the requested size less the size without it."""
    y = CONVS[1][spatial - 1](x, w, b, **more)
    return CONVS[1][spatial - 1](x, w, b, output_padding=[n - m for n, m in zip(size, y.shape[2:])], **more)


def conv_weight_grad(dy, x, size=None, groups=1, **more):
    """PyTorch's gradient of the sum of y dy."""
    w = torch.zeros(dy.shape[1], x.shape[1] // groups, *size, dtype=x.dtype, requires_grad=True)
    y = conv(x, w, groups=groups, **more)
    return torch.autograd.grad(y, w, dy, create_graph=True)[0]


TWINS = {"conv": conv, "conv_transpose": conv_transpose, "conv_weight_grad": conv_weight_grad}
