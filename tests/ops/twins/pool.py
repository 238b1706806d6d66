"""What PyTorch calls the operations of ops/pool/."""
import torch
import torch.nn.functional as F


def pooled(kind):
    """The function for x's dimensions: max_pool2d, adaptive_max_pool2d, … avg_pool1d has no divisor."""
    def twin(x, **more):
        name = ("adaptive_" if "output_size" in more else "") + "%s_pool%dd" % (kind, x.dim() - 2)
        return getattr(F, name)(x, **more)
    return twin


def avg_unpool(x, size, **more):
    """The gradient of the mean, by PyTorch's own."""
    probe = torch.zeros(x.shape[:2] + torch.Size(size), dtype=x.dtype, requires_grad=True)
    return torch.autograd.grad(pooled("avg")(probe, **more), probe, x, create_graph=True)[0]


TWINS = {
    "max_pool": pooled("max"),
    "avg_pool": pooled("avg"),
    "avg_unpool": avg_unpool,
}
