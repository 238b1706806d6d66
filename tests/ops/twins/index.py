"""What PyTorch calls the operations of ops/index/, where it has another name or other arguments."""
import torch


def scatter_rows(src, index, dim, size):
    dims = list(src.shape)
    dims[dim] = size
    return torch.zeros(dims, dtype=src.dtype).index_add(dim, index.long(), src)


def put_rows(x, index, values):
    for i in range(len(index)):  # one after another: the last one wins
        x = x.index_put((index[i:i + 1].long(),), values[i:i + 1])
    return x.clone()


TWINS = {
    "put_rows": put_rows,
    "index_select": lambda x, i, dim: torch.index_select(x, dim, i),
    "gather": lambda x, i, dim: torch.gather(x, dim, i.long()),
    "scatter_rows": scatter_rows,
    "scatter_add": lambda src, i, dim, shape: torch.zeros(*shape, dtype=src.dtype).scatter_add(dim, i.long(), src),
}
