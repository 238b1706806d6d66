"""What PyTorch calls the operations of ops/shape/, where it has another name or other arguments."""
import torch
import torch.nn.functional as F

from twin import DTYPES


def place(x, dim, start, step, size):
    dims = list(x.shape)
    dims[dim] = size
    index = torch.arange(x.shape[dim]) * step + start
    return torch.zeros(dims, dtype=x.dtype).index_add(dim, index, x)


def pad_around(x, pad, mode):
    """F.pad requires a batch and channels before the dimensions that it pads."""
    k = len(pad) // 2
    y = F.pad(x.reshape((-1, 1) + x.shape[-k:]), pad, mode)
    return y.reshape(x.shape[:-k] + y.shape[2:])


TWINS = {
    "reshape": lambda x, shape: x.reshape(shape),
    "permute": lambda x, dims: x.permute(dims),
    "expand": lambda x, size: x.expand(size),
    "slice": lambda x, dim, start, length, step: x.index_select(dim, torch.arange(length) * step + start),
    "place": place,
    "select": lambda x, dim, index: x.select(dim, index),
    "identity": lambda x: x.view(x.shape),
    "copy": torch.clone,
    "to": lambda x: x.to("cpu"),
    "cast": lambda x: x.to(torch.float64),
    "cat": lambda *x, dim: torch.cat(x, dim),
    "stack": lambda *x, dim: torch.stack(x, dim),
    "roll": lambda x, shifts, dims: torch.roll(x, shifts, dims) if dims else torch.roll(x, shifts[0]),
    "pad_around": pad_around,
    "repeat": lambda x, sizes: x.repeat(sizes),
}
