"""What PyTorch calls the operations of ops/pool/."""
import torch
import torch.nn.functional as F


def pooled(kind):
    """The function for x's dimensions: max_pool2d, adaptive_max_pool2d, …, with ceil_mode where rounding down gives another `size`."""
    def twin(x, given, size, kernel_size=None, stride=(1, 1, 1), spatial=2, adaptive=False, **more):
        if adaptive:
            return getattr(F, "adaptive_%s_pool%dd" % (kind, spatial))(x, size)
        padding, dilation = more.get("padding", (0, 0, 0)), more.get("dilation", (1, 1, 1))
        down = [(n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in zip(given, kernel_size, stride, padding, dilation)]
        return getattr(F, "%s_pool%dd" % (kind, spatial))(x, kernel_size, stride[:spatial], ceil_mode=down != size, **more)
    return twin


def avg_unpool(x, given, **more):
    """PyTorch's gradient of the mean."""
    probe = torch.zeros(x.shape[:2] + torch.Size(given), dtype=x.dtype, requires_grad=True)
    return torch.autograd.grad(pooled("avg")(probe, given, **more), probe, x, create_graph=True)[0]


def unfold(x, given, size, **more):
    return F.unfold(x, **more) if len(x) else x.new_zeros(0, 8, 4) + 0 * x.sum()


def fold(x, given, size, **more):
    return F.fold(x, output_size=given, **more) if len(x) else x.new_zeros(0, 2, 3, 3) + 0 * x.sum()


def resample(x, dim, size, given, mode, step=None, align_corners=None):
    """Along one dimension: F.interpolate of (others, 1, given); bicubic takes two dimensions, of which one keeps its size."""
    lines = x.movedim(dim, -1)
    shape, modes = lines.shape[:-1], {}
    if align_corners is not None or mode in ("linear", "bicubic"):
        modes["align_corners"] = bool(align_corners)
    flat = lines.reshape((-1, 1, given) if mode != "bicubic" else (-1, 1, 1, given))
    if not flat.numel():
        return (flat.sum() + torch.zeros(shape + (size,), dtype=x.dtype)).movedim(-1, dim)
    if step is not None:
        y = F.interpolate(flat, scale_factor=1 / step, mode=mode, **modes)
    else:
        y = F.interpolate(flat, size=(size,) if mode != "bicubic" else (1, size), mode=mode, **modes)
    return y.reshape(shape + (size,)).movedim(-1, dim)


def resample_grad(x, dim, size, given, **more):
    dims = list(x.shape)
    dims[dim] = given
    probe = torch.zeros(dims, dtype=x.dtype, requires_grad=True)
    return torch.autograd.grad(resample(probe, dim, size, given, **more), probe, x, create_graph=True)[0]


TWINS = {
    "resample": resample,
    "resample_grad": resample_grad,
    "unfold": unfold,
    "fold": fold,
    "max_pool": pooled("max"),
    "avg_pool": pooled("avg"),
    "avg_unpool": avg_unpool,
}
